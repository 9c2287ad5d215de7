package coherence

import (
	"bytes"
	"math"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestKeepPages: a node that ends takes nothing from programs that keep what they have
// mapped, however long it takes to leave the cluster.
func TestKeepPages(t *testing.T) {
	for _, ino := range []dsm.Inode{{Size: dsm.ExtentSize}, onDemand(dsm.Inode{Size: dsm.ExtentSize})} {
		t.Run(ino.Spec.Residency.String(), func(t *testing.T) {
			s := newSim(t, 1, 1, ino)
			n := s.nodes[0]
			n.open(true)
			for !n.here(0) {
				s.drain()
			}
			put(t, n, 5)
			publish(n)
			s.rested()
			want := bytes.Clone(n.area.mu.mem.Working(0))
			program, err := n.area.mu.mem.OpenWorking(false)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = program.Close() }() // only read
			n.node.KeepPages()
			n.area.step(func() {
				if v := n.area.evictLocked(0, dsm.AllPages, true); !v.gone.Empty() {
					t.Errorf("pages %x were evicted", v.gone)
				}
			})
			n.kernel.finishNotices()
			n.area.Close(true)
			n.area.Close(false)
			n.area.expire()
			s.drain()
			n.node.Close()
			got := make([]byte, len(want))
			if _, err := program.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the program has %x, %v; want %x", got[:16], err, want[:16])
			}
		})
	}
}

// TestEvictWaitsForTheKernel: of the pages that the page cache has no more are told to leave than there is
// room wanted for, though none has left before the kernel answers; and who waits for room looks
// again when pages stay, because somebody used them.
func TestEvictWaitsForTheKernel(t *testing.T) {
	s := newSim(t, 1, 1, onDemand(dsm.Inode{Size: simSize}))
	n := s.nodes[0]
	room := &n.node.room
	room.budget = leastRoom
	n.open(false)
	for p := range dsm.PageIndex(room.limit()) {
		for n.kernel.fault(p) == nil {
			s.drain()
		}
	}
	if room.evict(t.Context(), evictBatch/2) {
		t.Error("pages have left that the page cache has")
	}
	leaving := 0
	for {
		k := len(n.kernel.out)
		n.kernel.takeNotice()
		if len(n.kernel.out) == k {
			break
		}
		leaving += int(n.kernel.out[k].Len / dsm.PageSize)
	}
	if leaving < evictBatch/2 || leaving > evictBatch {
		t.Errorf("%d pages are told to leave, for %d", leaving, evictBatch/2)
	}
	for len(n.kernel.out) > 0 {
		n.kernel.carryOut()
	}
	for p := range dsm.PageIndex(room.limit()) {
		n.kernel.fault(p)
	}
	room.waiters.Add(1)
	bell := room.hear()
	n.kernel.finishNotices()
	select {
	case <-bell:
	default:
		t.Error("who waits for room is not told that pages have not left")
	}
}

// TestPagesMakeRoomForAreas: when areas come that take a part of the memory, pages on demand leave, though none is asked for.
func TestPagesMakeRoomForAreas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1, 1, onDemand(dsm.Inode{Size: simSize}))
		n := s.nodes[0]
		room := &n.node.room
		room.budget, room.least = 2*simSize, simRoom*pageCost
		n.open(false)
		const pages = 400
		for p := range dsm.PageIndex(pages) {
			for n.kernel.fault(p) == nil {
				s.drain()
			}
		}
		if was := room.taken.Load(); was < pages || was > room.limit() {
			t.Fatalf("%d pages are taken, there is room for %d", was, room.limit())
		}
		const others = simSize
		room.charge(0, others, others)
		defer room.charge(0, -others, -others)
		n.area.step(func() {})
		s.calm()
		if now := room.taken.Load(); now > room.limit() {
			t.Errorf("%d pages are taken, there is room for %d", now, room.limit())
		}
	})
}

// rung reports whether calls that wait for room are made to look again by what is done.
func (m *room) rung(what func()) bool {
	m.waiters.Add(1)
	defer m.waiters.Add(-1)
	bell := m.hear()
	what()
	select {
	case <-bell:
		return true
	default:
		return false
	}
}

