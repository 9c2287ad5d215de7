package coherence

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// pair is a home (node 0) and a replica (node 1) of an area of 32-bit integers,
// one extent long, that are added up, with the messages between them in the test's hands.
func pair(t *testing.T, apply dsm.Apply) (*sim, *simNode, *simNode) {
	return pairOf(t, sums(1, apply))
}

// pairOf is pair for any area.
func pairOf(t *testing.T, ino dsm.Inode) (*sim, *simNode, *simNode) {
	s := newHomed(t, 2, ino)
	s.openAll()
	s.drain()
	return s, s.nodes[0], s.nodes[1]
}

// sums is an area of so many extents that adds up numbers of four bytes.
func sums(extents int64, apply dsm.Apply) dsm.Inode {
	ino := sumOf(dsm.DTypeI32, apply)
	ino.Size = extents * dsm.ExtentSize
	return ino
}

func put(t *testing.T, n *simNode, v int32) {
	t.Helper()
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], uint32(v))
	if err := n.area.WriteAt(context.Background(), b[:], 0); err != nil {
		t.Fatal(err)
	}
}

func get(n *simNode) int32 { return int32(binary.LittleEndian.Uint32(n.area.mu.mem.Working(0))) }

func publish(n *simNode) { n.area.step(func() { n.area.requestPublishLocked() }) }

func want(t *testing.T, n *simNode, v int32) {
	t.Helper()
	if got := get(n); got != v {
		t.Errorf("node %d has %d, want %d", n.i, got, v)
	}
}

func TestPublishSentAgainIsMergedOnce(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	put(t, replica, 5)
	publish(replica)
	k := link{1, 0}
	again := s.net[k][0] // the network of a broken session delivers it, and it is sent again
	again.shared.Retain()
	s.net[k] = append(s.net[k], again)
	s.drain()
	want(t, home, 5)
	want(t, replica, 5)
}

func TestPushThatCrossesAPublish(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	put(t, home, 100)
	publish(home) // the push is on its way
	put(t, replica, 7)
	publish(replica) // and this publish crosses it
	put(t, replica, 9)
	push := s.net[link{0, 1}][0]
	s.net[link{0, 1}] = s.net[link{0, 1}][1:]
	if err := replica.node.Handle(home.id, push.msg, push.payload); err != nil {
		t.Fatal(err)
	}
	want(t, replica, 109) // 100 of the home, 7 under way, 2 not yet published
	publish(replica)
	s.drain()
	publish(replica)
	s.drain()
	want(t, replica, 109)
	want(t, home, 109)
}

func TestPausedUpdatesWaitForAcquire(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyAuto)
	put(t, home, 100)
	publish(home)
	put(t, replica, 7)
	publish(replica)
	s.drain()
	want(t, replica, 7)
	want(t, home, 100)
	for _, n := range []*simNode{replica, home} {
		n.startAcquire()
		s.drain()
		want(t, n, 107)
	}
}

func TestSlowSubscriberGetsTheNewestOnce(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	for i := range int32(1000) {
		put(t, home, i+1)
		publish(home)
	}
	q := s.net[link{0, 1}]
	if len(q) != 1 {
		t.Fatalf("%d messages wait for a subscriber that answers nothing, want the one push", len(q))
	}
	pushes := 0
	for len(s.net[link{0, 1}])+len(s.net[link{1, 0}]) > 0 {
		if q := s.net[link{0, 1}]; len(q) > 0 {
			if _, ok := q[0].msg.(*wire.Push); ok {
				pushes++
			}
		}
		s.deliver()
	}
	want(t, replica, 1000)
	if pushes > 4 {
		t.Errorf("%d pushes for a subscriber that missed 1000 publishes, want the first and the newest", pushes)
	}
}

func TestPublishUnderOldRulesIsMadeAnew(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	put(t, replica, 5)
	put(t, home, 2)
	publish(home)
	publish(replica)
	s.resize(dsm.ExtentSize / 2)
	home.apply() // the replica has not heard of it
	s.drain()
	want(t, home, 7)
	want(t, replica, 7)
	if replica.area.mu.replica.extents[0].pub != nil {
		t.Error("the refused publication is still under way")
	}
}

func TestGarbageChangesNothing(t *testing.T) {
	_, home, replica := pair(t, dsm.ApplyArrival)
	st := replica.area.stampLocked()
	bad := []struct {
		msg     any
		payload []byte
	}{
		{&wire.Publish{Stamp: st, Extent: 0, Seq: 1, Pages: dsm.AllPages, Index: []byte{9, 9, 9}}, []byte("xyz")},
		{&wire.Publish{Stamp: st, Extent: 0, Seq: 1 << 60, Pages: dsm.Range(0, 1)}, make([]byte, 8192)},
		{&wire.HandoverExtent{Stamp: st, Slot: 3, Pages: dsm.AllPages}, nil},
		{&wire.HandoverDone{Epoch: st.Epoch, Slots: []dsm.Slot{60000}}, nil},
		{"not a message", nil},
	}
	for _, b := range bad {
		if err := home.node.Handle(replica.id, b.msg, b.payload); err == nil {
			t.Errorf("%T %+v was accepted", b.msg, b.msg)
		}
	}
	// Extents past the end are no crime: they may have been truncated meanwhile.
	for _, m := range []any{&wire.Publish{Stamp: st, Extent: 4e9, Seq: 1, Pages: dsm.AllPages}, &wire.Fetch{Stamp: st, Extent: 4e9, Pages: dsm.AllPages}} {
		if err := home.node.Handle(replica.id, m, nil); err != nil {
			t.Errorf("%T: %v", m, err)
		}
	}
	want(t, home, 0)
}
