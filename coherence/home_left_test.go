package coherence

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// goOn kills the daemon of a home and has another one follow that goes on as the home.
func (n *simNode) goOn() {
	s := n.sim
	s.t.Helper()
	n.node.isKilled()
	s.endSessions(n)
	n.newDaemon()
	s.changeView(func(v *dsm.View) {
		if !s.goesBack(v, n) {
			s.t.Fatal("it cannot go on")
		}
	})
	if n.between != nil {
		n.between()
	}
	s.setAway(n, false)
	n.fenced.Store(false)
	n.look()
	n.area = nil
	if err := n.node.Resume(s.t.Context(), false, false); err != nil {
		s.t.Fatal(err)
	}
	n.node.Reset()
	if n.reader || n.writer != nil {
		a, err := n.node.Reopen(s.t.Context(), simArea, n.writer != nil)
		if err != nil {
			s.t.Fatal(err)
		}
		n.area = a
	}
	n.find()
	n.node.Resumed()
}

// heldHome is a held home with two other nodes, all of which have the area open for writing.
func heldHome(t *testing.T, ino dsm.Inode) (s *sim, home, x, y *simNode) {
	s = newHomed(t, 3, ino)
	home, x, y = s.nodes[0], s.nodes[1], s.nodes[2]
	home.hold()
	for _, n := range s.nodes {
		n.open(true)
	}
	s.calm()
	home.area.step(func() { home.area.mu.mem.WorkingIsNewest() })
	home.node.keepServed()
	s.calm()
	return s, home, x, y
}

func byteAt(t *testing.T, n *simNode, off int64) byte {
	t.Helper()
	var b [1]byte
	if _, err := n.area.ReadAt(t.Context(), b[:], off); err != nil {
		t.Fatal(err)
	}
	return b[0]
}

// TestKilledWhileThePageOfAHomeFollows: the replica beside the home is just taking a push in, when the home has merged a later publish of another node, and has acknowledged it.
func TestKilledWhileThePageOfAHomeFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, x, y := heldHome(t, dsm.Inode{Size: dsm.PageSize})
		put(t, x, 1)
		publish(x)
		s.calm()
		a := home.area
		a.mu.Lock() // the home merges 2, as homePublishLocked does; x has been told
		a.mu.mem.BeforeHomeWrite(0, false)
		copy(a.mu.mem.Home(0), []byte{2})
		// The replica is taking in what was pushed before that, as mergePageLocked does it, when the daemon is killed.
		a.mergesLocked(0, a.extentLocked(0), 0, true)
		a.mu.mem.Working(0)[0] = 9
		a.mu.Unlock()
		time.Sleep(time.Second) // until the next daemon is there
		home.goOn()
		home.area.mu.Lock()
		if got := home.area.mu.mem.Home(0)[0]; got != 2 {
			t.Errorf("the home has %d; it had merged 2", got)
		}
		home.area.mu.Unlock()
		s.calm()
		for _, n := range []*simNode{home, x, y} {
			if got := byteAt(t, n, 0); got != 2 {
				t.Errorf("node %d reads %d, want 2", n.i, got)
			}
		}
	})
}

