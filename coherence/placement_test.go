package coherence

import (
	"context"
	"fmt"
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

// TestDetourBySnapshot: as TestPlacementBySnapshot, of a file that begins anew while a home is gone.
func TestDetourBySnapshot(t *testing.T) {
	testSnapshot(t, func(s *sim) {
		s.resize(0)
		s.changeRules(func(ino *dsm.Inode) {
			v := s.lastView().Clone()
			for i := range v.Members {
				v.Members[i].Gone = v.Members[i].ID == s.rowOf(v, 0).Primary
			}
			before := v.SlotOf(simArea, ino.Spec, 0)
			ino.Spec.Detours = v.Detours(simArea, ino.Spec, 0, dsm.ExtentSize)
			if ino.Size = dsm.ExtentSize; v.SlotOf(simArea, ino.Spec, 0) == before {
				s.t.Fatal("the first extent is where it was")
			}
		})
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
		s.openAll()
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

// placedOn gives the area a slot of its own at node n, and waits until it is there.
func (s *sim) placedOn(n *simNode) {
	s.changeView(func(v *dsm.View) {
		v.Place(simArea, dsm.SlotHome{Primary: n.id, Source: s.rowOf(v, 0).Primary, Epoch: v.Epoch})
	})
	s.catchUp()
	s.calm()
	s.changeView(func(v *dsm.View) { v.OwnOf(simArea).Source = 0 })
	s.catchUp()
	s.calm()
}

// TestOpenWithoutTheFormerHome: an area that has got a slot of its own does not depend on the home of the slot that it had before.
func TestOpenWithoutTheFormerHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sums(1, dsm.ApplyArrival)
		ino.Spec.Placement = dsm.PlaceOne
		s := newHomed(t, 3, ino)
		n := s.nodes[1]
		s.nodes[0].find()
		n.open(true)
		s.calm()
		s.placedOn(n)
		if subs := s.nodes[0].area.mu.home.subs; len(subs) > 0 {
			t.Errorf("the former home has %d subscribers", len(subs))
		}
		n.reset(s.nodes[0]) // which does not answer any more
		s.rest()
		if !n.area.subscribedLocked() {
			t.Error("an open waits for a node that has nothing of the area")
		}
		s.drain()
	})
}

// TestGrowPastItsOwnSlot: an area whose first extents have got a slot of their own grows into slots at the home of the slot that they had
// before: into others than that one, to which nodes have stayed subscribed since it was that large before, and into that one itself.
func TestGrowPastItsOwnSlot(t *testing.T) {
	around := dsm.ExtentIndex(dsm.Classes[0].Slots) // comes to the first extent's slot again
	for _, extent := range []dsm.ExtentIndex{dsm.AutoExtents, around} {
		t.Run(fmt.Sprintf("extent=%d", extent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ino := dsm.Inode{Size: (dsm.AutoExtents + 1) * dsm.ExtentSize}
				if shared := ino.Spec.SlotOf(simArea, 0) == ino.Spec.SlotOf(simArea, extent); shared != (extent == around) {
					t.Fatalf("extent %d is in the slot of the first one: %v", extent, shared)
				}
				s := newHomed(t, 3, ino)
				s.openAll()
				s.calm()
				s.resized(dsm.AutoExtents * dsm.ExtentSize)
				s.placedOn(s.nodes[1])
				s.resized(int64(extent+1) * dsm.ExtentSize)
				s.calm()
				off := int64(extent) * dsm.ExtentSize
				if err := s.nodes[2].area.WriteAt(context.Background(), []byte{5}, off); err != nil {
					t.Fatal(err)
				}
				s.rested()
				for _, n := range s.nodes {
					if got := n.area.mu.mem.Working(dsm.PageIndex(off / dsm.PageSize))[0]; got != 5 {
						t.Errorf("node %d has %d, want 5", n.i, got)
					}
				}
			})
		})
	}
}

// checked has the node's area look at itself.
func (n *simNode) checked(t *testing.T) {
	t.Helper()
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	if bad := n.area.problemLocked(hot); bad != "" {
		t.Error(bad)
	}
}