// TestEvictWaitsForAFiniteNumber: a page with an element that must not be published stays, and makes nobody who waits for room look again, until a
// program has stored another.
func TestEvictWaitsForAFiniteNumber(t *testing.T) {
	s := newHomed(t, 2, onDemand(finiteOnly(dsm.MergeLast, dsm.ApplyArrival)))
	n := s.nodes[1]
	room := &n.node.room
	room.budget = leastRoom
	s.openAll()
	for !n.bring(0) {
		s.drain()
	}
	evict := func() {
		room.evict(t.Context(), int(room.limit()))
		n.kernel.finishNotices()
		s.rested()
	}
	n.store(t, 5, float32(math.NaN()))
	n.store(t, 6, 1)
	evict() // publishes the other element
	if s.rested(); n.area.mu.replica.extents[0].dirty.Len() != 1 {
		t.Fatal("the element that must not be published has left")
	}
	if room.rung(evict) {
		t.Error("who waits for room looks again, and finds the same page")
	}
	n.store(t, 5, 2)
	if !room.rung(evict) {
		t.Error("who waits for room is not told that the page is clean")
	}
	evict()
	if n.here(0) {
		t.Error("the page stays")
	}
}

// TestEvictWaitsForTheRound: pages that wait for the end of a round make nobody who waits for room look again before it.
func TestEvictWaitsForTheRound(t *testing.T) {
	s := newHomed(t, 2, onDemand(sumOf(dsm.DTypeI32, dsm.ApplyArrival)))
	n, id := s.nodes[1], dsm.RoundID{Group: 99, Generation: 1, Number: 1}
	room := &n.node.room
	room.budget = leastRoom
	s.openAll()
	put(t, n, 5)
	if _, err := n.area.inRound(t.Context(), id, n.area.contributeLocked); err != nil {
		t.Fatal(err)
	}
	s.until("part", func() bool { return n.area.hasPartsLocked(0) })
	if room.rung(func() { room.evict(t.Context(), int(room.limit())) }) {
		t.Error("who waits for room looks again, and finds the same part")
	}
	if !room.rung(func() { n.area.AbandonRound(id); s.rested() }) {
		t.Error("who waits for room is not told that the round is over")
	}
	n.kernel.finishNotices()
	room.evict(t.Context(), int(room.limit()))
	n.kernel.finishNotices()
	if n.here(0) {
		t.Error("the page stays")
	}
}

// TestResidencyBySnapshot: a node that gets the catalog as a snapshot sees an area change its kind and
// its size at once, there and back.
func TestResidencyBySnapshot(t *testing.T) {
	for _, c := range []struct{ from, to int64 }{{0, simSize}, {dsm.ExtentSize, simSize}, {dsm.ExtentSize, 0}} {
		s := newSim(t, 1, 1, dsm.Inode{Size: c.from})
		n := s.nodes[0]
		n.open(true)
		for _, kind := range []dsm.Residency{dsm.ResidencyDemand, dsm.ResidencyFull} {
			if c.from > 0 {
				s.resized(c.from)
				put(t, n, 5)
				publish(n)
				s.rested()
			}
			s.changeRules(func(ino *dsm.Inode) { ino.Spec.Residency, ino.Size = kind, c.to })
			s.catchUp()
			if is := n.area.Demand(); is != (kind == dsm.ResidencyDemand) {
				t.Errorf("from %d to %d bytes, %v: on demand is %v", c.from, c.to, kind, is)
			}
			if c.to > 0 {
				for !n.here(0) {
					s.drain()
				}
				want(t, n, 0)
			}
		}
	}
}

// TestStoreToAPageThatFailed: a store that waits for a page is not forgotten when the page has come and could
// not be put in place: a publish asks for it again.
func TestStoreToAPageThatFailed(t *testing.T) {
	s := newSim(t, 1, 1, onDemand(dsm.Inode{Size: dsm.ExtentSize}))
	n := s.nodes[0]
	n.open(true)
	n.area.note(func() {
		n.area.storeLocked([]byte{5}, 0, writtenThrough)
		x := n.area.mu.replica.extents[0]
		x.asked = n.area.answeredLocked(x, x.asked, dsm.PageSet{})
		n.area.mu.out = nil // the Fetch has been answered
	})
	var goal publishGoal
	n.area.step(func() { goal = n.area.requestPublishLocked() })
	s.until("publish", func() bool { return n.area.reachedLocked(goal) })
	want(t, n, 5)
}
