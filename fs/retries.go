package fs

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// retries remembers which threads the kernel may be making walk a path once more. At ESTALE it does so, but not
// twice, and nothing in its requests tells the two walks apart. So what a thread was told in a walk is remembered until
// it sends a request that ends one, however long that takes. A thread that makes no such request
// is treated as in its second walk for longer, which is never wrong: that only fails with less hope.
type retries struct {
	some  atomic.Bool // whether there are any
	alive func(tid uint32) bool
	mu    struct {
		lockrank.Mutex
		of   map[uint32]struct{} // threads that were told ESTALE, or of a directory where the kernel may be unable to move it
		many int                 // with so many those are left out that have ended
	}
}

// manyRetries is the least that many may be.
const manyRetries = 256

func (t *retries) init() {
	t.mu.Init("fs.retries")
	t.mu.of, t.mu.many, t.alive = make(map[uint32]struct{}), manyRetries, alive
}

// alive reports whether there is such a thread.
func alive(tid uint32) bool {
	_, err := os.Stat("/proc/" + strconv.FormatUint(uint64(tid), 10))
	return !os.IsNotExist(err)
}

// has reports whether the thread may be in its second walk.
func (t *retries) has(tid uint32) bool {
	if !t.some.Load() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.mu.of[tid]
	return ok
}

// set says that the thread's next walk may be its second.
func (t *retries) set(tid uint32) {
	t.mu.Lock()
	t.mu.of[tid] = struct{}{}
	t.some.Store(true)
	var all []uint32
	if len(t.mu.of) >= t.mu.many {
		// Those that live may be as many. Only after as many more is it worth while to look again.
		t.mu.many = 2 * len(t.mu.of)
		all = slices.AppendSeq(make([]uint32, 0, len(t.mu.of)), maps.Keys(t.mu.of))
	}
	t.mu.Unlock()
	if all != nil {
		t.prune(all)
	}
}

// prune forgets those threads that have ended.
func (t *retries) prune(all []uint32) {
	for _, tid := range all {
		if !t.alive(tid) {
			t.drop(tid)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.many = max(2*len(t.mu.of), manyRetries)
}

// drop says that the thread's walk has ended.
func (t *retries) drop(tid uint32) {
	if !t.some.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.of, tid)
	if len(t.mu.of) == 0 {
		t.some.Store(false)
	}
}

// began is called at the beginning of each request.
func (t *retries) began(h *fuse.InHeader) {
	if t.some.Load() && !slices.Contains(inWalks, h.Opcode) {
		t.drop(h.Pid)
	}
}

// inWalks are the requests that a walk may consist of, or end with at an ESTALE.
var inWalks = []uint32{opLookup, opGetattr, opSetattr, opReadlink, opOpen, opOpendir, opCreate, opTmpfile, opSetxattr, opGetxattr, opListxattr, opRemovexattr, opRmdir, opRename, opRename2}

// Of the kernel's numbers of requests (uapi/linux/fuse.h).
const (
	opLookup      = 1
	opGetattr     = 3
	opSetattr     = 4
	opReadlink    = 5
	opRmdir       = 11
	opRename      = 12
	opOpen        = 14
	opSetxattr    = 21
	opGetxattr    = 22
	opListxattr   = 23
	opRemovexattr = 24
	opOpendir     = 27
	opCreate      = 35
	opRename2     = 45
	opTmpfile     = 51
)

// walkStatus is the answer to a request at the end of a path walk that ended with err. If the inode is gone it is ESTALE, which makes the
// kernel walk the path again: an open that races with a rename over the name finds the new file. In that walk a file that a LOOKUP
// finds is claimed (findClaimed). A thread that loses the race again all the same is told ENOENT, which programs can handle.
func (b *bridge) walkStatus(tid uint32, err error) fuse.Status {
	if !errs.Is(err, errs.NotExist) {
		if err == nil {
			b.retries.drop(tid)
		}
		return status(err)
	}
	if b.retries.has(tid) {
		b.retries.drop(tid)
		return fuse.ENOENT
	}
	b.retries.set(tid)
	return fuse.Status(syscall.ESTALE)
}
