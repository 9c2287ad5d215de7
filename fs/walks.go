package fs

import (
	"context"
	"path/filepath"
	"time"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// walks are looks of the child process at directories that other nodes have moved.
//
// A directory in which a program has a file open, or works, stays known to the kernel under
// its old name. A rename(2) from one directory to another that finds it under its new name gets ESTALE, lets go of
// its locks, walks both paths once more and tries again (Linux 6.18). In between the child looks at the new
// name: it has no locks, so the kernel moves the directory. The first LOOKUP of the second walk waits for that.
type walks struct {
	mu struct {
		lockrank.Mutex
		under map[uint32]chan struct{} // by the thread that has found the directory
	}
}

// walkLimit is how long a thread waits for the child. It may wait in vain: the child waits for the
// lock of the directory, which a rename within one directory has all the time. The thread is then told
// of another directory: see aliases.
const walkLimit = 500 * time.Millisecond

func (w *walks) init() {
	w.mu.Init("fs.walks")
	w.mu.under = make(map[uint32]chan struct{})
}

// begin says that the child is going to look for the thread, until end is called.
func (w *walks) begin(tid uint32) (end func()) {
	done := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.under[tid] = done
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		close(done)
		if w.mu.under[tid] == done {
			delete(w.mu.under, tid)
		}
	}
}

// wait returns when the child has looked for the thread.
func (w *walks) wait(ctx context.Context, tid uint32) {
	w.mu.Lock()
	done := w.mu.under[tid]
	w.mu.Unlock()
	if done == nil {
		return
	}
	limit := time.NewTimer(walkLimit)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// walk has the child look at a directory that has been moved to p.
func (b *bridge) walk(n nodeID, p place) {
	path, ok := b.aliases.path(p)
	if !ok {
		return // the kernel does not know the way either
	}
	ctx, cancel := b.lasting()
	defer cancel()
	if err := b.harvest.Look(ctx, filepath.Join(b.cfg.Mountpoint, path)); err != nil {
		b.log.Debug("look at a directory that was moved", "path", path, "err", err)
		return
	}
	b.aliases.settled(n, p)
}
