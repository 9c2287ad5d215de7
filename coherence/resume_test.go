package coherence

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestKilledWhileAPageComes: the daemon is killed when the working copy has the first bytes of a page, and the base does not yet, of an area that programs store to. Both copies are as before.
func TestKilledWhileAPageComes(t *testing.T) {
	s := newSim(t, 1, 2, dsm.Inode{Size: dsm.ExtentSize})
	n := s.nodes[1]
	n.hold()
	n.open(true)
	s.drain()
	a := n.area
	a.mu.Lock()
	a.mu.mem.WorkingIsNewest()
	base := a.mu.mem.OwnBase(3)
	if err := pagetest.KilledAtStore(base, func() { a.installLocked(0, 3, bytes.Repeat([]byte{7}, dsm.PageSize), false) }); err != nil {
		t.Fatal(err)
	}
	a.mu.Unlock()
	k, err := pages.NewKeep(n.held, n.shelf)
	if err != nil {
		t.Fatal(err)
	}
	left := k.Areas()
	if len(left) != 1 || !left[0].Newest() {
		t.Fatalf("left: %+v", left)
	}
	next, _, err := left[0].TakeBoth(a.mu.kernel, dsm.ExtentSize, dsm.ExtentSize)
	if err != nil {
		t.Fatal(err)
	}
	if w, b := next.Working(3), next.Base(3); string(w) != string(b) {
		t.Errorf("%d in the working copy, %d in the base", w[0], b[0])
	}
}

// TestShrunkAroundAKillOfAReader: a file that programs of a node only read is shrunk when its daemon is killed, and grows again. Nothing of it is left for the next daemon but in the page cache, which
// has the pages of before, and drops them.
func TestShrunkAroundAKillOfAReader(t *testing.T) {
	for _, shrunk := range []int64{0, dsm.PageSize} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 2, dsm.Inode{Size: 3 * dsm.PageSize})
			home, n := s.nodes[0], s.nodes[1]
			n.hold()
			home.open(true)
			n.open(false)
			s.calm()
			n.kernel.fault(2)
			s.calm()
			if n.kernel.cache[2] == nil {
				t.Fatal("the page is not in the page cache")
			}
			s.resize(shrunk)
			home.apply()
			n.follow()
			s.resize(3 * dsm.PageSize)
			s.calm()
			if err := home.area.WriteAt(t.Context(), []byte{5}, 2*dsm.PageSize); err != nil {
				t.Fatal(err)
			}
			publish(home)
			n.kernel.bell.Store(true)
			s.calm()
			if c := n.kernel.cache[2]; c != nil && c.data[0] != 5 {
				t.Errorf("shrunk to %d: a program reads %d, want 5", shrunk, c.data[0])
			}
		})
	}
}

// TestHeldInARound: the next daemon is told that a node is in a round from before its first part is sent until the base copy has all, or until they are taken
// back.
func TestHeldInARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		n := s.nodes[1]
		m, err := hold.Create()
		if err != nil {
			t.Fatal(err)
		}
		m.Word(hold.Others).Store(1)
		n.held, n.shelf = m, hold.NewShelf()
		n.newDaemon()
		n.open(true)
		for number := range uint64(4) {
			id := dsm.RoundID{Group: 99, Generation: 1, Number: number + 1}
			if number%2 == 0 {
				put(t, n, int32(number)+1)
			}
			if m.InRound() != 0 {
				t.Error("in a round before it began")
			}
			n.ask("contribute", func(ctx context.Context) error {
				if number%2 != 0 {
					if err := accumulate(ctx, n.area, id, 0, []byte{1, 0, 0, 0}); err != nil {
						return err
					}
				}
				return n.area.Contribute(ctx, id)
			}, nil)
			s.calm()
			if m.InRound() != uint64(simArea) {
				t.Errorf("round %d: in a round of %d", number, m.InRound())
			}
			if number < 2 {
				n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, id, []dsm.NodeID{n.id}, 1, true) }, nil)
			} else {
				n.area.AbandonRound(id)
			}
			s.calm()
			if m.InRound() != 0 {
				t.Errorf("round %d: in a round when it is over", number)
			}
		}
	})
}

