package coherence

import (
	"cmp"
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// publishVersion makes one version of all that programs of this node have stored. It is a round of one writer (round.go): the home keeps the parts
// until it has all. One that did not end before its deadline goes on with the next call: nothing of it is ever published alone.
func (a *Area) publishVersion(ctx context.Context) error {
	for mine := false; !mine; {
		a.step(func() {
			if mine = !a.mu.whole.serial; mine {
				a.mu.whole.serial = true
			}
		})
		if !mine {
			if err := a.await(ctx, "publish", func() bool { return !a.mu.whole.serial }); err != nil {
				return err
			}
		}
	}
	defer a.step(a.versionPublishedLocked)
	a.collect()
	unowned, killed, forfeits := false, false, uint8(0)
	a.note(func() {
		forfeits, unowned = a.mu.owning.forfeits, a.mu.own == 0 && a.mu.replica.writers > 0
		killed = a.mu.whole.killed && !a.mu.whole.halved // else the program was publishing when the daemon was killed, too
	})
	if killed {
		return a.takeBackLeft(ctx)
	}
	if unowned { // programs had it open for writing before it became versioned
		if err := a.own(ctx); err != nil && !errs.Is(err, errs.Access) {
			return err
		}
	}
	err := a.publishOwned(ctx)
	a.step(func() { err = cmp.Or(a.errFencedLocked(forfeits), err) })
	return err
}

// publishOwned publishes what was found, once this node owns the area, and again if that has changed before the owner had all.
func (a *Area) publishOwned(ctx context.Context) error {
	for {
		if err := a.ownAgain(ctx); err != nil {
			return err
		}
		var before, now uint8
		ousted := false
		a.note(func() { before = a.mu.owning.fences })
		err := a.publishRounds(ctx)
		a.note(func() { now, ousted = a.mu.owning.fences, a.ownedElsewhereLocked() })
		switch {
		case now != before: // the round was given up
		case err != nil || !ousted:
			return err
		}
	}
}

// versionPublishedLocked lets the next publishVersion begin.
func (a *Area) versionPublishedLocked() { a.mu.whole.serial, a.mu.wake = false, true }

// publishRounds publishes what was found, by publishRound, and again for as long as a shrink may have had the home refuse parts, so that they came too late for the round.
func (a *Area) publishRounds(ctx context.Context) error {
	for {
		var before dsm.Generation
		a.note(func() { before = a.mu.ino.Gen })
		if err := a.publishRound(ctx); err != nil || !a.changedSince(before) {
			return err
		}
	}
}

func (a *Area) changedSince(gen dsm.Generation) (changed bool) {
	a.note(func() { changed = a.mu.ino.Gen != gen })
	return changed
}

func (a *Area) publishRound(ctx context.Context) error {
	var id dsm.RoundID
	var op *acquiring
	here, refused := false, error(nil)
	a.step(func() {
		if refused = a.ownerRefusedLocked(); refused != nil { // it has come since ownAgain
			return
		}
		if op, here = a.versionHereLocked(); here {
			return
		}
		if id = a.versionIDLocked(); id == (dsm.RoundID{}) && a.mu.whole.halved { // what it was to have has been stored back
			a.versionOfShrinkLocked(a.node.cfg.Self)
		}
	})
	switch {
	case refused != nil:
		return refused
	case here:
		return a.finishAcquire(ctx, op, nil)
	case id == (dsm.RoundID{}):
		return nil // nothing was stored
	}
	if err := a.contributeFound(ctx, id); err != nil {
		return err
	}
	a.step(func() { op = a.startVersionLocked(id) })
	return a.finishRound(ctx, op)
}

// versionIDLocked returns the round of the version that is being published, and begins one if something was stored.
func (a *Area) versionIDLocked() dsm.RoundID {
	if w := &a.mu.whole; w.id == (dsm.RoundID{}) && a.mu.replica.subscribed && len(a.busyExtentsLocked()) > 0 {
		a.mu.versions++
		// Groups are areas of other kinds.
		w.id = dsm.RoundID{Group: dsm.AreaID(a.node.cfg.Self), Generation: uint64(a.rowLocked(0).Epoch), Number: a.node.cfg.First + a.mu.versions}
	}
	return a.mu.whole.id
}

// startVersionLocked has the home end the round of a version, of which it has all. What is stored from now on is for another version.
func (a *Area) startVersionLocked(id dsm.RoundID) *acquiring {
	a.mu.whole.id = dsm.RoundID{}
	return a.startFinishLocked(id, []dsm.NodeID{a.node.cfg.Self}, 1, true)
}

// versionNowLocked is publishVersion in one step, as far as it comes without waiting. If rest is not nil, the caller has a goroutine call it, which does what is
// left; else it is over, with err. The home is here, so nothing is left if there is no backup to wait for, and no notice to the kernel.
func (a *Area) versionNowLocked() (rest func(context.Context) error, err error) {
	if op, done := a.versionHereLocked(); done {
		return a.acquiredNowLocked(op)
	}
	id := a.versionIDLocked()
	if id == (dsm.RoundID{}) {
		return nil, nil // nothing was stored
	}
	a.mu.whole.serial = true
	gen, fences, forfeits, c := a.mu.ino.Gen, a.mu.owning.fences, a.mu.owning.forfeits, a.contributionLocked(id)
	restOf := func(ctx context.Context, op *acquiring) (err error) {
		defer a.step(a.versionPublishedLocked)
		again := true
		if op != nil {
			err = a.finishRound(ctx, op)
			a.note(func() {
				if a.mu.owning.fences != fences {
					err = nil // it was refused, or given up
				} else {
					again = a.mu.ino.Gen != gen
				}
			})
		}
		if again && err == nil {
			err = a.publishOwned(ctx)
		}
		a.step(func() { err = cmp.Or(a.errFencedLocked(forfeits), err) })
		return err
	}
	a.contributeLocked(c)
	for a.localLocked(); a.markLocked(); {
		a.localLocked()
	}
	if !c.countedLocked() {
		return func(ctx context.Context) error { return restOf(ctx, nil) }, nil
	}
	op := a.startVersionLocked(id)
	a.localLocked()
	a.drainLocked()
	idle := a.mu.cached.Idle()
	a.drainedLocked()
	if len(op.pending) > 0 || !idle {
		return func(ctx context.Context) error { return restOf(ctx, op) }, nil
	}
	a.endAcquireLocked(op)
	a.leaveRoundLocked(op)
	err = a.roundErrorLocked(op, nil)
	a.versionPublishedLocked()
	return nil, err
}

// versionsBrieflyLocked reports whether versionNowLocked may be called: the area is whole here, is owned by this node, and nothing else makes a version of it.
func (a *Area) versionsBrieflyLocked() bool {
	return a.ownedHereLocked() && !a.oustedLocked() && !a.mu.owning.lost && !a.mu.owning.late && !a.mu.whole.serial && !a.mu.whole.halved
}

// versioned reports whether versions of the area are whole.
func (a *Area) versioned() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.versionedLocked()
}
