package coherence

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestTakeoverIsNotTheLastView: a backup takes over, and before it has done so the catalog has gone on.
func TestTakeoverIsNotTheLastView(t *testing.T) {
	for _, c := range []struct {
		name    string
		skips   bool // the backup does not see the view in which it takes over
		starves bool // it has no memory then
		moves   bool // the slots are on their way to another node in the last view
	}{
		{"skipped, on the way to another node", true, false, true},
		{"no memory, on the way to another node", false, true, true},
		{"skipped, no memory, on the way to another node", true, true, true},
		{"no memory", false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
				home, backup, replica := s.nodes[0], s.nodes[1], s.nodes[2]
				s.copies = 2
				s.backUp(backup)
				backup.find()
				feed := func() {}
				if c.starves {
					_, feed = backup.starve()
				}
				replica.open(true)
				put(t, replica, 5)
				publish(replica)
				s.drain()

				s.kill(home)
				s.bury(home)
				if !c.skips {
					s.catchUp()
				}
				s.changeView(func(v *dsm.View) {
					if row := s.rowOf(v, 0); c.moves {
						*row = s.movedTo(v, *row, replica.id)
					}
				})
				backup.snapshot()
				feed()
				<-time.After(memoryRetry + 1) // of the bubble
				s.calm()

				last := s.nodes[s.rowOf(s.lastView(), 0).Primary-1]
				last.find()
				if x := last.area.mu.home.extents[0]; x == nil || x.writers[replica.id] == 0 || !x.data.Has(0) {
					t.Errorf("node %d, the home, does not have what was published", last.i)
				}
			})
		})
	}
}

// TestNewHomeIsABackupAgain: a slot has arrived at a node that was a backup in sync, and its source ends before the catalog has heard of that. So another backup becomes the home, and
// the node is a backup again. If that home ends too the node takes over, with all that there was.
func TestNewHomeIsABackupAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 4, sums(1, dsm.ApplyArrival))
		old, first, taker, n := s.nodes[0], s.nodes[1], s.nodes[2], s.nodes[3]
		s.copies = 3
		s.changeView(func(v *dsm.View) {
			for i := range v.Slots {
				v.Slots[i].Backups[0], v.Slots[i].Backups[1] = dsm.Backup{Node: first.id, InSync: true}, dsm.Backup{Node: taker.id, InSync: true}
			}
		})
		s.catchUp()
		n.open(true)
		put(t, n, 5)
		publish(n)
		s.drain()
		s.move(taker, 1)
		s.rest()
		s.setAway(taker, true) // it does not reach the catalog
		for range 2 {
			s.deliverAll(link{old.i, taker.i})
			s.deliverAll(link{taker.i, old.i})
			s.rest()
		}
		if !taker.node.slotReady(dsm.SlotOf(simArea, 0), s.rowOf(s.lastView(), 0)) {
			t.Fatal("it has not arrived")
		}
		s.killAfter(old, func(int) int { return 0 })
		s.bury(old)
		s.setAway(taker, false)
		taker.apply()
		if row := s.rowOf(s.lastView(), 0); row.Primary != first.id || row.BackupOf(taker.id) < 0 {
			t.Fatalf("%+v, want another home, and this node its backup", row)
		}
		s.killAfter(first, func(int) int { return 0 })
		s.bury(first)
		taker.apply()
		s.calm()
		taker.find()
		if x := taker.area.mu.home.extents[0]; x == nil || x.writers[n.id] == 0 || !x.data.Has(0) {
			t.Error("it does not have what was published")
		}
	})
}

// later is a View that goes on when it has been looked at for the first time.
type later struct {
	*simNode
	on func()
}

func (l *later) Current() *dsm.View {
	v := l.simNode.Current()
	if on := l.on; on != nil {
		l.on = nil
		on()
	}
	return v
}

// TestStandbyOfALaterView: a node is told to drop what it has as a backup, and before it has come to the area it is a backup in sync again, as the source
// of a move.
func TestStandbyOfALaterView(t *testing.T) {
	for _, msg := range []any{
		&wire.Refill{Epoch: 3, ID: 1, Slots: allSlots()},
		&wire.HandoverDone{Epoch: 3, Slots: allSlots()},
	} {
		t.Run(fmt.Sprintf("%T", msg), func(t *testing.T) {
			s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
			home, backup := s.nodes[0], s.nodes[1]
			_, refill := msg.(*wire.Refill)
			s.changeView(func(v *dsm.View) {
				for i := range v.Slots {
					if v.Slots[i].Backups[0] = (dsm.Backup{Node: backup.id, Since: v.Epoch}); !refill {
						v.Slots[i] = dsm.SlotHome{Primary: backup.id, Source: home.id, Epoch: v.Epoch}
						v.Slots[i].Backups[0] = dsm.Backup{Node: backup.id, InSync: true}
					}
				}
			})
			s.catchUp()
			backup.find()
			backup.area.step(func() { backup.area.standbyLocked().extent(0).version = 1 })
			s.changeView(func(v *dsm.View) {
				for i := range v.Slots {
					v.Slots[i] = dsm.SlotHome{Primary: home.id, Epoch: 3}
					v.Slots[i].Backups[0] = dsm.Backup{Node: backup.id, InSync: true}
				}
			})
			l := &later{simNode: backup}
			backup.node.cfg.View = l
			l.on = func() {
				s.mu.Lock()
				backup.view = s.lastViewLocked()
				s.mu.Unlock()
			}
			if refill { // the step looks first
				l.Current()
			}
			if err := backup.node.Handle(home.id, msg, nil); err != nil {
				t.Fatal(err)
			}
			if backup.area.mu.standby.extents[0] == nil {
				t.Error("a backup in sync has dropped what it has")
			}
		})
	}
}

func allSlots() (all []dsm.Slot) {
	for s := range dsm.Slot(dsm.Slots) {
		all = append(all, s)
	}
	return all
}
