package coherence

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages"
)

var errNoMemory = errors.New("no memory")

// TestBackAsABackup: a slot is handed over, and its source is a backup in sync of the new home. That has all, and acknowledges a publish when the backup has it, too. Then it dies before the catalog has heard that
// the slot has arrived. The source, which has all as a backup, becomes the home again. Its daemon is killed before it has taken over: what it has in the Keep is from before the handover, and must not count as all.
func TestBackAsABackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, dsm.Inode{Size: dsm.PageSize})
		home, x, y := s.nodes[0], s.nodes[1], s.nodes[2]
		home.hold()
		for _, n := range []*simNode{home, x} {
			n.open(true)
		}
		s.calm()
		home.area.step(func() { home.area.mu.mem.WorkingIsNewest() })
		home.node.keepServed()
		put(t, x, 1)
		publish(x)
		s.calm()
		home.area.Close(false) // no program has it open at the source
		home.area.Close(true)
		home.reader, home.writer = false, nil
		for range 3 {
			s.calm()
			home.area.expire()
		}
		s.changeView(func(v *dsm.View) {
			row := s.rowOf(v, 0)
			*row = row.MovedTo(v, 2, y.id)
		})
		s.taker = y
		move := func() {
			for range 10 {
				s.rest()
				for _, n := range s.nodes {
					for n.behindCatalog() {
						n.apply()
					}
				}
				for i := range s.nodes {
					for j := range s.nodes {
						if i != j {
							s.deliverAll(link{i, j})
						}
					}
				}
			}
		}
		move()
		put(t, x, 2)
		publish(x)
		move()
		x.area.mu.Lock()
		acked := !x.area.extentLocked(0).publishing()
		x.area.mu.Unlock()
		if row := s.rowOf(s.lastView(), 0); !acked || row.Source != home.id {
			t.Fatalf("acknowledged %v: %+v", acked, *row)
		}
		x.area.Close(true)
		s.killAfter(y, func(int) int { return 0 })
		s.bury(y)
		home.apply() // it says that it has all, as a backup
		s.rest()
		if row := s.rowOf(s.lastView(), 0); row.Primary != home.id || row.Source != 0 {
			t.Fatalf("%+v", *row)
		}
		v := s.lastView().Clone()
		v.Epoch++
		if !s.goesBack(v, home) {
			return // it has nothing, as it says
		}
		time.Sleep(time.Second)
		home.goOn()
		s.calm()
		home.open(false)
		s.calm()
		if got := byteAt(t, home, 0); got != 2 {
			t.Errorf("%d is read, and 2 was acknowledged", got)
		}
	})
}

// takesOverWithout is a cluster in which a held node, x, is the backup of a home that has died, and has not got the memory for the area. own says that the area has a slot of its own. y has stored 7.
func takesOverWithout(t *testing.T, own bool) (s *sim, x, y *simNode, memory func(there bool)) {
	s = newHomed(t, 3, dsm.Inode{Size: dsm.PageSize, Spec: dsm.Spec{Placement: dsm.PlaceOne}})
	home, x, y := s.nodes[0], s.nodes[1], s.nodes[2]
	x.hold()
	s.changeView(func(v *dsm.View) {
		if own {
			v.Place(simArea, dsm.SlotHome{Primary: home.id, Epoch: v.Epoch})
		}
		for _, row := range v.Rows() {
			row.Backups[0] = dsm.Backup{Node: x.id, InSync: true}
		}
	})
	s.catchUp()
	y.open(true)
	put(t, y, 7)
	publish(y)
	s.drain()
	var none atomic.Bool
	withMemory := x.node.newMemory
	x.node.newMemory = func(id dsm.AreaID, size int64, demand bool) (*pages.Area, error) {
		if none.Load() {
			return nil, errNoMemory
		}
		return withMemory(id, size, demand)
	}
	none.Store(true)
	s.killAfter(home, func(int) int { return 0 })
	s.bury(home)
	s.catchUp()
	s.rest()
	s.drain()
	if row := s.rowOf(s.lastView(), 0); row.Primary != x.id {
		t.Fatalf("%+v", *row)
	}
	x.find()
	x.area.mu.Lock()
	due := x.area.dueLocked()
	x.area.mu.Unlock()
	if !due {
		t.Fatal("it has the memory")
	}
	return s, x, y, func(there bool) { none.Store(!there) }
}

