package fs

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// withRoom makes a change that takes memory, and tries again if there may be more now: a removed file gives its memory back some time after
// the last close. The kernel says that only after close(2) has returned, so it may say it after it asks for the change.
func (b *bridge) withRoom(ctx context.Context, change func() (dsm.Inode, error)) (dsm.Inode, error) {
	before := b.releases.ended()
	i, err := change()
	if !errs.Is(err, errs.NoSpace) {
		return i, err
	}
	b.handles.awaitClosed(ctx)
	if b.releases.settle(ctx) || b.releases.ended() != before {
		i, err = change()
	}
	return i, err
}

// closeLimit is how long after a FLUSH the RELEASE is waited for. There is none if the program has another descriptor of the handle.
const closeLimit = 500 * time.Millisecond

// awaitClosed returns when no handle was flushed a moment ago that may be released now.
func (t *handleTable) awaitClosed(ctx context.Context) {
	for {
		left, removed := t.closing(time.Now())
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

// closing returns how long a RELEASE may still be waited for, and a channel that is closed when a handle is removed.
func (t *handleTable) closing(now time.Time) (left time.Duration, removed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.mu.open {
		if f, ok := h.(*fileHandle); ok && f.flushed.Load() != 0 {
			left = max(left, time.Unix(0, f.flushed.Load()).Add(closeLimit).Sub(now))
		}
	}
	if t.mu.removed == nil {
		t.mu.removed = make(chan struct{})
	}
	return left, t.mu.removed
}
