package coherence

import (
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestBackupNeedNotAckWhatItHears: what a home says to the only backup that has not acked leaves behind the change. What it says to others waits.
func TestBackupNeedNotAckWhatItHears(t *testing.T) {
	s, home, backup, _ := backed(t)
	put(t, backup, 5)
	publish(backup)
	s.deliverAll(link{1, 0})
	s.deliverAll(link{0, 1})
	if x := backup.area.extentLocked(0); x.publishing() {
		t.Error("the publish of a backup waits for its own ack of it")
	}
	if got := backup.area.standbyVersionLocked(0); got == 0 {
		t.Error("the backup has not got what it has been told of")
	}
	want(t, home, 0)
	if got := sends[*wire.Push](s, link{0, 2}); got > 0 {
		t.Errorf("%d pushes to another node have left before the backup has acked", got)
	}
	s.rested()
	want(t, home, 5)
}

// TestEachBackupWaitsForTheOthers: with three copies what is for one backup waits for the ack of the other.
func TestEachBackupWaitsForTheOthers(t *testing.T) {
	s, _, backup, other := backed(t)
	s.changeView(func(v *dsm.View) {
		for i := range v.Slots {
			v.Slots[i].Backups[1] = dsm.Backup{Node: other.id, InSync: true}
		}
	})
	s.catchUp()
	put(t, backup, 5)
	publish(backup)
	s.deliverAll(link{1, 0})
	s.deliverAll(link{0, 1})
	if got := sends[*wire.Push](s, link{0, 2}); got > 0 {
		t.Errorf("%d pushes to one backup do not wait for the other", got)
	}
	s.deliverAll(link{1, 0})
	if x := backup.area.extentLocked(0); !x.publishing() {
		t.Error("a publish does not wait for the other backup")
	}
	s.deliverAll(link{0, 2})
	want(t, other, 5)
	s.deliverAll(link{2, 0})
	s.deliverAll(link{0, 1})
	if x := backup.area.extentLocked(0); x.publishing() {
		t.Error("the publish has no ack")
	}
	s.rested()
	want(t, other, 5)
}

// TestBackupThatIsFilledHearsAtOnce: a node is in sync with one extent of an area, and being filled with another. What the home says of that one does not wait until the
// fill has come to it.
func TestBackupThatIsFilledHearsAtOnce(t *testing.T) {
	ino := sums(2, dsm.ApplyArrival)
	ino.Spec.Placement = dsm.PlaceSpread
	s := newHomed(t, 3, ino)
	home, backup, replica := s.nodes[0], s.nodes[1], s.nodes[2]
	s.backUp(backup)
	s.openAll()
	s.drain()
	s.changeView(func(v *dsm.View) { v.Row(s.slotOf(v, 1)).Backups[0] = dsm.Backup{Node: backup.id, Since: v.Epoch} })
	s.catchUp()
	put(t, replica, 5)
	if err := replica.area.WriteAt(t.Context(), []byte{7}, dsm.ExtentSize); err != nil {
		t.Fatal(err)
	}
	publish(replica)
	s.deliverAll(link{2, 0})
	s.deliverAll(link{0, 1}) // the home hears no ack
	want(t, backup, 5)
	if got := backup.area.mu.mem.Working(page(1, 0))[0]; got != 7 {
		t.Errorf("a backup that is being filled has %d, want 7", got)
	}
	s.rested()
	want(t, home, 5)
}

// dropChanges drops the publishes that a home passes on to a backup, but not what follows.
func (s *sim) dropChanges(k link) {
	s.net[k] = slices.DeleteFunc(s.net[k], func(f frame) bool {
		_, dropped := f.msg.(*wire.Replicate)
		return dropped
	})
}

// TestBackupTakesNothingAheadOfItsStandby: a change is dropped with a session, and what the home has said behind it is not, as the home has not heard yet.
// Nobody sees it before the backup has the change.
func TestBackupTakesNothingAheadOfItsStandby(t *testing.T) {
	for _, whose := range []string{"another node", "the backup"} {
		t.Run(whose, func(t *testing.T) {
			s, home, backup, replica := backed(t)
			by, k := replica, link{2, 0}
			if whose == "the backup" {
				by, k = backup, link{1, 0}
			}
			put(t, by, 5)
			publish(by)
			s.deliverAll(k)
			s.dropChanges(link{0, 1})
			s.deliverAll(link{0, 1})
			if by == backup {
				if x := backup.area.extentLocked(0); !x.publishing() {
					t.Error("the publish of a backup is acked that it has not got as a backup")
				}
			} else {
				want(t, backup, 0)
			}
			home.reset(backup)
			backup.reset(home)
			s.rested()
			want(t, backup, 5)
			want(t, home, 5)
		})
	}
}

// TestRefusedChangeDelaysWhatFollows: a backup refuses a change that was made by older rules. What the home has said behind it waits until the backup has all of the extent.
func TestRefusedChangeDelaysWhatFollows(t *testing.T) {
	s, home, backup, _ := backed(t)
	put(t, backup, 5)
	publish(backup)
	s.deliverAll(link{1, 0})
	s.changeRules(func(*dsm.Inode) {})
	backup.apply()
	s.deliverAll(link{0, 1})
	if x := backup.area.extentLocked(0); !x.publishing() {
		t.Error("the publish of a backup is acked that it has refused as a backup")
	}
	s.rested()
	want(t, backup, 5)
	want(t, home, 5)
}

// TestRefillEndsWhatWasAhead: what waits for a standby that is dropped is taken: the backup cannot take over before it has been filled anew.
func TestRefillEndsWhatWasAhead(t *testing.T) {
	s, home, backup, replica := backed(t)
	put(t, replica, 5)
	publish(replica)
	s.deliverAll(link{2, 0})
	s.dropChanges(link{0, 1})
	s.deliverAll(link{0, 1})
	want(t, backup, 0)
	s.changeView(func(v *dsm.View) {
		for i := range v.Slots {
			v.Slots[i].Backups[0] = dsm.Backup{Node: backup.id, Since: v.Epoch}
		}
	})
	s.catchUp()
	if err := backup.node.Handle(home.id, &wire.Refill{Epoch: s.lastView().Epoch, ID: 1, Slots: []dsm.Slot{s.slotOf(s.lastView(), 0)}}, nil); err != nil {
		t.Fatal(err)
	}
	want(t, backup, 5)
}
