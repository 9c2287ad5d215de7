package coherence

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestFillGivesWay: what fills a backup goes on at once when nobody publishes, otherwise it takes a tenth of the time.
func TestFillGivesWay(t *testing.T) {
	for _, busy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, home, _, _ := assignedWith(t, 4, 1)
			filled := func() int { return sends[*wire.ReplicatePages](s, link{0, 1}) }
			if got := filled(); got != 1 {
				t.Fatalf("%d extents are under way in a window of one", got)
			}
			s.pass(time.Millisecond)
			if busy {
				home.node.stats.publishesMerged.Add(1)
			}
			s.deliverAll(link{0, 1})
			s.deliverAll(link{1, 0})
			s.rest()
			if got := filled(); busy != (got == 0) {
				t.Errorf("somebody publishes: %v, and %d extents are sent at once", busy, got)
			}
			s.pass(8 * time.Millisecond)
			if got := filled(); busy != (got == 0) {
				t.Errorf("somebody publishes: %v, and %d extents have been sent after as long again as 8 acks take", busy, got)
			}
			s.pass(time.Millisecond)
			if got := filled(); got != 1 {
				t.Errorf("somebody publishes: %v, and %d extents have been sent after as long again as 9 acks take", busy, got)
			}
			if busy { // however long it takes, it goes on
				home.node.stats.publishesMerged.Add(1)
				s.pass(time.Second)
				s.deliverAll(link{0, 1})
				s.deliverAll(link{1, 0})
				s.pass(fillPause)
				if got := filled(); got != 1 {
					t.Errorf("%d extents have been sent after the longest pause", got)
				}
			}
		})
	}
}

// TestFillNotesWhatChanges: what is published to an extent that a backup has been sent goes to it when it has everything once, and from then on at once.
func TestFillNotesWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, backup, replica := assignedWith(t, 2, 1)
		s.deliverAll(link{0, 1}) // extent 0
		publishes := func(v int32) {
			put(t, replica, v)
			publish(replica)
			s.deliverAll(link{2, 0})
			s.deliverAll(link{0, 2})
		}
		for i := range int32(3) {
			publishes(5 + i)
		}
		if got := sends[*wire.Replicate](s, link{0, 1}) + sends[*wire.ReplicatePages](s, link{0, 1}); got != 0 {
			t.Errorf("%d publishes are passed on at once to a backup that has not got everything once", got)
		}
		if got := underWay(home, backup); got != 3 {
			t.Errorf("%d changes wait for the backup, want one that was sent, one that fills it, and one of all publishes", got)
		}
		for range 2 {
			s.deliverAll(link{1, 0})
			s.pass(fillPause)
			s.deliverAll(link{0, 1})
		}
		s.deliverAll(link{1, 0})
		s.rest()
		if phase, _ := home.node.fills.standing(s.slotOf(s.lastView(), 0), backup.id); phase != following {
			t.Fatalf("the backup is in phase %d, want %d", phase, following)
		}
		publishes(9)
		if got := sends[*wire.Replicate](s, link{0, 1}); got != 1 {
			t.Errorf("%d publishes are passed on at once to a backup that has got everything once, want 1", got)
		}
		s.drain()
		s.grantAll()
		s.drain()
		s.grantAll()
		if !s.rowOf(s.lastView(), 0).Backups[0].InSync {
			t.Error("a backup that has everything is not in sync")
		}
		s.checkStandbys()
	})
}
