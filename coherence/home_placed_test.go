package coherence

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestOfferedBeforeItIsServed: a slot is handed over by a node that has just become its home, and what the next daemon knows of the slots is written a little later than it is offered: a broken session, or a handover to the
// same node that is under way, has it be sent before that. The new home acknowledges a publish, and the source's daemon is killed.
func TestOfferedBeforeItIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, dsm.Inode{Size: dsm.PageSize})
		home, x, y := s.nodes[0], s.nodes[1], s.nodes[2]
		home.hold()
		for _, n := range s.nodes {
			n.open(true)
		}
		s.calm()
		put(t, x, 1)
		publish(x)
		s.calm()
		home.area.step(func() { home.area.mu.mem.WorkingIsNewest() })
		s.changeView(func(v *dsm.View) { // of a view in which the node has become the home the ledger is not written yet
			row := s.rowOf(v, 0)
			*row = s.movedTo(v, *row, y.id)
		})
		home.look()
		for _, n := range []*simNode{x, y} {
			for n.behindCatalog() {
				n.apply()
			}
		}
		s.taker = y // the catalog hears a little later that it is there
		home.node.SessionReset(y.id)
		hy, yh, xy, yx := link{home.i, y.i}, link{y.i, home.i}, link{x.i, y.i}, link{y.i, x.i}
		move := func() {
			for range 10 {
				s.rest()
				for _, l := range []link{hy, yh, xy, yx} {
					s.deliverAll(l)
				}
			}
		}
		move()
		if slot := s.slotOf(s.lastView(), 0); !y.node.slotReady(slot, s.lastView().Row(slot)) {
			t.Fatal("it is not there")
		}
		put(t, x, 2)
		publish(x)
		move()
		y.area.mu.Lock()
		merged := y.area.mu.mem.Home(0)[0]
		y.area.mu.Unlock()
		x.area.mu.Lock()
		acked := !x.area.extentLocked(0).publishing()
		x.area.mu.Unlock()
		if merged != 2 || !acked {
			t.Fatalf("the new home has %d, acked %v", merged, acked)
		}
		home.node.keepServed() // now it is written
		x.area.Close(true)     // what it has published is acknowledged
		home.goOn()
		s.calm()
		for _, n := range []*simNode{home, y} {
			if got := byteAt(t, n, 0); got != 2 {
				t.Errorf("node %d reads %d, want 2; the row is %+v", n.i, got, *s.rowOf(s.lastView(), 0))
			}
		}
	})
}

// TestReadBeforeABackupHasIt: the owner's daemon is killed when it has made a version that its backup has not got, so nobody could read it. Nobody can when the next daemon goes on as the owner, as long as the backup may take over with
// the version before.
func TestReadBeforeABackupHasIt(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint(killed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, n := newHeldCase(t)
				c.calm()
				if hasBackup := hasBackups(c.rowOf(c.lastView(), 0)); !hasBackup {
					t.Fatalf("no backup: %+v", *c.rowOf(c.lastView(), 0))
				}
				n.node.keepServed()
				read := func() string {
					v, err := n.area.PinVersion(0)
					if err != nil {
						return err.Error()
					}
					defer n.area.UnpinVersion(v.Version)
					return n.byteOf(v.Version, 0)
				}
				if got := read(); got != "1" {
					t.Fatal(got)
				}
				c.stores(n, 0, 2)
				n.ask("publish", n.area.Publish, nil)
				c.rest()
				n.area.mu.Lock()
				merged := n.area.mu.mem.Home(0)[0]
				n.area.mu.Unlock()
				if got := read(); got != "1" || merged != 2 {
					t.Fatalf("%s is read, and %d is merged", got, merged)
				}
				if killed {
					for _, q := range c.requests {
						q.giveUp()
					}
					c.rest()
					n.writer = new(simProgram)
					n.goOn()
					row := c.rowOf(c.lastView(), 0)
					i := slices.IndexFunc(row.Backups[:], func(b dsm.Backup) bool { return b.InSync })
					if row.Primary != n.id || i < 0 {
						t.Fatalf("%+v", *row)
					}
					if got := read(); got == "2" {
						t.Errorf("2 is read, and a backup may take over that has not got it: %+v", *row)
					}
				}
				c.calm()
				if got := read(); got != "2" {
					t.Errorf("%s is read at last", got)
				}
			})
		})
	}
}

// TestPlacedBeforeItHasResumed: the catalog knows that a node goes on as the home, and before its next daemon has taken over what is there, an area gets a slot of its own: a program of another node has set where it is to be.
func TestPlacedBeforeItHasResumed(t *testing.T) {
	for _, where := range []string{"nowhere", "there", "elsewhere"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, home, x, y := heldHome(t, dsm.Inode{Size: dsm.PageSize, Spec: dsm.Spec{Placement: dsm.PlaceOne}})
				put(t, x, 5)
				publish(x)
				s.calm()
				for _, n := range s.nodes { // nobody has it open any more
					n.area.Close(false)
					n.area.Close(true)
					n.reader, n.writer = false, nil
				}
				for range 3 {
					s.calm()
					for _, n := range s.nodes {
						n.area.expire()
					}
				}
				home.between = func() {
					s.changeView(func(v *dsm.View) {
						shared := *s.rowOf(v, 0)
						switch where { // as startOf of catalog/place.go
						case "there":
							v.Place(simArea, dsm.SlotHome{Primary: home.id, Epoch: v.Epoch, Had: shared.Had})
						case "elsewhere":
							v.Place(simArea, dsm.SlotHome{Primary: y.id, Source: home.id, Epoch: v.Epoch, Had: shared.Had})
						}
					})
				}
				time.Sleep(time.Second)
				home.goOn()
				s.calm()
				if row := s.rowOf(s.lastView(), 0); where == "elsewhere" && row.Primary != y.id || where != "elsewhere" && row.Primary != home.id {
					t.Fatalf("%+v", *row)
				}
				for _, n := range s.nodes {
					n.open(false)
					s.calm()
					if got := byteAt(t, n, 0); got != 5 {
						t.Errorf("node %d reads %d, want 5", n.i, got)
					}
				}
			})
		})
	}
}
