package coherence

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// assigned is a home (node 0) of an area of some extents, that has each of them, a node (node 1) that has just been assigned as its backup and
// has answered the Refill, and a replica (node 2). What the home tells the backup is in the test's hands. It runs in a bubble.
func assigned(t *testing.T, extents int64) (s *sim, home, backup, replica *simNode) {
	return assignedWith(t, extents, fillWindow)
}

// assignedWith is assigned with a window of what fills the backup.
func assignedWith(t *testing.T, extents int64, window int) (s *sim, home, backup, replica *simNode) {
	s = newHomed(t, 3, sums(extents, dsm.ApplyArrival))
	home, backup, replica = s.nodes[0], s.nodes[1], s.nodes[2]
	home.node.fillLinks.window = window
	home.open(true)
	replica.open(true)
	backup.find()
	for e := range dsm.ExtentIndex(extents) {
		replica.area.step(func() {
			replica.area.mu.mem.Working(page(e, 0))[0] = 1
			replica.area.dirtyLocked(e, replica.area.extentLocked(e), dsm.Range(0, 1))
		})
	}
	publish(replica)
	s.drain()
	s.copies = 2
	s.changeView(func(v *dsm.View) {
		for i := range v.Slots {
			v.Slots[i].Backups[0] = dsm.Backup{Node: backup.id, Since: v.Epoch}
		}
	})
	s.catchUp()
	s.deliverAll(link{0, 1})
	s.deliverAll(link{1, 0})
	s.grantAll() // slots in which there is nothing
	return s, home, backup, replica
}

// grantAll has the catalog answer everybody who has asked it for something, until nobody has.
func (s *sim) grantAll() {
	for s.rest(); len(s.wishes) > 0; s.catchUp() {
		s.grant(0)
	}
}

// underWay returns how much is under way to a backup.
func underWay(home, backup *simNode) int {
	return len(slices.Collect(home.area.backupLocked(backup.id).all()))
}

// TestSlowBackupTakesNoMemory: what waits for a backup that is being filled does not grow with what is published meanwhile. In the end it has everything.
func TestSlowBackupTakesNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, backup, replica := assigned(t, 1)
		home.node.copyLinks.window = 1
		for i := range 50 {
			put(t, replica, int32(100+i))
			publish(replica)
			s.deliverAll(link{2, 0})
			s.deliverAll(link{0, 2})
			s.deliverAll(link{2, 0})
		}
		if x := replica.area.extentLocked(0); x.publishing() {
			t.Fatal("publishes wait for a backup that is being filled")
		}
		if got := underWay(home, backup); got > 2 {
			t.Errorf("%d changes wait for the backup, want one that was sent and one that tells of all others", got)
		}
		s.drain()
		s.grantAll()
		s.drain()
		s.grantAll()
		if n := s.rowOf(s.lastView(), 0).BackupOf(backup.id); n < 0 || !s.rowOf(s.lastView(), 0).Backups[n].InSync {
			t.Error("the backup is not in sync")
		}
		s.checkStandbys()
	})
}

// TestSlotsJoinByThemselves: a slot of which something does not come on delays no others.
func TestSlotsJoinByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _, _ := assigned(t, 2)
		if s.slotOf(s.lastView(), 0) == s.slotOf(s.lastView(), 1) {
			t.Fatal("both extents are in one slot")
		}
		s.net[link{0, 1}] = slices.DeleteFunc(s.net[link{0, 1}], func(f frame) bool {
			m, ok := f.msg.(*wire.ReplicatePages)
			return ok && m.Extent == 1
		})
		s.drain()
		s.grantAll()
		for e, want := range []bool{true, false} {
			if got := s.rowOf(s.lastView(), dsm.ExtentIndex(e)).Backups[0].InSync; got != want {
				t.Errorf("extent %d: in sync %v, want %v", e, got, want)
			}
		}
	})
}

// TestJoinsBeforeItIsInSync: the catalog hears of a backup when it has acked all that was under way when outputs began to wait for it.
func TestJoinsBeforeItIsInSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, backup, replica := assigned(t, 1)
		for i := range int32(2) { // their acks do not wait: the backup is being filled
			put(t, replica, 5+i)
			publish(replica)
			s.deliverAll(link{2, 0})
			s.deliverAll(link{0, 2})
			s.deliverOn(link{0, 1}) // all of the extent, and what has changed meanwhile: the second publish is under way
			s.deliverAll(link{1, 0})
		}
		if phase, _ := home.node.fills.standing(s.slotOf(s.lastView(), 0), backup.id); phase != joined {
			t.Fatalf("the backup is in phase %d, want %d", phase, joined)
		}
		s.grantAll()
		if s.rowOf(s.lastView(), 0).Backups[0].InSync {
			t.Error("a backup is in sync that lacks a publish of which the ack has left")
		}
		s.drain()
		s.grantAll()
		if !s.rowOf(s.lastView(), 0).Backups[0].InSync {
			t.Error("a backup that has everything is not in sync")
		}
	})
}

// TestHandoverWaitsForBackups: a home hands a slot over when the backups that may take over have all that it has merged. The next home tells them of
// nothing from before.
func TestHandoverWaitsForBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		home, backup, next := s.nodes[0], s.nodes[1], s.nodes[2]
		s.copies = 2
		s.backUp(backup)
		backup.find()
		next.open(true)
		put(t, next, 5)
		publish(next)
		s.deliverAll(link{2, 0})
		s.move(next, 1)
		for range 4 {
			s.deliverAll(link{0, 2})
			s.deliverAll(link{2, 0})
		}
		if home.area == nil {
			home.find()
		}
		if next.node.received[s.slotOf(s.lastView(), 0)].Load() != 0 {
			t.Error("the next home has the slot before the backup has all that the last one merged")
		}
		s.drain()
		if next.node.received[s.slotOf(s.lastView(), 0)].Load() == 0 {
			t.Error("the next home does not get the slot")
		}
	})
}

// BenchmarkFill fills a backup with an area, and says what an extent of it takes: it is to be the same however many there are. The extents are empty.
func BenchmarkFill(b *testing.B) {
	for _, extents := range []int64{1000, 100_000} {
		b.Run(fmt.Sprintf("extents=%d", extents), func(b *testing.B) {
			s := newHomed(&testing.T{}, 2, sums(extents, dsm.ApplyArrival))
			b.Cleanup(s.close)
			s.changeView(func(v *dsm.View) {
				for i := range v.Slots {
					v.Slots[i].Backups[0] = dsm.Backup{Node: 2, InSync: true}
				}
			})
			s.catchUp()
			home := s.nodes[0]
			home.find()
			for e := range dsm.ExtentIndex(extents) {
				home.area.mu.home.extents[e], home.area.mu.home.below = newHomeExtent(1), e+1
			}
			k := link{0, 1}
			for b.Loop() {
				home.area.step(func() {
					for e := range dsm.ExtentIndex(extents) {
						home.area.copyPagesLocked(e, 1)
					}
				})
				for len(s.net[k]) > 0 {
					m := s.take(k).msg.(*wire.ReplicatePages)
					home.area.step(func() { home.area.replicatedLocked(2, &wire.Replicated{ID: m.ID}) })
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(int64(b.N)*extents), "ns/extent")
		})
	}
}
