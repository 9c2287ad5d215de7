package coherence

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// backed is a home (node 0), its backup (node 1), and a replica (node 2) of an area of one extent, whose messages are in the test's hands.
func backed(t *testing.T) (s *sim, home, backup, replica *simNode) { return backedBy(t, 0, 1, 2) }

// backUp makes a node the backup of all slots, in sync.
func (s *sim) backUp(n *simNode) {
	s.changeView(func(v *dsm.View) {
		for i := range v.Slots {
			v.Slots[i].Backups[0] = dsm.Backup{Node: n.id, InSync: true}
		}
	})
	s.catchUp()
}

// backedBy is backed, but only these nodes have the area open.
func backedBy(t *testing.T, open ...int) (s *sim, home, backup, replica *simNode) {
	s = newHomed(t, 3, sums(1, dsm.ApplyArrival))
	s.backUp(s.nodes[1])
	for _, i := range open {
		s.nodes[i].open(true)
	}
	s.drain()
	return s, s.nodes[0], s.nodes[1], s.nodes[2]
}

// sends returns how many messages of a kind are on a link.
func sends[M any](s *sim, k link) (n int) {
	for _, f := range s.queue(k) {
		if _, ok := f.msg.(M); ok {
			n++
		}
	}
	return n
}

// TestNobodySeesWhatABackupLacks: what a home says after a publish waits for the backup, on the way to its own node too, and leaves in order. What it says to the
// backup itself is behind the change.
func TestNobodySeesWhatABackupLacks(t *testing.T) {
	s, home, _, replica := backed(t)
	put(t, replica, 5)
	publish(replica)
	s.deliverAll(link{2, 0})
	if got := sends[*wire.Replicate](s, link{0, 1}); got != 1 {
		t.Fatalf("the backup is told of %d publishes, want 1", got)
	}
	if acks := sends[*wire.PublishAck](s, link{0, 2}); acks > 0 {
		t.Errorf("%d acks have left before the backup has acked", acks)
	}
	q := s.net[link{0, 1}]
	if first, ok := q[0].msg.(*wire.Replicate); !ok || len(q) != 2 || !q[1].msg.(*wire.Push).Ahead {
		t.Errorf("the backup hears %+v first, of %d messages", first, len(q))
	}
	want(t, home, 0)
	s.deliverAll(link{0, 1})
	s.deliverAll(link{1, 0})
	want(t, home, 5)
	if got := sends[*wire.PublishAck](s, link{0, 2}); got != 1 {
		t.Errorf("%d acks have left, want 1", got)
	}
	s.rested()
}

// TestBackupTakesOver: a home dies after its backup has a publish, and before the publisher has the ack. It sends the publish again, to
// the backup, which knows it.
func TestBackupTakesOver(t *testing.T) {
	s, home, backup, replica := backed(t)
	put(t, home, 100)
	publish(home)
	put(t, replica, 7)
	publish(replica)
	s.deliverAll(link{2, 0})
	s.deliverAll(link{0, 1})
	s.kill(home)
	s.changeView(func(v *dsm.View) {
		v.Members[0].Gone = true
		for i := range v.Slots {
			v.Slots[i] = dsm.SlotHome{Primary: backup.id, Epoch: v.Epoch}
		}
	})
	s.catchUp()
	for s.deliver() {
		continue
	}
	want(t, backup, 107)
	want(t, replica, 107)
	if x := replica.area.extentLocked(0); x.publishing() {
		t.Error("the publish has no ack")
	}
}

// diesHalfway kills a home of which a handover has come to a node in part, and a backup takes over. All that was under way arrives.
func (s *sim) diesHalfway(home, to *simNode) {
	s.t.Helper()
	if x := to.area.mu.home.extents[0]; x == nil || x.version == 0 {
		s.t.Fatal("nothing of the handover has come")
	}
	s.killAfter(home, func(int) int { return 0 })
	s.changeView(func(v *dsm.View) {
		v.Members[home.i].Gone = true
		s.takeOver(v, home.id)
	})
	s.catchUp()
	for s.deliver() {
		continue
	}
}

