package coherence

import (
	"errors"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/pages"
)

// memoryRetry is how long a message or a batch waits for another try when the memory of its area could not be made.
const memoryRetry = time.Second

// leaseRetry is how long what a home has sent waits until it is looked at whether this node's lease lasts again.
const leaseRetry = 50 * time.Millisecond

// warnPause is the least time between two warnings that memory cannot be made.
const warnPause = time.Minute

// newMemory makes the memory of an area.
func newMemory(id dsm.AreaID, size int64, demand bool) (*pages.Area, error) {
	if demand {
		return pages.NewDemandArea(id, size)
	}
	return pages.NewArea(id, size)
}

// memoryLocked returns the memory of the area, and makes it at first use. The catalog has reserved the size
// in the node's budget. So failure means that another limit is reached: mappings, file descriptors or the
// machine's memory.
func (a *Area) memoryLocked() (*pages.Area, error) {
	if a.mu.mem != nil {
		return a.mu.mem, nil
	}
	mem, err := a.node.newMemory(a.id, a.mu.ino.Size, a.mu.ino.Spec.Residency == dsm.ResidencyDemand)
	if err != nil {
		a.node.warnOfMemory(a.id, err)
		return nil, &errs.Error{Op: "reserve memory", Area: a.id, Err: err}
	}
	mem.SetDrops(&a.mu.drops)
	a.mu.mem = mem
	a.followedLocked()
	a.mu.cached = pages.NewCached(mem)
	invariants.Check(len(a.mu.home.extents) == 0, "area %d is the home of extents that had no memory", a.id)
	return mem, nil
}

// workingCopyLocked makes the working copy, and the memory of the area if it has none.
func (a *Area) workingCopyLocked() error {
	mem, err := a.memoryLocked()
	if err != nil {
		return err
	}
	if err := mem.BeginReplica(); err != nil {
		a.node.warnOfMemory(a.id, err)
		a.freeIfUnusedLocked()
		return &errs.Error{Op: "reserve memory", Area: a.id, Err: err}
	}
	return nil
}

// resizeMemoryLocked changes the size of the area's memory and of the drafts. If it fails, some drafts may be longer than the area, which
// does no harm.
func (a *Area) resizeMemoryLocked(size int64) error {
	for _, d := range a.mu.drafts {
		if err := a.node.resize(d.mem, size); size > a.mu.ino.Size && err != nil {
			return err
		} else if err != nil {
			a.node.cfg.Log.Error("shrink a draft", "area", a.id, "size", size, "err", err)
		}
	}
	if size < a.mu.ino.Size {
		a.mu.cached.BeforeShrink(size)
	}
	if err := a.node.resize(a.mu.mem, size); err != nil {
		return err
	}
	a.mu.cached.Truncate(size)
	if size < a.mu.ino.Size {
		a.dropAllPastLocked()
	}
	if size == 0 && a.mu.replica.mapped == 0 {
		a.unshareLocked() // what is stored next is in a file that ends where the area does
	}
	return nil
}

// unshareLocked gives the working copy memory of its own that no program has, or had: see pages.Area.Unshare.
func (a *Area) unshareLocked() {
	if err := a.mu.mem.Unshare(); err != nil {
		a.node.warnOfMemory(a.id, err)
	}
}

// resize changes the size of an area's memory, or of a draft.
func resize(mem interface{ Resize(size int64) error }, size int64) error { return mem.Resize(size) }

// warnOfMemory logs that memory cannot be made, at most once in warnPause on a node: callers try again and again.
func (n *Node) warnOfMemory(id dsm.AreaID, err error) {
	now, last := time.Now().UnixNano(), n.warned.Load()
	if last != 0 && now-last < int64(warnPause) || !n.warned.CompareAndSwap(last, now) {
		return
	}
	todo := "free memory or mappings (vm.max_map_count)"
	switch {
	case errs.Is(err, errs.Busy):
		todo = "a program of this node that has attached the area for writing is in write(2) to its memory, perhaps from memory that does not come: end it"
	case errors.Is(err, syscall.EMFILE):
		todo = "the daemon has no more file descriptors: raise RLIMIT_NOFILE (ulimit -n, in a unit LimitNOFILE)"
	case errors.Is(err, syscall.ENFILE):
		todo = "the machine has no more open files: raise the sysctl fs.file-max; RLIMIT_NOFILE bounds each process"
	}
	n.cfg.Log.Warn("the memory of an area cannot be made", "area", id, "err", err, "todo", todo)
}

// parkForMemoryLocked keeps a publish for which there is no memory, or a request for which there is no lease, and tries it again until there is. Later requests of the publisher
// wait behind it. The publisher is not told: its fsync ends at its deadline, and its stores stay there as unpublished.
func (a *Area) parkForMemoryLocked(from dsm.NodeID, m any, payload []byte) {
	a.parkLocked(from, m, payload)
	a.retryMemoryLocked()
}

// retryMemoryLocked has what waits for the memory of the area tried again after a while: parked messages, and batches that have not begun.
func (a *Area) retryMemoryLocked() { a.retryLocked(memoryRetry) }

// retryLocked has what is parked tried again after so long, or earlier.
func (a *Area) retryLocked(pause time.Duration) {
	if a.mu.memoryRetry != nil {
		if pause < memoryRetry {
			a.mu.memoryRetry.Reset(pause)
		}
		return
	}
	a.mu.memoryRetry = time.AfterFunc(pause, func() {
		a.step(func() {
			a.mu.memoryRetry = nil
			a.unparkLocked()
			for _, id := range a.subscribersLocked() {
				a.pumpLocked(id, a.mu.home.subs[id])
			}
		})
	})
}