// TestSlotMovesWhileAnOpenEnds: the view changes just when all pages are here. The next daemon takes over what the program stores all the same.
func TestSlotMovesWhileAnOpenEnds(t *testing.T) {
	s := newSim(t, 1, 3, dsm.Inode{Size: dsm.ExtentSize})
	n := s.nodes[2]
	n.hold()
	n.open(false)
	s.drain()
	a := n.area
	a.step(func() {
		if err := a.openedLocked(true); err != nil {
			t.Fatal(err)
		}
	})
	s.drain()
	v := n.Current().Clone()
	v.Epoch++
	row := v.Row(a.slotLocked(0))
	to := dsm.NodeID(1)
	if row.Primary == to {
		to = 2
	}
	*row = dsm.SlotHome{Primary: to, Source: row.Primary, Epoch: v.Epoch}
	s.mu.Lock()
	n.view = v // the area has not looked yet
	s.mu.Unlock()
	if err := a.awaitAllHere(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !a.mu.mem.HasNewest() {
		t.Error("the open is answered, and the next daemon drops what is stored")
	}
}

// TestResidentAfterDemandIsHeld: a program opens a file while it is on demand, and then stores to it when it is resident. The next daemon has the stores.
func TestResidentAfterDemandIsHeld(t *testing.T) {
	s := newSim(t, 1, 2, dsm.Inode{Spec: dsm.Spec{Residency: dsm.ResidencyDemand}})
	n := s.nodes[1]
	n.hold()
	n.open(false)
	s.drain()
	s.changeRules(func(ino *dsm.Inode) { ino.Spec.Residency, ino.Size = dsm.ResidencyFull, dsm.ExtentSize })
	s.catchUp()
	s.drain()
	n.open(true)
	s.drain()
	if err := n.area.awaitAllHere(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !n.area.mu.mem.HasNewest() {
		t.Error("the next daemon drops what a program stores")
	}
}

// TestOpenOnDemandWaitsForNoPages: an open for writing of an area on demand does not wait for pages that come only when they are used.
func TestOpenOnDemandWaitsForNoPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1, 2, dsm.Inode{Size: dsm.ExtentSize, Spec: dsm.Spec{Residency: dsm.ResidencyDemand}})
		w, n := s.nodes[0], s.nodes[1]
		w.open(true)
		s.calm()
		if err := w.area.WriteAt(t.Context(), []byte{1}, 0); err != nil {
			t.Fatal(err)
		}
		w.ask("publish", w.area.Publish, nil)
		s.calm()
		n.hold()
		n.open(true)
		s.calm()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := n.area.awaitAllHere(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestGrowsWhileOpen: no daemon follows when a file that programs have open becomes one of which the next daemon would not have all.
func TestGrowsWhileOpen(t *testing.T) {
	s := newSim(t, 1, 2, dsm.Inode{})
	n := s.nodes[1]
	why := ""
	n.config.Unheld = func(w string) { why = w }
	n.hold()
	n.open(true)
	s.drain()
	s.changeRules(func(ino *dsm.Inode) { ino.Size = 1 })
	s.changeRules(func(ino *dsm.Inode) { ino.Size = 0 })
	s.catchUp()
	s.drain()
	if why != "" {
		t.Fatalf("no daemon follows: %s", why)
	}
	s.changeRules(func(ino *dsm.Inode) { ino.Size = mostHeld + 1 })
	s.catchUp()
	s.drain()
	if why == "" {
		t.Error("a daemon follows")
	}
}

// TestResidencyChangesWhileOpen: a program has an empty file open, which comes to be on demand, or not any more, when others store to it. What it stores then outlives the daemon.
func TestResidencyChangesWhileOpen(t *testing.T) {
	for _, onDemand := range []bool{false, true} {
		t.Run(fmt.Sprint(onDemand), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				now, then := dsm.ResidencyFull, dsm.ResidencyDemand
				if onDemand {
					now, then = then, now
				}
				s := newSim(t, 1, 2, dsm.Inode{Spec: dsm.Spec{Residency: now}})
				n := s.nodes[1]
				n.hold()
				n.find()
				n.openWriter()
				s.calm()
				s.changeRules(func(ino *dsm.Inode) { ino.Spec.Residency = then })
				s.catchUp()
				s.calm()
				s.resize(2 * dsm.PageSize)
				s.catchUp()
				s.calm()
				n.ask("write", func(ctx context.Context) error { return n.area.WriteAt(ctx, []byte{7}, dsm.PageSize) }, nil)
				s.calm()
				n.goOn()
				s.calm()
				publish(n)
				s.calm()
				if got := s.nodes[0].area; got != nil {
					t.Fatal("the home has it open")
				}
				s.nodes[0].open(false)
				s.calm()
				s.nodes[0].kernel.fault(1)
				s.calm()
				if c := s.nodes[0].kernel.cache[1]; c == nil || c.data[0] != 7 {
					t.Error("what the program has stored is lost")
				}
			})
		})
	}
}

