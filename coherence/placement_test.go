package coherence

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestPlacementBySnapshot: the placement changes while the file is empty, and a node that takes a snapshot of the catalog does not see that
// moment. What it had of the file is gone all the same, and it finds the extents where they live now.
func TestPlacementBySnapshot(t *testing.T) {
	testSnapshot(t, func(s *sim) {
		s.resize(0)
		s.changeRules(func(ino *dsm.Inode) { ino.Spec.Placement = "n1" })
		s.changeView(func(v *dsm.View) { v.Place(simArea, dsm.SlotHome{Primary: 1, Epoch: v.Epoch}) })
	})
}

// TestShrinkBySnapshot: a file is shrunk and grows again, and a node that takes a snapshot of the catalog sees the last size only. What
// it had of the file past the smallest size is gone all the same.
func TestShrinkBySnapshot(t *testing.T) {
	for name, change := range map[string]func(s *sim){
		"empty": func(s *sim) { s.resize(0) },
		"and new rule": func(s *sim) {
			s.resize(0)
			s.resize(8)
			s.changeRules(func(ino *dsm.Inode) { ino.Spec.Apply = dsm.ApplySync })
		},
		"twice": func(s *sim) { s.resize(0); s.resize(9 * dsm.ExtentSize); s.resize(2 * dsm.ExtentSize) },
	} {
		t.Run(name, func(t *testing.T) { testSnapshot(t, change) })
	}
}

// testSnapshot has the last of three nodes take a snapshot after a change that empties a file.
func testSnapshot(t *testing.T, change func(s *sim)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 3, 3, sums(4, dsm.ApplyArrival))
		late := s.nodes[2]
		for _, n := range s.nodes {
			n.open(true)
		}
		store := func(n *simNode, v byte) {
			for e := range int64(4) {
				if err := n.area.WriteAt(context.Background(), []byte{v, 0, 0, 0}, e*dsm.ExtentSize); err != nil {
					t.Fatal(err)
				}
			}
		}
		check := func(v byte) {
			for _, n := range s.nodes {
				for e := range dsm.PageIndex(4) {
					if got := n.area.mu.mem.Working(e * dsm.ExtentPages)[0]; got != v {
						t.Errorf("node %d, extent %d: %d, want %d", n.i, e, got, v)
					}
				}
				n.checked(t)
			}
		}
		store(s.nodes[0], 5)
		s.rested()
		check(5)
		change(s)
		s.resize(4 * dsm.ExtentSize)
		for _, n := range s.nodes[:2] {
			for n.behindCatalog() {
				n.apply()
			}
		}
		late.snapshot()
		s.rested()
		check(0)
		store(late, 7)
		s.rested()
		check(7)
	})
}
