package fs

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// lookups remembers for a moment what the last name that a thread looked up led to.
// stat(2) is a LOOKUP and a GETATTR, and another node may remove the inode in
// between, as a rename over the name does. On a local filesystem the program then gets
// the attributes of the file that the name was of. Here the catalog has forgotten
// them; walking the path once more (ESTALE) may lose the same race again, and the program
// would be told that there is no file where there always was one.
type lookups struct {
	slots [256]lookup
}

// lookup is of one of the threads whose numbers are alike; the last one counts.
type lookup struct {
	mu    lockrank.Mutex
	tid   uint32
	inode dsm.Inode
	at    time.Time
}

// lookupWindow is more than a thread takes from a LOOKUP to the GETATTR after it.
const lookupWindow = time.Second

func (l *lookups) init() {
	for i := range l.slots {
		l.slots[i].mu.Init("fs.lookup")
	}
}

func (l *lookups) put(tid uint32, i dsm.Inode) {
	s := &l.slots[tid%uint32(len(l.slots))]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tid, s.inode, s.at = tid, i, time.Now()
}

// gone returns the inode as it was, without names, if it is what the thread looked
// up a moment ago.
func (l *lookups) gone(tid uint32, ino dsm.Ino) (i dsm.Inode, ok bool) {
	s := &l.slots[tid%uint32(len(l.slots))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tid != tid || s.inode.Ino != ino || time.Since(s.at) > lookupWindow {
		return i, false
	}
	i = s.inode
	i.Nlink = 0
	return i, true
}
