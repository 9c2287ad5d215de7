package coherence

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestHomeWithLateAcksKeepsItsBase: the home's own replica does not ack pushes
// while its kernel is behind, so a publish of another node is not followed by a
// push to it in the same step, and its base must not follow the home copy.
func TestHomeWithLateAcksKeepsItsBase(t *testing.T) {
	const extents = untakenLimit/dsm.ExtentSize + 4
	s, home, replica := pairOf(t, sums(extents, dsm.ApplyArrival))
	for p := range dsm.PageIndex(extents * dsm.ExtentPages) {
		home.kernel.fault(p)
	}
	store := func(off int64, b []byte) {
		if err := replica.area.WriteAt(context.Background(), b, off); err != nil {
			t.Fatal(err)
		}
	}
	ones := bytes.Repeat([]byte{1, 0, 0, 0}, dsm.ExtentSize/4)
	for e := range int64(extents) {
		store(e*dsm.ExtentSize, ones)
	}
	publish(replica)
	s.drain()
	if len(home.area.mu.replica.lateAcks) == 0 {
		t.Fatal("the home's kernel is not behind")
	}

	last := dsm.PageIndex((extents - 1) * dsm.ExtentPages)
	store(int64(last)*dsm.PageSize, []byte{101, 0, 0, 0})
	publish(replica)
	s.drain()
	c := home.kernel.fault(last) // a program of the home stores to another element of the page
	c.data[40]++
	c.dirty = true
	home.kernel.harvest(1)
	publish(home)
	s.drain()
	s.rested()
	for _, n := range s.nodes {
		w := n.area.mu.mem.Working(last)
		if got := binary.LittleEndian.Uint32(w); got != 101 {
			t.Errorf("node %d has %d, want 101: the publish of the other node is undone", n.i, got)
		}
		if got := binary.LittleEndian.Uint32(w[40:]); got != 2 {
			t.Errorf("node %d has %d, want 2: the store is lost or doubled", n.i, got)
		}
	}
}

// TestDeclinedPushIsNotRepeated: the home of one extent becomes the home of another as
// well and opens the area for writing. Its Subscribe that says what it has is parked until the
// handover is over; its own pushes to itself are declined before.
func TestDeclinedPushIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(2, dsm.ApplyAuto))
		home, other := s.nodes[0], s.nodes[1]
		moving := dsm.SlotOf(simArea, 1)
		if moving == dsm.SlotOf(simArea, 0) {
			t.Fatal("both extents are in one slot")
		}
		s.changeView(func(v *dsm.View) { v.Slots[moving].Primary = other.id })
		s.catchUp()
		home.open(false)
		other.open(true)
		s.drain()
		s.changeView(func(v *dsm.View) {
			v.Slots[moving] = dsm.SlotHome{Primary: home.id, Source: other.id, Epoch: v.Epoch}
		})
		home.apply() // and the other has not heard of it, or its publish would be parked as well
		home.startOpen(true)
		put(t, other, 5)
		publish(other)
		s.deliverAll(link{1, 0})
		want(t, home, 0)
		s.rested()
		want(t, home, 5)
		want(t, other, 5)
	})
}

// TestStoreToAPageReadPastTheEnd: the kernel has not heard of two shrinks. Between them a program read a page past the end; the area grows
// again, and the program stores to the page. The store does not count, for the page is of before the second shrink.
func TestStoreToAPageReadPastTheEnd(t *testing.T) {
	const p = dsm.ExtentPages
	s, _, replica := pairOf(t, onDemand(dsm.Inode{Size: 2 * dsm.ExtentSize}))
	replica.kernel.deaf = true
	s.resized(dsm.ExtentSize)
	replica.kernel.readPast(p)
	s.resized(dsm.ExtentSize - dsm.PageSize)
	s.resized(2 * dsm.ExtentSize)
	c := replica.kernel.cache[p]
	c.data[0], c.dirty = 7, true
	replica.kernel.harvest(1)
	s.drain()
	for !replica.here(p) { // nothing asked for it
		s.drain()
	}
	if b := replica.area.mu.mem.Working(p)[0]; b != 0 {
		t.Errorf("it is %d, want 0: a store to a page of before a shrink is taken", b)
	}
}

// TestRefusedStoreToAPageThatIsNotHere: of more pages than are kept the kernel has not heard that they were truncated. A store that cannot be
// told from what was there is refused when the kernel writes it back, also where its page has to come first: later is too late.
func TestRefusedStoreToAPageThatIsNotHere(t *testing.T) {
	const extents = 66 // what is kept, and two more
	s, _, replica := pairOf(t, onDemand(dsm.Inode{Size: extents * dsm.ExtentSize}))
	s.resized(dsm.ExtentSize)
	past := make([]byte, (extents-1)*dsm.ExtentSize)
	replica.area.step(func() { replica.area.readLocked(past, dsm.ExtentSize) })
	s.resize(dsm.ExtentSize - dsm.PageSize)
	s.resized(extents * dsm.ExtentSize)
	refused := 0
	for e := int64(1); e < extents; e++ {
		off := e * dsm.ExtentSize
		err := replica.area.WriteBack(t.Context(), []byte{7}, off)
		s.drain()
		if err != nil { // the page need not be here
			refused++
		} else if b := replica.area.mu.mem.Working(dsm.PageIndex(off / dsm.PageSize))[0]; b != 7 {
			t.Fatalf("extent %d: %d, want 7: a WRITE that was answered is lost", e, b)
		}
	}
	if refused == 0 || refused == extents-1 {
		t.Errorf("%d of %d are refused", refused, extents-1)
	}
}