// TestClockOfTheNextDaemonIsBehind: the clock of the next daemon is behind the newest version of before.
func TestClockOfTheNextDaemonIsBehind(t *testing.T) {
	for _, behind := range []time.Duration{0, time.Hour} {
		t.Run(behind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, home, x, y := heldHome(t, dsm.Inode{Size: dsm.PageSize})
				home.skew += behind
				put(t, x, 1)
				publish(x)
				s.calm()
				if got := byteAt(t, y, 0); got != 1 {
					t.Fatalf("y has %d", got)
				}
				// The home merges 2 and acks it; y has not got it when the daemon is killed.
				put(t, x, 2)
				publish(x)
				xh, hx, hy := link{x.i, home.i}, link{home.i, x.i}, link{home.i, y.i}
				s.rest()
				for len(s.queue(xh)) > 0 {
					s.deliverOn(xh)
					s.rest()
				}
				home.area.mu.Lock()
				merged := home.area.mu.mem.Home(0)[0]
				home.area.mu.Unlock()
				if merged != 2 || len(s.queue(hy)) == 0 {
					t.Fatalf("merged %d, %d to y", merged, len(s.queue(hy)))
				}
				for len(s.queue(hx)) > 0 {
					s.deliverOn(hx)
					s.rest()
				}
				time.Sleep(time.Second) // the next daemon takes a while
				home.skew -= behind
				home.goOn()
				s.calm()
				if got := byteAt(t, y, 0); got != 2 {
					t.Errorf("clock behind by %v: y reads %d for good, want 2", behind, got)
				}
				if got := byteAt(t, home, 0); got != 2 {
					t.Errorf("clock behind by %v: the home reads %d, want 2", behind, got)
				}
			})
		})
	}
}

// TestKilledWhileItsOwnSumIsAnswered: the node beside the home takes the answer to its own sum in, which the home has merged, when the daemon is killed.
func TestKilledWhileItsOwnSumIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sumOf(dsm.DTypeF64, dsm.ApplyArrival)
		ino.Size = dsm.PageSize
		s, home, x, _ := heldHome(t, ino)
		set := func(v float64) {
			t.Helper()
			if err := home.area.WriteAt(t.Context(), binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)), 0); err != nil {
				t.Fatal(err)
			}
		}
		is := func(n *simNode) float64 {
			return math.Float64frombits(binary.LittleEndian.Uint64(n.area.mu.mem.Working(0)))
		}
		set(1e16)
		publish(home)
		s.calm()
		set(0.1)
		a := home.area
		a.mu.Lock()
		if err := pagetest.KilledAtStore(a.mu.mem.Working(0), func() { a.requestPublishLocked(); a.localLocked() }); err != nil {
			t.Fatal(err)
		}
		if got := math.Float64frombits(binary.LittleEndian.Uint64(a.mu.mem.Home(0))); got != 0 && got != 0.1 {
			t.Fatalf("the home has %v", got)
		}
		a.mu.Unlock()
		time.Sleep(time.Second) // until the next daemon is there
		home.goOn()
		s.calm()
		if here, there := is(home), is(x); here > 1 || there > 1 {
			t.Errorf("the node of the home has %v, another %v; want 0.1 or 0, as the sum is rounded", here, there)
		}
	})
}

// TestViewsToldOutOfOrder: the catalog tells of two views, one right after the other. What the next daemon knows of the slots is by the last one.
func TestViewsToldOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, _, _ := heldHome(t, dsm.Inode{Size: dsm.PageSize})
		wrong := 0
		for range 100 {
			var views []*dsm.View
			for range 2 { // in the second one the home's slots have a new epoch, as after another node of these rows has died
				s.changeView(func(v *dsm.View) {
					for _, row := range v.Rows() {
						row.Epoch, row.Had = v.Epoch, v.Epoch
					}
				})
				views = append(views, s.lastView())
			}
			s.mu.Lock()
			home.view = views[1]
			s.mu.Unlock()
			for _, v := range views { // as catalog.applied
				home.node.ViewChanged(v)
			}
			synctest.Wait()
			for _, e := range home.node.cfg.Store.Served() {
				if e.Since != views[1].Epoch {
					wrong++
					break
				}
			}
		}
		if wrong > 0 {
			t.Errorf("%d of 100 times the next daemon would not go on: what it is told is older than the view", wrong)
		}
	})
}

