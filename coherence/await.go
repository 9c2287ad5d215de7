package coherence

import (
	"context"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// waiter is a call that waits for the area to change.
type waiter struct {
	op      string
	cond    func() bool
	dead    func() dsm.NodeID // a home without which cond is not true, and that is not to be waited for; 0: none
	onHomes bool              // it waits for answers of homes, which wait themselves if the area is short
	few     bool              // cond and dead look at a few extents, however many the area has
	done    chan struct{}     // closed when the wait is over; nil: then is called
	then    func(error)       // with no lock held
	limit   *time.Timer       // ends the wait of then
	gone    bool              // because the area was removed
	err     error             // because of dead, or homes
}

// await returns when cond is true; or with errs.Timeout when ctx ends; or with errs.NotExist when the
// area is removed. The steps that change the area call cond, under its lock, so it must be quick and change
// nothing of the area. (Were the caller woken by each change to look itself, a publish would be woken by
// each of its acks, thousands at times.)
func (a *Area) await(ctx context.Context, op string, cond func() bool) error {
	return a.awaitWith(ctx, &waiter{op: op, cond: cond, dead: func() dsm.NodeID { return 0 }, done: make(chan struct{})})
}

// awaitHomes is await for something that homes do. It ends with an error as soon as dead names one that is not to be waited for.
// Cond is looked at first.
func (a *Area) awaitHomes(ctx context.Context, op string, cond func() bool, dead func() dsm.NodeID) error {
	return a.awaitWith(ctx, &waiter{op: op, cond: cond, dead: dead, onHomes: true, done: make(chan struct{})})
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
	return a.outcome(w)
}

// outcome returns the error of a wait that is over.
func (a *Area) outcome(w *waiter) error {
	if w.gone {
		return &errs.Error{Op: w.op, Area: a.id, Kind: errs.NotExist}
	}
	return w.err
}

// afterHomesLocked is awaitHomes for a caller that does not wait: then is called when the wait is over, by the goroutine that has taken the
// step, with no lock held. If that is not within limit, late is called before, in a step.
func (a *Area) afterHomesLocked(op string, limit time.Duration, cond func() bool, dead func() dsm.NodeID, late func(), then func(error)) {
	w := &waiter{op: op, cond: cond, dead: dead, onHomes: true, then: then}
	w.limit = time.AfterFunc(limit, func() {
		left := false
		a.step(func() {
			i := slices.Index(a.mu.waiters, w)
			if left = i >= 0; left {
				a.mu.waiters = slices.Delete(a.mu.waiters, i, i+1)
				late()
			}
		})
		if left {
			then(&errs.Error{Op: op, Area: a.id, Kind: errs.Timeout, Err: a.blame(context.DeadlineExceeded)})
		}
	})
	a.mu.waiters = append(a.mu.waiters, w)
	a.mu.wake = true // it may be over
}

// overLocked reports whether a wait is over, and ends it then.
func (a *Area) overLocked(w *waiter) bool {
	w.gone = a.mu.removed
	over := w.gone || w.cond()
	if !over {
		if id := w.dead(); id != 0 {
			over, w.err = true, a.errDeadLocked(w.op, id)
		} else if err := a.shortLocked(); err != nil && w.onHomes && !a.growingLocked() {
			over, w.err = true, err
		}
	}
	switch {
	case !over:
	case w.then != nil:
		w.limit.Stop()
		a.mu.over = append(a.mu.over, w)
	default:
		close(w.done)
	}
	return over
}
