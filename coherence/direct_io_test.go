package coherence

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
)

// TestWriteDirectWaitsForTheKernel: as long as the page cache may show the bytes of before, the write is not answered.
func TestWriteDirectWaitsForTheKernel(t *testing.T) {
	for _, c := range []struct {
		name string
		tell func(n *simNode)
	}{
		{"notice", func(n *simNode) { n.kernel.finishNotices() }},
		{"read", func(n *simNode) {
			if _, err := n.area.ReadAt(context.Background(), make([]byte, dsm.PageSize), 0); err != nil {
				n.sim.t.Error(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 1, dsm.Inode{Size: 3 * dsm.PageSize})
				n := s.nodes[0]
				n.open(true)
				s.drain()
				n.kernel.fault(0)
				w := start(s, func(ctx context.Context) error { return n.area.WriteDirect(ctx, []byte{5}, 0) })
				if w.over(t) {
					t.Error("answered while the page cache shows the byte of before")
				}
				c.tell(n)
				if !w.over(t) {
					t.Error("not answered")
				}
				w.end()
				w = start(s, func(ctx context.Context) error { return n.area.WriteDirect(ctx, []byte{6}, dsm.PageSize) })
				if !w.over(t) {
					t.Error("a write to a page that the page cache does not have waits")
				}
				w.end()
			})
		})
	}
}

// TestReadDirectLeavesNothing: what is read past the page cache is the working copy, and nobody is told of
// changes of it.
func TestReadDirectLeavesNothing(t *testing.T) {
	s := newHomed(t, 1, dsm.Inode{Size: 2*dsm.PageSize - 10})
	n := s.nodes[0]
	n.open(true)
	s.drain()
	if err := n.area.WriteDirect(context.Background(), []byte{5}, 5); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2*dsm.PageSize)
	if k, err := n.area.ReadDirect(context.Background(), got, 4); err != nil || k != 2*dsm.PageSize-14 {
		t.Fatalf("read %d bytes: %v", k, err)
	}
	working := make([]byte, 2*dsm.PageSize)
	n.area.mu.mem.ReadWorking(working, 4)
	if !bytes.Equal(got, working) || got[1] != 5 {
		t.Error("not the bytes of the working copy")
	}
	if n.area.mu.cached.Given(0, dsm.PageSize) {
		t.Error("the page cache is taken to have what was read past it")
	}
	if k, err := n.area.ReadDirect(context.Background(), got, 2*dsm.PageSize); err != nil || k != 0 {
		t.Errorf("past the end: read %d bytes: %v", k, err)
	}
}

// TestPunchFreesMemory: a hole takes no memory any more once it is published, neither in the working copy nor in the base, and a
// page that another node has stored to since keeps what it has. If a program may have the memory still, all keep theirs.
func TestPunchFreesMemory(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks after each step touch pages, which then take memory")
	}
	const hole = 200
	const attached = "a node whose program may still have the memory"
	for _, who := range []string{"the home", "another node", attached} {
		t.Run(who, func(t *testing.T) {
			s, n, other := pairOf(t, dsm.Inode{Size: 4 * dsm.ExtentSize})
			if who != "the home" {
				n, other = other, n
			}
			copies := int64(2)
			if who == attached { // it could have the free wait
				at, f, err := n.area.Attach(t.Context(), 1, true)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = f.Close() }) // nothing was written to it
				at.Detach()
				copies = 0
			}
			if err := n.area.WriteDirect(t.Context(), bytes.Repeat([]byte{1}, hole*dsm.PageSize), 0); err != nil {
				t.Fatal(err)
			}
			publish(n)
			s.drain()
			before := n.area.ResidentBytes()
			if _, err := n.area.Punch(t.Context(), 0, hole*dsm.PageSize); err != nil {
				t.Fatal(err)
			}
			if err := other.area.WriteDirect(t.Context(), []byte{9}, 3*dsm.PageSize); err != nil {
				t.Fatal(err)
			}
			publish(other)
			publish(n)
			s.drain()
			if freed := before - n.area.ResidentBytes(); freed < copies*(hole-2)*dsm.PageSize || freed > copies*hole*dsm.PageSize {
				t.Errorf("%d pages are freed of %d punched, in %d copies", freed/dsm.PageSize, hole, copies)
			}
			for _, n := range s.nodes {
				got := make([]byte, hole*dsm.PageSize)
				n.area.mu.mem.ReadWorking(got, 0)
				want := make([]byte, hole*dsm.PageSize)
				if want[3*dsm.PageSize] = got[3*dsm.PageSize]; !bytes.Equal(got, want) {
					t.Errorf("node %d does not have a hole", n.i)
				}
			}
		})
	}
}
