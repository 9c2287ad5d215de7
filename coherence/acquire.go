package coherence

import (
	"context"
	"math"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// Acquire brings this node up to every publish that completed before. It returns when they are in the
// working copy, and the kernel has been told of them. storing says that a program which stores to the area makes
// the call. Where updates enter memory in sync calls only (apply=sync), and the node has writers, only calls with storing bring them.
func (a *Area) Acquire(ctx context.Context, storing bool) error {
	var op *acquiring
	a.step(func() {
		if storing || !a.defersLocked() {
			op = a.startAcquireLocked(storing)
		}
	})
	return a.finishAcquire(ctx, op, nil)
}

// finishAcquire waits for the acquire op, if it is not nil, then until the kernel has been told everything. If err is set it skips
// these waits, and returns err. It ends op in any case.
func (a *Area) finishAcquire(ctx context.Context, op *acquiring, err error) error {
	if err == nil && op != nil {
		err = a.awaitHomes(ctx, "acquire", func() bool { return len(op.pending) == 0 && !a.givenIsOpenLocked(op) }, a.deadInAreaLocked)
	}
	if err == nil {
		// Until the kernel has been told everything, homes get no acks and so push no more. Else this
		// might never end.
		a.step(func() {
			if a.mu.cached != nil {
				a.mu.cached.TellPunched(a.now().Add(-punchLimit))
			}
			a.drainLocked()
		})
		err = a.await(ctx, "acquire", func() bool {
			c := a.mu.cached
			if c != nil && op != nil && c.HasPaused() { // it is in memory, but a program that stores has come before the kernel was told
				op.partly, op.kept = true, a.mu.replica.round
			}
			return c == nil || c.Idle()
		})
		a.step(a.drainedLocked)
	}
	if op == nil {
		return err
	}
	var kernel *pages.Cached
	last := uint64(0)
	a.step(func() {
		a.endAcquireLocked(op)
		if op.storing && err == nil && !op.late { // else the kernel may not have been told yet, and notices are paused now
			a.broughtLocked(op)
		}
		if kernel = a.mu.cached; kernel != nil && op.storing && a.defersLocked() {
			last = kernel.LastNotice()
		}
	})
	if last == 0 {
		return err
	}
	// It waits even if ctx has ended: once the sync call is over, no notice may come between a load and a store of the program.
	gone := a.awaitNotices(context.WithoutCancel(ctx), func() bool { return a.mu.cached != kernel || kernel.DoneUpTo(last) })
	if err == nil {
		err = gone
	}
	return err
}

// startAcquireLocked sends an Acquire to all homes. With storing, updates may enter memory until endAcquireLocked.
func (a *Area) startAcquireLocked(storing bool) *acquiring {
	return a.startAcquiringLocked(&acquiring{storing: storing})
}

func (a *Area) startAcquiringLocked(op *acquiring) *acquiring {
	if op.storing {
		a.mu.replica.syncing++
		a.pauseNoticesLocked()
	}
	a.sendAcquireLocked(op)
	return op
}

func (a *Area) endAcquireLocked(op *acquiring) {
	r := &a.mu.replica
	if op.storing {
		r.syncing--
		a.pauseNoticesLocked()
	}
	delete(r.acquires, op.round)
}

// pauseNoticesLocked pauses notices of updates while updates must stay out of memory, and lets them go on otherwise.
func (a *Area) pauseNoticesLocked() {
	if a.mu.cached != nil {
		a.mu.cached.SetPaused(a.pausesUpdatesLocked())
	}
}

// Sync is fsync and msync. It publishes and acquires at the same time: the Acquire is sent after the first publishes, so a home
// handles it after these. storing is that of Acquire; a call that Acquire would ignore only publishes, and is an error if memory is older than its bound. Of a
// versioned area one without storing publishes only what is left, as PublishReleased does.
func (a *Area) Sync(ctx context.Context, storing bool) error {
	if a.versioned() {
		if err := a.publishBy(ctx, storing); err != nil {
			return err
		}
		return a.Acquire(ctx, storing)
	}
	var op *acquiring
	var stale error
	begin := func() {
		fresh, began := a.mu.replica.fresh, a.now()
		a.sawLocked(atSync, fresh, began)
		if storing || !a.defersLocked() {
			op = a.startAcquireLocked(storing)
		} else if !a.withinBoundLocked(fresh, began) {
			stale = a.errPastBoundLocked("sync", fresh, began)
		}
	}
	err := a.publish(ctx, false, nil, begin)
	if err == nil {
		err = stale
	}
	return a.finishAcquire(ctx, op, err)
}

// sendAcquireLocked sends an Acquire to all homes, with a new round. After a broken session an answer to
// the old round may still come, although pushes from before it were dropped. The new round is safe: the Subscribe that makes up for dropped pushes is sent
// before it.
func (a *Area) sendAcquireLocked(op *acquiring) {
	r := &a.mu.replica
	delete(r.acquires, op.round)
	r.round++
	op.round = r.round
	r.acquires[op.round] = op
	op.began = a.now()
	op.pending = make(map[dsm.NodeID]struct{})
	op.version, op.partly, op.kept = math.MaxUint64, false, 0
	for _, home := range a.homesLocked() {
		op.pending[home] = struct{}{}
		if f := op.finish; f != nil {
			a.sendLocked(home, &wire.Finish{Stamp: a.stampLocked(), Round: f.Round, Acquire: op.round, Nodes: f.Nodes, Writers: f.Writers})
			continue
		}
		a.sendLocked(home, &wire.Acquire{Stamp: a.stampLocked(), Round: op.round})
	}
	if op.changes = r.changes; len(op.pending) == 0 { // nor are there bytes
		a.freshenedLocked(op, true)
	}
}

func (a *Area) replicaAcquiredLocked(from dsm.NodeID, m *wire.Acquired) {
	op := a.mu.replica.acquires[m.Round]
	switch {
	case op == nil || a.awaitsAnswerOfLocked(from):
	case m.Gen < a.mu.ino.Gen: // pushes before it were as old, and refused: the home applies the catalog's entry, pushes again, then answers
		a.sendLocked(from, &wire.Acquire{Stamp: a.stampLocked(), Round: op.round})
	default:
		delete(op.pending, from)
		op.version = min(op.version, m.Upto)
		whole := len(op.pending) == 0 && !op.partly
		if whole {
			a.wholeLocked(op.version)
		}
		if len(op.pending) == 0 {
			op.late, op.changes = a.comesLateLocked(op), a.mu.replica.changes
			delete(a.mu.replica.acquires, m.Round) // it is over for the homes, and not sent again
			a.freshenedLocked(op, whole)
		}
		a.mu.wake = true
	}
}
