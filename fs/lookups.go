package fs

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// lookups remembers for a moment the result of each thread's last LOOKUP. stat(2) is a LOOKUP and a
// GETATTR, and another node may remove the inode in between, for instance by renaming over the
// name. On a local filesystem the program then gets the attributes of the file that had the name.
// Here the catalog has forgotten them. Walking the path once more (ESTALE) could lose the same race
// again, and the program would be told that there is no file although there always was one.
//
// A removal by name is about what the LOOKUP before it has found as well: see victim.
type lookups struct {
	slots [256]lookup
}

// lookup is the last lookup by any of the threads that share this place.
type lookup struct {
	mu    lockrank.Mutex
	tid   uint32
	place place
	inode dsm.Inode // zero if nothing was found
	at    time.Time
}

// lookupWindow is longer than a thread takes from a LOOKUP to the GETATTR after it.
const lookupWindow = time.Second

func (l *lookups) init() {
	for i := range l.slots {
		l.slots[i].mu.Init("fs.lookup")
	}
}

func (l *lookups) put(tid uint32, p place, i dsm.Inode) {
	s := &l.slots[tid%uint32(len(l.slots))]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tid, s.place, s.inode, s.at = tid, p, i, time.Now()
}

// last returns what the thread's last LOOKUP has found, if it was of p.
func (l *lookups) last(tid uint32, p place) (i dsm.Inode, ok bool) {
	s := &l.slots[tid%uint32(len(l.slots))]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inode, s.tid == tid && s.place == p
}

// gone returns the inode as it was, without names, if the thread looked it up a moment ago.
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