// TestTakeoverAfterHalfAHandover: a home dies that was handing a slot over to its backup, and had sent more than the backup has as one. The backup goes on from its standby: what
// has come of the handover must not stay in its memory, for who published that sends it again.
func TestTakeoverAfterHalfAHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, backup, replica := backed(t)
		s.copies = 2
		if err := replica.area.WriteAt(t.Context(), []byte{1}, dsm.PageSize); err != nil { // this the backup has
			t.Fatal(err)
		}
		publish(replica)
		s.drain()
		put(t, replica, 5)
		publish(replica)
		s.deliverAll(link{2, 0})
		s.dropChanges(link{0, 1})
		s.move(backup, 1)
		s.rest()
		s.deliverAll(link{0, 1})
		s.diesHalfway(home, backup)
		if got := backup.area.mu.mem.Home(0)[0]; got != 5 {
			t.Errorf("the new home has %d, want 5", got)
		}
		want(t, backup, 5)
		want(t, replica, 5)
	})
}

// TestOpenedDuringHalfAHandover: a home dies that was handing a slot over to a node which was about to open the area. A backup takes over, which lacks a publish that had come there
// with the handover. The node's stores must not be compared with what nobody has.
func TestOpenedDuringHalfAHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, backup, n := backedBy(t, 0, 1)
		s.copies = 2
		put(t, home, 5)
		publish(home)
		s.dropChanges(link{0, 1})
		s.move(n, 1)
		n.find()
		n.startOpen(false)
		n.startOpen(true)
		s.rest()
		s.deliverAll(link{0, 2})
		s.diesHalfway(home, n)
		put(t, n, 1)
		publish(n)
		for s.deliver() {
			continue
		}
		want(t, n, 1)
		want(t, backup, 1)
	})
}

// TestBackupWithoutMemoryTakesOver: a backup that is to take over has no memory for the area, and the slot moves on. The next home gets what the
// backup has when there is memory, not nothing.
func TestBackupWithoutMemoryTakesOver(t *testing.T) {
	s, home, backup, replica := backedBy(t, 0, 2)
	put(t, replica, 7)
	publish(replica)
	s.drain()
	backup.find()
	newMemory := backup.node.newMemory
	backup.node.newMemory = func(dsm.AreaID, int64, bool) (*pages.Area, error) { return nil, syscall.ENOMEM }
	s.kill(home)
	s.changeView(func(v *dsm.View) {
		v.Members[0].Gone = true
		for i := range v.Slots {
			v.Slots[i] = dsm.SlotHome{Primary: backup.id, Epoch: v.Epoch}
		}
	})
	s.catchUp()
	s.changeView(func(v *dsm.View) {
		for i := range v.Slots {
			v.Slots[i] = dsm.SlotHome{Primary: replica.id, Source: backup.id, Epoch: v.Epoch}
		}
	})
	s.catchUp()
	due := false
	backup.area.step(func() { due = backup.area.dueLocked() })
	if !due {
		t.Fatal("what the backup has does not wait for memory")
	}
	backup.node.newMemory = newMemory
	backup.area.step(backup.area.takeOverLocked)
	for s.deliver() {
		continue
	}
	backup.area.step(func() {
		if x := backup.area.mu.home.extents[0]; x == nil || x.writers[replica.id] == 0 {
			t.Errorf("the backup hands over %+v", x)
		}
	})
}

// TestSilentBackupDelays: as long as the view says that a backup can take over, the home waits for it.
func TestSilentBackupDelays(t *testing.T) {
	s, home, backup, replica := backed(t)
	put(t, replica, 5)
	publish(replica)
	s.deliverAll(link{2, 0})
	s.changeView(func(v *dsm.View) {
		for i := range v.Slots {
			v.Slots[i].Backups[0].InSync = false
		}
	})
	if sends[*wire.PublishAck](s, link{0, 2}) > 0 {
		t.Error("an ack has left without the backup")
	}
	home.apply()
	if sends[*wire.PublishAck](s, link{0, 2}) != 1 {
		t.Error("no ack has left though the backup cannot take over any more")
	}
	replica.apply()
	backup.apply()
	s.rested()
	want(t, home, 5)
}

