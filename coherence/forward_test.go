package coherence

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestTwoParkedPublishesOfAPage: two nodes publish to a page while its slot is on its way to a
// third one, which has the area open. Both are merged in one step when the slot is here: the first is forwarded
// to the home's own replica, the second makes a twin of a page that contains the first already.
func TestTwoParkedPublishesOfAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		before, after, third := s.nodes[0], s.nodes[1], s.nodes[2]
		for _, n := range s.nodes {
			n.open(n != after)
		}
		s.drain()
		s.move(after, 1)

		put(t, before, 5)
		publish(before)
		put(t, third, 70)
		publish(third)
		s.deliverAll(link{0, 1})
		s.deliverAll(link{2, 1})
		// A program of the new home waits, in an open or an acquire, for the kernel to have been told of everything.
		after.area.step(after.area.drainLocked)
		s.drain()

		b := make([]byte, 4)
		if _, err := after.area.ReadAt(context.Background(), b, 0); err != nil {
			t.Fatal(err)
		}
		if got := binary.LittleEndian.Uint32(b); got != 0 && got != 5 && got != 70 && got != 75 {
			t.Errorf("a program of the home reads %d, want 0, 5, 70 or 75", got)
		}
		after.area.step(after.area.drainedLocked)
		s.rested()
		for _, n := range s.nodes {
			want(t, n, 75)
		}
	})
}

// TestForwardToAHomeWithoutBases: a node that only reads an area on demand keeps no base copies. It becomes
// the home, and another node publishes: the twin, made of a base that says nothing, is not what the publish is put on.
func TestForwardToAHomeWithoutBases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, onDemand(sums(1, dsm.ApplyArrival)))
		before, after := s.nodes[0], s.nodes[1]
		before.open(true)
		after.open(false)
		s.drain()
		put(t, before, 1000)
		s.drain()
		publish(before)
		s.drain()
		after.kernel.fault(0)
		s.drain()
		want(t, after, 1000)
		s.move(after, 1)
		put(t, before, 1005)
		publish(before) // parked behind the Subscribe of the new home to itself
		s.deliverAll(link{0, 1})
		s.drain()
		s.rested()
		want(t, before, 1005)
		want(t, after, 1005)
	})
}

// TestForwardAfterADroppedAck: a home passes a publish on to a node that has not had the ack of its own one. Both are in memory, and in the base.
func TestForwardAfterADroppedAck(t *testing.T) {
	s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
	n, other := s.nodes[1], s.nodes[2]
	s.openAll()
	s.drain()
	put(t, n, 5)
	publish(n)
	s.deliverAll(link{1, 0})
	s.net[link{0, 1}] = nil // the session has ended, and n has not heard of that
	s.deliverAll(link{0, 2})
	s.deliverAll(link{2, 0})
	put(t, other, 75)
	publish(other)
	s.deliverAll(link{2, 0})
	if got := sends[*wire.Push](s, link{0, 1}); got != 1 {
		t.Fatalf("%d pushes, want 1", got)
	}
	s.deliverAll(link{0, 1})
	want(t, n, 75)
	if got := int32(binary.LittleEndian.Uint32(n.area.mu.mem.Base(0))); got != 75 {
		t.Errorf("the base has %d, want 75", got)
	}
	n.reset(s.nodes[0])
	s.rested()
	want(t, n, 75)
}
