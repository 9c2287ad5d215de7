package coherence

import (
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
	defer a.step(func() { a.mu.whole.serial, a.mu.wake = false, true })
	a.collect()
	unowned := false
	a.note(func() { unowned = a.mu.own == 0 && a.mu.replica.writers > 0 })
	if unowned { // programs had it open for writing before it became versioned
		if err := a.own(ctx); err != nil && !errs.Is(err, errs.Access) {
			return err
		}
	}
	for {
		var before, after dsm.Generation
		a.note(func() { before = a.mu.ino.Gen })
		err := a.publishRound(ctx)
		if a.note(func() { after = a.mu.ino.Gen }); err != nil || before == after {
			return err
		}
		// A shrink may have had the home refuse parts, so that they came too late for the round.
	}
}

func (a *Area) publishRound(ctx context.Context) error {
	var id dsm.RoundID
	a.step(func() {
		if w := &a.mu.whole; w.id == (dsm.RoundID{}) && a.mu.replica.subscribed && len(a.busyExtentsLocked()) > 0 {
			a.mu.versions++
			// Groups are areas of other kinds. A node of which programs had the file open for writing before it became versioned publishes, too.
			w.id = dsm.RoundID{Group: dsm.AreaID(a.node.cfg.Self), Generation: uint64(a.rowLocked(0).Epoch), Number: a.mu.versions}
		}
		id = a.mu.whole.id
	})
	if id == (dsm.RoundID{}) {
		return nil // nothing was stored
	}
	if err := a.contribute(ctx, id); err != nil {
		return err
	}
	a.step(func() { a.mu.whole.id = dsm.RoundID{} }) // the home may end it from now on; what is stored later is for another version
	return a.FinishRound(ctx, id, []dsm.NodeID{a.node.cfg.Self}, 1, true)
}

// versioned reports whether versions of the area are whole.
func (a *Area) versioned() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.versionedLocked()
}
