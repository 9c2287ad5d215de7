package pages

import (
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// goesOn is nextDaemon for one that stays the home of all.
func goesOn(t *testing.T, k *Keep, size, least int64) *Area {
	t.Helper()
	left := k.Areas()
	if len(left) != 1 || !left[0].Newest() {
		t.Fatalf("left: %+v", left)
	}
	left[0].Homed = func(dsm.ExtentIndex) bool { return true }
	a, _, err := left[0].TakeBoth(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), size, least)
	if err != nil {
		t.Fatal(err)
	}
	ResumeCached(a, true, least)
	return a
}

// TestTwinPastTheEnd: while no daemon is there the file is cut within a page of which the home has newer bytes than the replica, and grows again.
func TestTwinPastTheEnd(t *testing.T) {
	const size = 2 * dsm.PageSize
	m, a, _ := newHeldReplica(t, size)
	a.BecomeHome(0)
	copy(a.Working(1), fill(3))
	copy(a.Home(1), fill(3))
	a.BeforeHomeWrite(1, false)
	copy(a.Home(1), fill(4))
	next := goesOn(t, newTestStore(t, m), size, dsm.PageSize+100)
	if w, b, h := next.Working(1)[200], next.Base(1)[200], next.Home(1)[200]; w != 0 || b != 0 || h != 0 {
		t.Errorf("past the end of before: %d in the working copy, %d in the base, %d at the home; want zeroes", w, b, h)
	}
}

// TestNoteBesideATwin: the replica changes its base of a page, of which the home has newer bytes, when the daemon is killed. The home keeps these.
func TestNoteBesideATwin(t *testing.T) {
	for _, both := range []bool{false, true} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprint(both, shared), func(t *testing.T) {
				m, a, _ := newHeldReplica(t, dsm.PageSize)
				a.BecomeHome(0)
				copy(a.Working(0), fill(3))
				copy(a.Home(0), fill(3))
				a.BeforeHomeWrite(0, false)
				copy(a.Home(0), fill(4))
				a.ledger.shared = shared
				a.BeginMerge(0, both, nil)
				if shared && both {
					a.MergeShared(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), 0, nil, fill(3), fill(9), fill(9))
				}
				next := goesOn(t, newTestStore(t, m), dsm.PageSize, dsm.PageSize)
				if got := next.Home(0)[9]; got != 4 {
					t.Errorf("the home has %d, want 4", got)
				}
			})
		}
	}
}
