package coherence

import (
	"context"
	"fmt"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// How old memory is: everything that was published before the last acquire began which is over is in it (replica.fresh). A bound on
// that (user.dsm.staleness) is a promise to reads: what was published longer ago than the bound before a read began is in what it returns.
// So a read needs no clock but this node's, and one acquire is always enough for it.
//
// While programs have the area open the node acquires by itself when half of the bound has gone by. So reads have to
// wait only where homes do not answer, and what programs load from mappings, which nobody can delay, is hardly ever older than the bound.
//
// Where updates enter memory in sync calls only (apply=sync), and the node has writers, nothing but their syncs makes it newer. There a read(2) past the
// bound is an error, and so is a sync that may not bring updates. A fault of a mapping is not: it would end a program that computes for longer than the bound.

// freshening is the timer of the acquires in the background.
type freshening struct {
	timer *time.Timer // nil before the first
	set   bool
	late  bool // memory is older than the bound, and the log says so
}

// leastLook is the least time between two looks at how old memory is.
const leastLook = 250 * time.Microsecond

// withinBoundLocked reports whether memory that has everything published before fresh is new enough for a call that began at a time.
func (a *Area) withinBoundLocked(fresh, began time.Time) bool {
	bound := a.mu.ino.Spec.Staleness
	return bound == 0 || !fresh.Before(began.Add(-bound))
}

// freshen brings memory up to date for a read that began at a time. The caller looks again: the area may have changed meanwhile.
func (a *Area) freshen(ctx context.Context, began time.Time) error {
	var op *acquiring
	bound := time.Duration(0)
	a.step(func() {
		bound = a.mu.ino.Spec.Staleness
		a.mu.replica.freshening++
		op = a.startFresheningLocked()
	})
	err := a.awaitHomes(ctx, "acquire", func() bool {
		return a.mu.replica.refresh != op || a.withinBoundLocked(a.mu.replica.fresh, began)
	}, a.deadInAreaLocked)
	a.step(func() { a.mu.replica.freshening = max(a.mu.replica.freshening-1, 0) })
	if err == nil {
		return nil
	}
	return &errs.Error{Op: "read", Area: a.id, Kind: errs.KindOf(err),
		Err: fmt.Errorf("what is here may lack what was published more than %v ago, which is the bound (user.dsm.staleness): %w", bound, err)}
}

// errPastBoundLocked is the error of a call past the bound that may not bring updates.
func (a *Area) errPastBoundLocked(op string, fresh, began time.Time) error {
	return errs.E(errs.Unavailable, op, "area %d is %s behind, more than the bound of %v (user.dsm.staleness), and only syncs of programs that store bring updates in (user.dsm.apply)",
		a.id, ageText(fresh, began), a.mu.ino.Spec.Staleness)
}

// startFresheningLocked starts an acquire that nobody waits for in a call of his own, unless one is under way.
func (a *Area) startFresheningLocked() *acquiring {
	r := &a.mu.replica
	op := r.refresh
	if op == nil {
		op = new(acquiring)
		r.refresh = op
		a.startAcquiringLocked(op)
	}
	return op
}

// homesAddedLocked follows a change of the size. Homes that were none before nobody has asked, and others may have published to them what came
// with the new size before this node heard of it. So of memory as a whole nothing is known until they are asked.
// covering is what coveringLocked was before.
func (a *Area) homesAddedLocked(covering int) {
	r := &a.mu.replica
	if a.coveringLocked() > covering && len(a.homesLocked()) > len(a.homesOfLocked(covering)) {
		r.fresh, r.whole = time.Time{}, 0
		a.acquireAgainLocked()
	} else if r.refresh != nil {
		a.sendAcquireLocked(r.refresh)
	}
}

// freshenedLocked follows an acquire that all homes have answered. whole says that everything is in memory.
func (a *Area) freshenedLocked(op *acquiring, whole bool) {
	r := &a.mu.replica
	if whole && op.began.After(r.fresh) {
		r.fresh = op.began
	}
	if op == r.refresh {
		a.endAcquireLocked(op)
		r.refresh = nil
	}
	if f := &a.mu.freshening; f.late && a.withinBoundLocked(r.fresh, a.now()) {
		f.late = false
		a.node.cfg.Log.Info("memory is within its bound again", "area", a.id)
	}
}

// keepFreshLocked sets the timer, if the area has a bound and a program has it open.
func (a *Area) keepFreshLocked() {
	f, r, bound := &a.mu.freshening, &a.mu.replica, a.mu.ino.Spec.Staleness
	if f.set || bound == 0 || r.opens == 0 {
		return
	}
	f.set = true
	d := bound / 2
	if r.refresh == nil && !a.defersLocked() {
		d = max(d-a.now().Sub(r.fresh), bound/8)
	}
	d = max(d, leastLook)
	if f.timer == nil {
		f.timer = time.AfterFunc(d, func() { a.step(a.freshenLocked) })
		return
	}
	f.timer.Reset(d)
}

// freshenLocked is what the timer does.
func (a *Area) freshenLocked() {
	f, r, bound := &a.mu.freshening, &a.mu.replica, a.mu.ino.Spec.Staleness
	f.set = false
	if bound == 0 || r.opens == 0 {
		f.late = false
		return
	}
	switch age := a.now().Sub(r.fresh); {
	case a.defersLocked():
	case r.refresh == nil && age >= bound/2:
		a.startFresheningLocked()
	case age > bound && !r.fresh.IsZero() && !f.late: // else it is being opened
		f.late = true
		a.node.cfg.Log.Warn("memory is older than its bound: a home does not answer", "area", a.id, "bound", bound, "age", ageText(r.fresh, a.now()))
	}
	a.keepFreshLocked()
}

// sawLocked counts how old memory was for a call that began at a time.
func (a *Area) sawLocked(in func(*ages) *histogram, fresh, began time.Time) {
	own := a.ages.Load()
	if own == nil {
		own = new(ages)
		a.ages.Store(own)
	}
	in(own).add(age(fresh, began))
	in(&a.node.ages).add(age(fresh, began))
}

// maxAge stands for memory of which nothing is known.
const maxAge = time.Duration(1<<63 - 1)

// age is how far memory is behind at a time.
func age(fresh, at time.Time) time.Duration {
	if fresh.IsZero() {
		return maxAge
	}
	return max(at.Sub(fresh), 0)
}

func ageText(fresh, at time.Time) string {
	if fresh.IsZero() {
		return "nobody knows how far"
	}
	return age(fresh, at).Round(time.Millisecond).String()
}

// Staleness returns how far the area's memory may be behind what was published; ok is false if nothing is known.
func (a *Area) Staleness() (d time.Duration, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fresh := a.mu.replica.fresh
	return age(fresh, a.now()), !fresh.IsZero()
}

// Ages returns the histograms of the area: those of their figures that are not 0.
func (a *Area) Ages() []Stat {
	if s := a.ages.Load(); s != nil {
		return s.stats(false)
	}
	return nil
}
