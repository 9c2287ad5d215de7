package coherence

import (
	"context"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// waiter is a call that waits for the area to change.
type waiter struct {
	op    string
	cond  func() bool
	dead  func() dsm.NodeID // a home without which cond does not hold, and that is not to be waited for; 0: none
	homes bool              // it waits for answers of homes, which wait themselves if the area is short
	done  chan struct{}     // closed when the wait is over
	gone  bool              // because the area was removed
	err   error             // because of dead, or homes
}

// await returns when cond holds; or with errs.Timeout when ctx ends; or with errs.NotExist when the
// area is removed. The steps that change the area call cond, under its lock, so it must be quick and change
// nothing of the area. (Were the caller woken by each change to look itself, a publish would be woken by
// each of its acks, thousands at times.)
func (a *Area) await(ctx context.Context, op string, cond func() bool) error {
	return a.awaitWith(ctx, &waiter{op: op, cond: cond, dead: func() dsm.NodeID { return 0 }, done: make(chan struct{})})
}

// awaitHomes is await for something that homes do. It ends with an error as soon as dead names one that is not to be waited for.
// Cond is looked at first.
func (a *Area) awaitHomes(ctx context.Context, op string, cond func() bool, dead func() dsm.NodeID) error {
	return a.awaitWith(ctx, &waiter{op: op, cond: cond, dead: dead, homes: true, done: make(chan struct{})})
}

func (a *Area) awaitWith(ctx context.Context, w *waiter) error {
	a.mu.Lock()
	if !a.overLocked(w) {
		a.mu.waiters = append(a.mu.waiters, w)
	}
	a.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
		a.mu.Lock()
		i := slices.Index(a.mu.waiters, w) // -1: it was over at the last moment
		if i >= 0 {
			a.mu.waiters = slices.Delete(a.mu.waiters, i, i+1)
		}
		a.mu.Unlock()
		if i >= 0 {
			return &errs.Error{Op: w.op, Area: a.id, Kind: errs.Timeout, Err: a.blame(ctx.Err())}
		}
	}
	if w.gone {
		return &errs.Error{Op: w.op, Area: a.id, Kind: errs.NotExist}
	}
	return w.err
}

// overLocked reports whether a wait is over, and ends it then.
func (a *Area) overLocked(w *waiter) bool {
	w.gone = a.mu.removed
	over := w.gone || w.cond()
	if !over {
		if id := w.dead(); id != 0 {
			over, w.err = true, a.errDeadLocked(w.op, id)
		} else if err := a.shortLocked(); err != nil && w.homes {
			over, w.err = true, err
		}
	}
	if over {
		close(w.done)
	}
	return over
}