// TestDueInItsOwnSlot: a home dies, and its backup takes over, at the same time, the slot that an area has to itself and the one that the area would share. It has the memory for all but this area when its daemon is
// killed. What it had of the area is gone with the daemon, and it says of the shared slot only that it has all.
func TestDueInItsOwnSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, x, y, _ := takesOverWithout(t, true)
		y.area.Close(true)
		slot := s.slotOf(s.lastView(), 0)
		if _, ok := x.node.Served()[s.lastView().NameOf(slot)]; ok || slot < dsm.Slots {
			t.Fatal("it says that it has the slot of the area")
		}
		shares := s.lastInode().Spec.SlotOf(simArea, 0)
		if left := x.node.Served().Has(s.lastView(), x.id, slot, shares); left.Served {
			t.Errorf("the node counts as having all of slot %d: %+v; the row is %+v", slot, left, *s.lastView().Row(slot))
		}
		v := s.lastView().Clone()
		v.Epoch++
		if !s.goesBack(v, x) {
			return
		}
		x.goOn()
		s.calm()
		x.open(false)
		s.calm()
		if got := byteAt(t, x, 0); got != 7 {
			t.Errorf("%d is read, and 7 was acknowledged", got)
		}
	})
}

// TestNoMemoryAtFirst: a backup takes over, and gets the memory for an area a little later. It serves the slot then, and has all of it, but the next daemon is not told.
func TestNoMemoryAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, x, y, memory := takesOverWithout(t, false)
		memory(true)
		s.pass(2 * memoryRetry)
		s.drain()
		put(t, y, 8)
		publish(y)
		s.drain()
		x.area.mu.Lock()
		due, has := x.area.dueLocked(), x.area.mu.home.extents[0] != nil && x.area.mu.mem.Home(0)[0] == 8
		x.area.mu.Unlock()
		if due || !has {
			t.Fatalf("due %v, has what was published: %v", due, has)
		}
		s.pass(time.Minute)
		v := s.lastView().Clone()
		v.Epoch++
		if !s.goesBack(v, x) {
			t.Errorf("the next daemon is refused, and the node has all: the row is %+v", *s.rowOf(s.lastView(), 0))
		}
		y.area.Close(true)
	})
}

// emptied is a versioned file of a node, home, which has published 1, and of which another one, x, has a replica. Then it has been truncated. held says that the node has a holder.
func emptied(t *testing.T, held bool) (c ownCase, home, x, y *simNode) {
	t.Helper()
	c = ownCase{newSim(t, 1, 3, dsm.Inode{Size: simSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned}})}
	home, x, y = c.nodes[0], c.nodes[1], c.nodes[2]
	if held {
		home.hold()
	}
	home.find()
	if err := c.opens(home); err != nil {
		t.Fatal(err)
	}
	c.publishes(home, 0, 1)
	x.find()
	x.openReader()
	c.calm()
	c.resize(0)
	c.calm()
	return c, home, x, y
}

