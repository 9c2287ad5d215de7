package coherence

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestBeginFault: a fault that takes no more than to ask is told of when the page comes; all others are
// Fault's.
func TestBeginFault(t *testing.T) {
	s := newSim(t, 2, 1, onDemand(dsm.Inode{Size: 4 * dsm.ExtentSize}))
	n := s.nodes[0]
	n.open(false)
	s.drain()
	told := 0
	begin := func(p dsm.PageIndex) bool { return n.area.BeginFault(int64(p)*dsm.PageSize, func() { told++ }) }
	if !begin(0) {
		t.Fatal("a page that is not here is not asked for")
	}
	s.drain()
	if told != 1 || !n.area.presentLocked(0, dsm.PageSize) {
		t.Errorf("told %d times, here %v", told, n.area.presentLocked(0, dsm.PageSize))
	}
	if begin(0) {
		t.Error("of a page that is here a call is promised")
	}
	if begin(4 * dsm.ExtentPages) {
		t.Error("of a page past the end a call is promised")
	}
	n.node.room.budget = leastRoom
	n.node.room.taken.Add(n.node.room.limit()) // full
	if begin(100) {
		t.Error("with no room a call is promised")
	}
	n.node.room.taken.Add(-n.node.room.limit())
	s.drain()
	if told != 1 {
		t.Errorf("told %d times of one page", told)
	}
	if got := n.node.stats.faults.Load(); got != 4 {
		t.Errorf("%d faults counted, want 4", got)
	}
}

// TestArrivalsAreForgotten: pages that come while another is waited for leave nothing behind.
func TestArrivalsAreForgotten(t *testing.T) {
	s := newSim(t, 2, 1, onDemand(dsm.Inode{Size: 4 * dsm.ExtentSize}))
	n := s.nodes[0]
	n.open(false)
	s.drain()
	a := n.area
	a.step(func() { a.onArrivalLocked(dsm.PageIndex(3*dsm.ExtentPages), func() {}) }) // its home is silent
	for p := range dsm.PageIndex(50) {
		for !n.here(p) {
			s.drain()
		}
	}
	if k := len(a.mu.used); k > 0 {
		t.Errorf("%d arrivals are kept", k)
	}
}

// TestBeginFaultOverLimit: the page was asked for already, by readahead, and since there is more here than there is
// room for.
func TestBeginFaultOverLimit(t *testing.T) {
	s, _, n := pairOf(t, onDemand(dsm.Inode{Size: dsm.ExtentSize}))
	room := &n.node.room
	room.budget = leastRoom
	n.area.step(func() { n.area.fetchLocked(0, dsm.PageSize) })
	room.overtake(int(room.limit()))
	told := false
	if !n.area.BeginFault(0, func() { told = true }) {
		t.Fatal("a page that is on its way is not waited for")
	}
	if s.drain(); !told {
		t.Error("not told of the page")
	}
}

// TestBeginFaultIsBrief: it does not publish for others, nor send what others have to send meanwhile.
func TestBeginFaultIsBrief(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const extents = 64
		s := newHomed(t, 1, onDemand(dsm.Inode{Size: extents * dsm.ExtentSize}))
		n := s.nodes[0]
		n.open(true)
		s.drain()
		for e := range int64(extents) {
			b := bytes.Repeat([]byte{byte(e + 1)}, dsm.ExtentSize-dsm.PageSize)
			if err := n.area.WriteAt(context.Background(), b, e*dsm.ExtentSize); err != nil {
				t.Fatal(err)
			}
			s.drain()
		}
		n.area.note(func() { // a publish is between two steps
			for e, x := range n.area.mu.replica.extents {
				n.area.wantLocked(dsm.ExtentIndex(e), x)
			}
		})
		before := n.node.stats.publishes.Load()
		again := false // stepBriefly without its goroutine
		n.area.request(func(event func()) { again = n.area.oneStep(0, true, event) }, dsm.ExtentSize-dsm.PageSize, dsm.PageSize, func() {}, nil)
		if k := n.node.stats.publishes.Load() - before; k > 2*publishBatch/dsm.ExtentPages || !again {
			t.Errorf("%d extents are published; some are left: %v", k, again)
		}
		n.area.stepBriefly(n.area.startPublicationsLocked)
		synctest.Wait() // its goroutine does
		if k := n.node.stats.publishes.Load() - before; k != extents {
			t.Errorf("%d extents are published in the end, want %d", k, extents)
		}
	})
}

// TestNoWaitForRoomWhileAllIsDropped: the kernel has the page of a READ or a write(2) locked, and a drop of all pages waits for it. No page leaves meanwhile, so neither waits for room, also if it did when the drop began.
func TestNoWaitForRoomWhileAllIsDropped(t *testing.T) {
	for _, waits := range []bool{false, true} {
		for _, writes := range []bool{false, true} {
			t.Run(fmt.Sprint(waits, writes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSim(t, 2, 2, onDemand(dsm.Inode{Size: dsm.ExtentSize}))
					n := s.nodes[1]
					n.open(true)
					s.calm()
					room := &n.node.room
					room.budget = leastRoom
					room.overtake(int(room.limit())) // of pages that do not leave
					over := false
					call := func() {
						n.ask("use a page", func(ctx context.Context) error {
							if writes {
								return n.area.WriteAt(ctx, []byte{7}, 100)
							}
							_, err := n.area.ReadAt(ctx, make([]byte, dsm.PageSize), 0)
							return err
						}, func(err error) { over = err == nil })
					}
					if waits {
						call()
						if s.rest(); over {
							t.Fatal("it does not wait for room")
						}
					}
					ended := n.area.KernelDrops()
					if !waits {
						call()
					}
					if s.calm(); !over {
						t.Error("it waits for room")
					}
					ended()
					room.give(int(room.limit()))
				})
			})
		}
	}
}
