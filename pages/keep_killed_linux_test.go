package pages

import (
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// TestUndonePastTheEnd: a daemon is killed while the home adds to a page, and while none is there the file is cut within that page, and grows again. Nothing of what was cut off comes back.
func TestUndonePastTheEnd(t *testing.T) {
	const size, cut = dsm.PageSize, 1024
	for _, replica := range []bool{false, true} {
		t.Run(fmt.Sprint(replica), func(t *testing.T) {
			m, err := hold.Create()
			if err != nil {
				t.Fatal(err)
			}
			a, err := newTestStore(t, m).NewHeldArea(5, size)
			if err != nil {
				t.Fatal(err)
			}
			if replica {
				if err := a.BeginReplica(); err != nil {
					t.Fatal(err)
				}
				a.WorkingIsNewest()
			}
			a.BecomeHome(0)
			copy(a.Home(0), fill(3))
			a.BeginAdding(0)
			a.BeforeAdding(0)
			copy(a.Home(0), fill(4)[:10])
			left := newTestStore(t, m).Areas() // it is killed
			if len(left) != 1 {
				t.Fatalf("left: %+v", left)
			}
			var next *Area
			if replica {
				left[0].Homed = func(dsm.ExtentIndex) bool { return true }
				next, _, err = left[0].TakeBoth(mustKernel(t, dsm.MergeSum, dsm.DTypeI32, 0), size, cut)
			} else {
				next, err = left[0].Take(size, cut)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !next.Homed(0) {
				next.BecomeHome(0)
			}
			if got := next.Home(0)[2048]; got != 0 {
				t.Errorf("the home has %d past where the file was cut, want 0", got)
			}
			if got := next.Home(0)[100]; got != 3 {
				t.Errorf("the home has %d, want 3", got)
			}
		})
	}
}

// TestKilledWhenTheTwinHasGone: the replica beside a home has just caught up with it, as mergePageLocked does it, when the daemon is killed. The home has what it had merged.
func TestKilledWhenTheTwinHasGone(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprint(both), func(t *testing.T) {
			m, a, _ := newHeldReplica(t, dsm.PageSize)
			a.BecomeHome(0)
			copy(a.Working(0), fill(3))
			copy(a.Home(0), fill(3))
			a.BeforeHomeWrite(0, false)
			copy(a.Home(0), fill(4)) // the home has merged this, and acknowledged it
			a.BeginMerge(0, both, nil)
			copy(a.Working(0), fill(4))
			a.SetBase(0, fill(4)) // EndMerge is not reached
			if a.HasTwin(0) {
				t.Fatal("it has a twin")
			}
			next := goesOn(t, newTestStore(t, m), dsm.PageSize, dsm.PageSize)
			if !next.Homed(0) {
				next.BecomeHome(0)
			}
			if got := next.Home(0)[0]; got != 4 {
				t.Errorf("the home has %d; it had merged 4", got)
			}
		})
	}
}

// TestKilledWhileTheNextTakes: the daemon of a home that adds something to two pages is killed, and so is the next one, which stays the home no more, while it takes over. The base is what the replica
// had: else what others have published looks like a store of this node that puts the old values back.
func TestKilledWhileTheNextTakes(t *testing.T) {
	const size = 2 * dsm.PageSize
	m, a, _ := newHeldReplica(t, size)
	a.BecomeHome(0)
	for p := range dsm.PageIndex(2) {
		copy(a.Working(p), fill(3))
		copy(a.Home(p), fill(3))
		a.BeforeHomeWrite(p, false)
		copy(a.Home(p), fill(4))
	}
	a.BeginAdding(0)
	for p := range dsm.PageIndex(2) {
		a.BeforeAdding(p)
		copy(a.Home(p), fill(5))
	}
	left := newTestStore(t, m).Areas()
	n := 0
	left[0].Homed = func(dsm.ExtentIndex) bool {
		if n++; n == 2 {
			panic("killed")
		}
		return false
	}
	func() {
		defer func() { _ = recover() }()
		_, _, _ = left[0].TakeBoth(mustKernel(t, dsm.MergeSum, dsm.DTypeI32, 0), size, size)
		t.Error("not killed")
	}()
	left = newTestStore(t, m).Areas()
	left[0].Homed = func(dsm.ExtentIndex) bool { return false }
	next, _, err := left[0].TakeBoth(mustKernel(t, dsm.MergeSum, dsm.DTypeI32, 0), size, size)
	if err != nil {
		t.Fatal(err)
	}
	for p := range dsm.PageIndex(2) {
		if w, b := next.Working(p)[0], next.Base(p)[0]; w != 3 || b != 3 {
			t.Errorf("page %d: %d in the working copy, %d in the base; want 3", p, w, b)
		}
	}
}

// TestServedTornWhileItIsTaken is not a test of a kill: an Added note of an extent that this node is not the home of any more says nothing to the next home.
func TestAddedWithoutAHome(t *testing.T) {
	m, a, _ := newHeldReplica(t, dsm.PageSize)
	a.BecomeHome(0)
	a.BeginAdding(0)
	a.BeforeAdding(0)
	copy(a.Home(0), fill(5))
	a.Added([]AddedBy{{7, 11, 12}})
	s := newTestStore(t, m) // it is killed
	for _, x := range s.MergedOf(5) {
		x.Drop() // as resumeAmong does where this node is not the home of anything any more
	}
	if _, _, err := s.Areas()[0].TakeBoth(mustKernel(t, dsm.MergeSum, dsm.DTypeI32, 0), dsm.PageSize, dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	for _, x := range s.MergedOf(5) {
		seq, _ := x.Get()
		t.Errorf("it knows that what node %d has published up to %d is in extent %d, of which it is not the home", x.Writer(), seq, x.Extent())
	}
}

// TestManyAddInOneRound: so many nodes have parts in one round of a sum.
func TestManyAddInOneRound(t *testing.T) {
	_, a, _ := newHeldReplica(t, dsm.PageSize)
	a.BecomeHome(0)
	a.BeginAdding(0)
	a.BeforeAdding(0)
	defer func() {
		if e := recover(); e != nil {
			t.Errorf("the daemon of the home ends, and the next one does again: %v", e)
		}
	}()
	a.Added(make([]AddedBy, 200))
	a.EndAdding()
}
