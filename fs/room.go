package fs

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// withRoom makes a change that takes memory, and tries again if there may be more now: a removed file gives its memory back some time after
// the last close. The kernel says that only after close(2) has returned, so it may say it after it asks for the change.
// It waits for what was closed before, and for closeLimit at most: others may open and close files all the time. If nobody knows what became of the second
// try, what the first one said counts.
func (b *bridge) withRoom(ctx context.Context, change func() (dsm.Inode, error)) (dsm.Inode, error) {
	before := b.releases.ended()
	i, err := change()
	if !errs.Is(err, errs.NoSpace) {
		return i, err
	}
	limit, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	b.handles.awaitClosed(limit)
	for range 3 { // first what is released, then those claims that are being given up, then the claims of that
		b.releases.settle(limit)
	}
	if b.releases.ended() == before {
		return i, err
	}
	again, failed := change()
	if errs.Is(failed, errs.Timeout) || errs.Is(failed, errs.Unavailable) || failed != nil && ctx.Err() != nil {
		return i, err
	}
	return again, failed
}

// awaitForfeited is for a program that opens a file of which this node has lost locks, as who had them is told to do. What was closed before is released
// first: until then no lock is to be had here, and what is stored is not published.
func (b *bridge) awaitForfeited(ctx context.Context, a *openArea) {
	if b.cfg.Locks == nil || !b.cfg.Locks.Dropped(dsm.Ino(a.id)) {
		return
	}
	limit, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	b.handles.awaitClosed(limit)
	b.releases.settle(limit)
}

// closeLimit is how long after a FLUSH the RELEASE is waited for. There is none if the program has another descriptor of the handle.
const closeLimit = 500 * time.Millisecond

// awaitClosed returns when no handle was flushed a moment before the call that may be released now.
func (t *handleTable) awaitClosed(ctx context.Context) {
	called := time.Now()
	for {
		left, removed := t.closing(called, time.Now())
		if left <= 0 {
			return
		}
		limit := time.NewTimer(left)
		select {
		case <-removed:
		case <-limit.C:
		case <-ctx.Done():
			limit.Stop()
			return
		}
		limit.Stop()
	}
}

// closing returns how long a RELEASE may still be waited for of a handle that was flushed until then, and a channel that is closed when one is removed.
func (t *handleTable) closing(until, now time.Time) (left time.Duration, removed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.mu.open {
		if f, ok := h.(*fileHandle); ok {
			if at := f.flushed.Load(); at != 0 && at <= until.UnixNano() {
				left = max(left, time.Unix(0, at).Add(closeLimit).Sub(now))
			}
		}
	}
	if t.mu.removed == nil {
		t.mu.removed = make(chan struct{})
	}
	return left, t.mu.removed
}