// TestWholeInPlaceOfAChange: a backup that cannot take a change asks for all of the extent. It has joined when it has acked that, not before.
func TestWholeInPlaceOfAChange(t *testing.T) {
	s, home, backup, replica := backed(t)
	put(t, replica, 5)
	publish(replica)
	s.deliverAll(link{2, 0})
	joined := false
	home.area.step(func() {
		for x := range home.area.backupLocked(backup.id).all() {
			x.marks = append(x.marks, &mark{1, func() { joined = true }})
			home.area.replicatedLocked(backup.id, &wire.Replicated{ID: x.id, Whole: true})
		}
	})
	if joined {
		t.Error("a backup counts as joined that has asked for all of an extent")
	}
	s.drain()
	if !joined {
		t.Error("a backup that has everything does not count as joined")
	}
	want(t, home, 5)
}

// TestJoinedBackupLags: outputs wait for a backup from when it has joined, before the catalog knows, so the catalog can be told that it does not
// follow from then on, too.
func TestJoinedBackupLags(t *testing.T) {
	_, home, backup, _ := backed(t)
	f, v := &home.node.fills, home.view.Clone()
	for i := range v.Slots {
		v.Slots[i].Backups[0].InSync = false
	}
	if got := len(f.awaited(v, backup.id)); got != 0 {
		t.Errorf("%d slots wait for a backup that is not being filled", got)
	}
	f.mu.Lock()
	f.mu.state[copyOf{3, backup.id}] = &copyState{phase: filling}
	f.mu.state[copyOf{4, backup.id}] = &copyState{phase: joined}
	f.mu.Unlock()
	if got := f.awaited(v, backup.id); len(got) != 1 || got[0] != 4 {
		t.Errorf("slots %v wait for the backup, want 4", got)
	}
	if got := len(f.awaited(home.view, backup.id)); got != dsm.Slots {
		t.Errorf("%d slots wait for a backup that is in sync with all", got)
	}
}

// TestLogSaysWhyABackupLags, and an error only if the catalog could not be told.
func TestLogSaysWhyABackupLags(t *testing.T) {
	_, home, backup, _ := backed(t)
	var log bytes.Buffer
	home.node.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, failed := range []error{nil, errs.E(errs.Timeout, "test", "no quorum")} {
		home.node.cfg.View = listens{home.node.cfg.View, failed}
		for silent, want := range map[bool]string{true: "it does not answer", false: "it followed the home before this one"} {
			log.Reset()
			if err := home.node.fills.tellLags(backup.id, []dsm.Slot{3, 4}, home.view.Epoch, silent); err != failed {
				t.Error(err)
			}
			if got := log.String(); !strings.Contains(got, want) || !strings.Contains(got, "slots=2") || strings.Contains(got, "err=") != (failed != nil) {
				t.Errorf("error %v, silent %v: %s", failed, silent, got)
			}
		}
	}
}

// listens is a view whose catalog answers who tells of backups that lag.
type listens struct {
	View
	err error
}

func (l listens) BackupLags(context.Context, dsm.NodeID, []dsm.Slot, dsm.Epoch) error { return l.err }

// TestRejoinedHomeHearsItself: what a home withholds from its own node outlasts its eviction, where nobody has taken over: nobody asks again.
func TestRejoinedHomeHearsItself(t *testing.T) {
	s, home, _, _ := backed(t)
	put(t, home, 7)
	publish(home)
	if x := home.area.extentLocked(0); !x.publishing() {
		t.Fatal("the publish does not wait for the backup")
	}
	s.changeView(func(v *dsm.View) {
		v.Members[0].Inc++
		for i := range v.Slots {
			v.Slots[i].Backups[0].InSync = false
		}
	})
	s.catchUp()
	if x := home.area.extentLocked(0); x.publishing() {
		t.Error("the publish has no ack")
	}
}