// TestVersionOfNothing: the newest version of a versioned file is an empty one. The owner's daemon is killed, and the next one goes on as the owner. Nobody finds an older version than before.
func TestVersionOfNothing(t *testing.T) {
	for _, when := range []string{"not killed, and longer", "killed, and longer"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, home, x, y := emptied(t, true)
				home.ask("publish", home.area.Publish, nil)
				c.calm()
				home.area.Close(true)
				home.writer, home.reader = nil, false
				for range 3 {
					home.area.expire()
					c.calm()
				}
				home.node.keepServed()
				before, err := x.area.PinVersion(0)
				if err != nil {
					t.Fatal(err)
				}
				x.area.UnpinVersion(before.Version)
				time.Sleep(time.Second)
				if when == "killed, and longer" {
					home.goOn()
				}
				c.calm()
				time.Sleep(time.Minute)
				c.calm()
				c.resize(dsm.PageSize)
				c.calm()
				for _, n := range []*simNode{x, y} {
					n.find()
					if n == y {
						n.openReader()
					}
					c.calm()
					v, err := n.area.PinVersion(0)
					if err != nil {
						t.Errorf("node %d: nobody can read it: %v", n.i, err)
						continue
					}
					if v.Version < before.Version {
						t.Errorf("node %d has version %v; %v was there before", n.i, v, before)
					}
				}
			})
		})
	}
}

// TestOpenWhileEmpty: likewise, where a program of the owner has truncated the file, and has it open: it is about to write it anew. It goes on, and the others see what it publishes.
func TestOpenWhileEmpty(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint(killed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, home, x, _ := emptied(t, true)
				home.node.keepServed()
				time.Sleep(time.Second)
				if killed {
					home.writer = new(simProgram)
					home.goOn()
				}
				c.calm()
				c.resize(dsm.PageSize)
				c.calm()
				c.stores(home, 0, 2)
				var err error
				over := false
				home.ask("publish", func(ctx context.Context) error {
					err = home.area.Publish(ctx)
					return nil
				}, func(error) { over = true })
				c.calm("publish")
				if !over || err != nil {
					t.Fatalf("over %v, %v", over, err)
				}
				v, err := x.area.PinVersion(0)
				if err != nil {
					t.Fatal(err)
				}
				if got := x.byteOf(v.Version, 0); got != "2" {
					t.Errorf("x reads %s of %+v", got, v)
				}
			})
		})
	}
}

// TestResultIsThereAndMore: a process ends a round by what stores, and so has its result. Then another program of the node stores something, which it has not published. The process ends the round by what reads, too: it has waited
// for all that there is of the round, and for what others had published, so there is nothing to wait for.
func TestResultIsThereAndMore(t *testing.T) {
	for _, more := range []bool{false, true} {
		t.Run(fmt.Sprint(more), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, n, w, r, list := newBoth(t, false)
				n.ask("finish", func(ctx context.Context) error { return w.FinishRound(ctx, firstRound, list, len(list)) }, nil)
				s.calm()
				n.ask("sync", w.Acquire, nil)
				s.calm()
				if got := r.draft.mem.Memory(0)[0]; got != 5 {
					t.Fatalf("the process sees %d, want 5", got)
				}
				if more {
					if err := n.area.WriteAt(t.Context(), []byte{1}, 8); err != nil { // by another program
						t.Fatal(err)
					}
				}
				end := n.ends(func(ctx context.Context) error { return r.FinishRound(ctx, firstRound, list, len(list)) })
				s.calm("finish")
				end.hasCome(s)
				w.Detach()
				r.Detach()
			})
		})
	}
}

// TestHomeAnewWhileEmpty: a versioned file is empty when the row of its slot begins anew, as it does whenever the next daemon of the owner goes on, with a replica open on another node. That one gets the versions of afterwards.
func TestHomeAnewWhileEmpty(t *testing.T) {
	for _, anew := range []bool{false, true} {
		t.Run(fmt.Sprint(anew), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, home, x, _ := emptied(t, false)
				if anew {
					c.changeView(func(v *dsm.View) { c.rowOf(v, 0).Epoch = v.Epoch })
				}
				c.calm()
				c.resize(dsm.PageSize)
				c.calm()
				c.publishes(home, 0, 2)
				c.calm()
				v, err := x.area.PinVersion(0)
				if err != nil {
					t.Fatal(err)
				}
				if got := x.byteOf(v.Version, 0); got != "2" {
					t.Errorf("x reads %s of %+v", got, v)
				}
			})
		})
	}
}
