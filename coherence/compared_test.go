package coherence

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestStoreBackToTheBase: a program stores what was there before the last publish, which the home has not answered. That is a store.
func TestStoreBackToTheBase(t *testing.T) {
	s, home, n := pair(t, dsm.ApplyArrival)
	at, f, err := n.area.Attach(t.Context(), 1, true)
	if err != nil || at.Own() {
		t.Fatal(at, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	store := func(b byte) {
		n.area.mu.mem.Working(0)[0] = b
		n.area.note(func() { n.area.comparedLocked(0, dsm.PageSize) })
		publish(n)
	}
	store(1)
	store(0)
	s.drain()
	if got := home.area.mu.mem.Home(0)[0]; got != 0 {
		t.Errorf("the home has %d", got)
	}
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	if bad := n.area.problemLocked(nil); bad != "" {
		t.Error(bad)
	}
}

// TestComparedInBatches: a long mapping is compared in several steps, between which others get the lock. All that was stored in it is found.
func TestComparedInBatches(t *testing.T) {
	const extents = 5
	_, _, n := pairOf(t, sums(extents, dsm.ApplyArrival))
	_, f, err := n.area.Attach(t.Context(), 1, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	const last = extents*dsm.ExtentPages - 1
	for _, p := range []dsm.PageIndex{1, publishBatch - 1, publishBatch, last} {
		n.area.mu.mem.Working(p)[0] = 1
	}
	steps := &countedView{View: n}
	n.node.cfg.View = steps
	if _, changed := n.area.compared(dsm.PageSize, extents*dsm.ExtentSize); changed != 4 {
		t.Errorf("%d pages differ, want 4", changed)
	}
	if most := extents * dsm.ExtentPages / publishBatch; steps.looks < most {
		t.Errorf("the lock is taken %d times, want %d at least", steps.looks, most)
	}
	if _, changed := n.area.compared(2*dsm.PageSize, (publishBatch-2)*dsm.PageSize); changed != 1 {
		t.Errorf("%d pages of a batch differ, want 1", changed)
	}
}

// countedView counts how often the view is looked at, as who has taken an area's lock does first.
type countedView struct {
	View
	looks int
}

func (v *countedView) Current() *dsm.View {
	v.looks++
	return v.View.Current()
}