// TestPartTakenBackBesideAPublish: a publish of float sums accounts for bytes that have the part before it in them. When that is taken back they count neither here nor for the next daemon.
func TestPartTakenBackBesideAPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sumOf(dsm.DTypeF64, dsm.ApplyArrival)
		ino.Size = dsm.PageSize
		s := newHomed(t, 2, ino)
		n := s.nodes[1]
		n.hold()
		n.open(true)
		add := func(v float64) {
			t.Helper()
			if err := n.area.WriteAt(t.Context(), binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)), 0); err != nil {
				t.Fatal(err)
			}
		}
		add(1e16)
		n.ask("contribute", func(ctx context.Context) error {
			return n.area.Contribute(ctx, dsm.RoundID{Group: 99, Generation: 1, Number: 1})
		}, nil)
		s.calm()
		add(3)
		publish(n)
		n.area.step(func() {
			x := n.area.mu.replica.extents[0]
			if len(x.parts) != 1 || x.pub == nil || x.pub.snap[0] == nil || x.pub.kept.Besides() != dsm.Range(0, 1) {
				t.Fatalf("%d parts, publish %+v", len(x.parts), x.pub)
			}
			n.area.takeBackLocked(0, x, x.parts[0])
			if x.pub.snap[0] != nil || x.pub.kept.Besides() != (dsm.PageSet{}) {
				t.Error("the next daemon takes the publish for one with the part in it")
			}
		})
	})
}

// TestResumeBeforeTheCatalogTells: an area of which the catalog has a newer entry than it has told is taken over as it is by that. A start that takes too long ends.
func TestResumeBeforeTheCatalogTells(t *testing.T) {
	s := newSim(t, 1, 2, dsm.Inode{Size: dsm.ExtentSize})
	n := s.nodes[1]
	n.hold()
	n.open(true)
	s.drain()
	if err := n.area.awaitAllHere(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.node.isKilled()
	n.newDaemon()
	n.find()
	s.mu.Lock()
	n.ino.Rev++
	n.ino.Size++
	s.mu.Unlock()
	if err := n.node.Resume(ended, false, false); !errs.Is(err, errs.Timeout) {
		t.Errorf("it ends with %v", err)
	}
	if err := n.node.Resume(t.Context(), false, false); err != nil {
		t.Fatal(err)
	}
	if a := n.area; !a.mu.replica.subscribed || a.mu.ino != n.ino || a.mu.mem.Size() != n.ino.Size {
		t.Errorf("subscribed %v, %d bytes, want %d", a.mu.replica.subscribed, a.mu.mem.Size(), n.ino.Size)
	}
}

// TestTruncatedBehindAKill: what was sent of an extent is truncated while no daemon is there. The next one sends it no more.
func TestTruncatedBehindAKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, n := heldBesideHome(t, dsm.Inode{Size: 2 * dsm.ExtentSize})
		if err := n.area.WriteAt(t.Context(), []byte{7}, dsm.ExtentSize); err != nil {
			t.Fatal(err)
		}
		publish(n)
		n.node.isKilled()
		s.resize(dsm.ExtentSize)
		n.follow()
		if r := &n.area.mu.replica; r.underWay > 0 || len(r.busy.extents) > 0 {
			t.Errorf("%d bytes, and %d extents, are to be published of what is gone", r.underWay, len(r.busy.extents))
		}
		s.calm()
	})
}

// TestNotAllHereBeforeTheAnswer: a node that waits for the answer of a home has not all pages for certain: the home may have newer ones.
func TestNotAllHereBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, n := heldBesideHome(t, dsm.Inode{Size: dsm.ExtentSize})
		a := n.area
		a.step(func() {
			if !a.allHereLocked() {
				t.Error("not all is here")
			}
			a.replicaResetLocked(s.nodes[0].id)
			if len(a.mu.replica.subs) == 0 || a.allHereLocked() {
				t.Errorf("all is here, and %d subscriptions are not answered", len(a.mu.replica.subs))
			}
		})
		s.calm()
	})
}