// TestZeroesOfALeaver: a node has published zeroes, and has left for good. A node that has not heard of that yet still does when the home's daemon was killed.
func TestZeroesOfALeaver(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprint(leaves), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, home, y, x := heldHome(t, dsm.Inode{Size: dsm.PageSize})
				put(t, x, 1)
				publish(x)
				s.calm()
				if got := byteAt(t, y, 0); got != 1 {
					t.Fatalf("y has %d", got)
				}
				put(t, x, 0)
				publish(x)
				xh, hx, hh := link{x.i, home.i}, link{home.i, x.i}, link{home.i, home.i}
				for range 10 {
					s.rest()
					for _, l := range []link{xh, hx, hh} {
						s.deliverAll(l)
					}
				}
				time.Sleep(time.Second)
				if leaves {
					x.area.Close(true)
					s.changeView(func(v *dsm.View) { v.Members = v.Members[:2] })
					for home.behindCatalog() {
						home.apply()
					}
					s.rest()
				}
				home.goOn()
				for range 100 {
					s.rest()
					s.deliverAll(link{home.i, y.i})
					s.deliverAll(link{y.i, home.i})
					for y.behindCatalog() {
						y.apply()
					}
				}
				if h, got := byteAt(t, home, 0), byteAt(t, y, 0); h != 0 || got != 0 {
					t.Errorf("the node of the home reads %d, y %d for good, want 0", h, got)
				}
			})
		})
	}
}

// TestCutBesideATwin: a file of sums is cut, and grows again, while the home's daemon is killed, and its replica beside it was behind. What was cut off does not count.
func TestCutBesideATwin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sumOf(dsm.DTypeI32, dsm.ApplyArrival)
		ino.Size = 4096
		s, home, x, y := heldHome(t, ino)
		five := func(n *simNode, v byte) {
			t.Helper()
			if err := n.area.WriteAt(t.Context(), []byte{v, 0, 0, 0}, 2048); err != nil {
				t.Fatal(err)
			}
		}
		five(x, 5)
		publish(x)
		s.calm()
		a := home.area
		a.mu.Lock() // the home merges 2 more, which its replica has not taken in
		a.mu.mem.BeforeHomeWrite(0, false)
		a.mu.mem.Home(0)[2048] = 7
		a.mu.Unlock()
		time.Sleep(time.Second)
		home.node.isKilled()
		s.resize(1024)
		s.resize(4096)
		home.goOn()
		s.calm()
		for range 5 {
			publish(home)
			s.calm()
		}
		for _, n := range []*simNode{home, x, y} {
			if got := int32(binary.LittleEndian.Uint32(n.area.mu.mem.Working(0)[2048:])); got != 0 {
				t.Errorf("node %d reads %d, want 0", n.i, got)
			}
		}
	})
}

// TestNoConflictsWithoutAnAbsence: a program has stored to what another node has published since, and has not published that yet, when the home's daemon is killed. Nobody was cut off: the program's
// store is the last one, and there is no conflict.
func TestNoConflictsWithoutAnAbsence(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint(killed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, home, x, y := heldHome(t, dsm.Inode{Size: dsm.PageSize})
				put(t, x, 5)
				put(t, y, 7)
				publish(y)
				for range 10 {
					s.rest()
					s.deliverAll(link{y.i, home.i})
					s.rest()
					s.deliverAll(link{home.i, y.i})
				}
				time.Sleep(time.Second)
				if killed {
					home.goOn()
				}
				s.calm()
				publish(x)
				s.calm()
				for _, n := range s.nodes {
					if got := byteAt(t, n, 0); got != 5 {
						t.Errorf("node %d reads %d, want 5", n.i, got)
					}
				}
				if found := x.node.ListConflicts(&wire.ListConflicts{Area: simArea}); len(found.List) > 0 {
					t.Errorf("conflicts: %+v", found.List)
				}
			})
		})
	}
}

// TestRoundAbandonedAroundAKill: a part of a round is on its way when the home's daemon is killed, and then the round is given up. What was stored is published.
func TestRoundAbandonedAroundAKill(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint(killed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, home, x, y := heldHome(t, dsm.Inode{Size: dsm.PageSize})
				put(t, x, 5)
				x.ask("contribute", func(ctx context.Context) error { return x.area.Contribute(ctx, firstRound) }, nil)
				s.rest()
				time.Sleep(time.Second)
				if killed {
					home.goOn()
				}
				for _, q := range s.requests {
					q.giveUp()
				}
				s.rest()
				x.area.AbandonRound(firstRound)
				s.calm()
				publish(x)
				s.calm()
				if x.inRound() {
					t.Error("the round is given up, and the node is in it for good")
				}
				for _, n := range []*simNode{home, x, y} {
					if got := byteAt(t, n, 0); got != 5 {
						t.Errorf("node %d reads %d, want 5", n.i, got)
					}
				}
			})
		})
	}
}

// TestVersionsWithoutAReplica: the owner's daemon is killed when a truncation by another node changes the published bytes, and no program of its node has the file open. Others can read it afterwards.
func TestVersionsWithoutAReplica(t *testing.T) {
	for _, when := range []string{"not killed", "killed", "halved"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := ownCase{newSim(t, 1, 3, dsm.Inode{Size: simSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned}})}
				home, x := c.nodes[0], c.nodes[1]
				home.hold()
				home.find()
				if err := c.opens(home); err != nil {
					t.Fatal(err)
				}
				c.publishes(home, 0, 1)
				home.area.Close(true)
				for range 3 {
					home.area.expire()
					c.calm()
				}
				a := home.area
				a.mu.Lock()
				if a.mu.replica.subscribed || !a.ownHomeLocked() {
					t.Fatalf("subscribed %v, home %v", a.mu.replica.subscribed, a.ownHomeLocked())
				}
				if when == "halved" {
					a.mu.mem.IsChanging() // as shrinkVersionsLocked does it
				}
				a.mu.Unlock()
				home.node.keepServed()
				time.Sleep(time.Second)
				if when != "not killed" {
					home.goOn()
				}
				c.calm()
				time.Sleep(time.Minute)
				c.calm()
				x.find()
				x.openReader()
				c.calm()
				v, err := x.area.PinVersion(0)
				if err != nil {
					t.Fatalf("nobody can read it: %v", err)
				}
				if got := x.byteOf(v.Version, 0); got != "1" {
					t.Errorf("x reads %s of %+v", got, v)
				}
			})
		})
	}
}

// TestKilledWhileAHomeAdds: the daemon of a home is killed when it has added half of a publish. The node that has published sends it again, and it counts once.
func TestKilledWhileAHomeAdds(t *testing.T) {
	for at := range dsm.PageIndex(3) {
		synctest.Test(t, func(t *testing.T) {
			ino := sumOf(dsm.DTypeI32, dsm.ApplyArrival)
			ino.Size = 3 * dsm.PageSize
			s, home, x, y := heldHome(t, ino)
			add := func() {
				t.Helper()
				for p := range int64(3) {
					if err := x.area.WriteAt(t.Context(), binary.LittleEndian.AppendUint32(nil, uint32(x.at(p)+1)), p*dsm.PageSize); err != nil {
						t.Fatal(err)
					}
				}
				publish(x)
			}
			add()
			s.calm()
			add()
			s.rest()
			xh := link{x.i, home.i}
			for len(s.queue(xh)) > 0 {
				m, ok := s.queue(xh)[0].msg.(*wire.Publish)
				if !ok {
					s.deliverOn(xh)
					continue
				}
				f := s.take(xh)
				a := home.area
				a.mu.Lock()
				err := pagetest.KilledAtStore(a.mu.mem.Home(at), func() { _ = a.homePublishLocked(x.id, m, f.payload) })
				a.mu.Unlock()
				if err != nil {
					t.Fatal(err)
				}
				break
			}
			time.Sleep(time.Second) // until the next daemon is there
			home.goOn()
			s.calm()
			for _, n := range []*simNode{home, x, y} {
				for p := range int64(3) {
					if got := n.at(p); got != 2 {
						t.Errorf("killed in page %d: node %d has %d in page %d, want 2", at, n.i, got, p)
					}
				}
			}
		})
	}
}

// at returns the first number of a page.
func (n *simNode) at(p int64) int32 {
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	return int32(binary.LittleEndian.Uint32(n.area.mu.mem.Working(dsm.PageIndex(p))))
}
