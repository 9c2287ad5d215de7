package coherence

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestWritePastAShrunkEnd: a kernel that has not heard of a smaller size
// delivers stores past it. They are dropped, whatever they start at.
func TestWritePastAShrunkEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		size int64 // after the shrink
		off  int64
		data string
		kept int // bytes of data that are within the area
	}{
		{"straddling", 100, 98, "hello", 2},
		{"at the end", 100, 100, "hello", 0},
		{"in the last page", 100, 200, "hello", 0},
		{"in a later page", 100, 5000, "hello", 0},
		{"over two later pages", 100, 2*dsm.PageSize - 2, "hello", 0},
		{"in a truncated extent", 100, dsm.ExtentSize + 5000, "hello", 0},
		{"at the start of one", dsm.ExtentSize, dsm.ExtentSize, "hello", 0},
		{"over the end of the last extent", dsm.ExtentSize, dsm.ExtentSize - 2, "hello", 2},
		{"in an empty area", 0, 5000, "hello", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, 1, 1, dsm.Inode{Size: 2 * dsm.ExtentSize})
			n := s.nodes[0]
			n.open(true)
			s.resized(c.size)
			if err := n.area.WriteAt(context.Background(), []byte(c.data), c.off); err != nil {
				t.Fatal(err)
			}
			publish(n)
			s.resized(2 * dsm.ExtentSize)
			s.rested()
			got := make([]byte, len(c.data))
			n.area.mu.mem.ReadWorking(got, c.off)
			want := make([]byte, len(c.data))
			copy(want, c.data[:c.kept])
			if !bytes.Equal(got, want) {
				t.Errorf("after growing again the area has %q, want %q", got, want)
			}
		})
	}
}

// TestShrinkUnderStoresThatWait: stores to a page that is not here wait for it. The area shrinks, which the kernel does not hear of, and grows again. What was
// truncated must stay zero, also when the kernel writes the page back once more.
func TestShrinkUnderStoresThatWait(t *testing.T) {
	const end, p = 2 * dsm.ExtentSize, dsm.ExtentPages
	for name, c := range map[string]struct{ size, zero int64 }{
		"at the page": {dsm.ExtentSize, 0},
		"before it":   {dsm.ExtentSize - dsm.PageSize, 0},
		"in the page": {dsm.ExtentSize + 10, 10},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, replica := pairOf(t, onDemand(dsm.Inode{Size: end}))
			replica.kernel.deaf = true
			s.resized(dsm.ExtentSize)
			replica.kernel.readPast(p)
			s.resized(end)
			page := replica.kernel.cache[p]
			store := func(i int, v byte) {
				page.data[i], page.dirty = v, true
				replica.kernel.harvest(1)
			}
			for i := range 20 {
				store(i, 7)
			}
			s.resized(c.size)
			s.resized(end)
			store(30, 8)
			s.drain()
			want := make([]byte, 31) // the store to byte 30 is in the page of before the shrink
			for i := range c.zero {
				want[i] = 7
			}
			for !replica.here(p) { // perhaps nothing asked for it
				s.drain()
			}
			if got := replica.area.mu.mem.Working(p)[:len(want)]; !bytes.Equal(got, want) {
				t.Errorf("memory has %v, want %v", got, want)
			}
			s.check()
		})
	}
}

// TestWriteDirectPastAShrunkEnd: a write(2) past the page cache is dropped, since another node has truncated what it writes to. The area
// grows again, and another node stores there. The page cache never had what was dropped, so the next write-back of the page does not
// take back what the other node has stored.
func TestWriteDirectPastAShrunkEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, replica := pairOf(t, dsm.Inode{Size: 2 * dsm.PageSize})
		replica.kernel.deaf = true
		for _, size := range []int64{dsm.PageSize, 2 * dsm.PageSize} {
			s.resized(size)
			if size == dsm.PageSize {
				if _, err := replica.area.ReadAt(t.Context(), make([]byte, dsm.PageSize), dsm.PageSize); err != nil {
					t.Fatal(err)
				}
				q := replica.ask("write", func(ctx context.Context) error { return replica.area.WriteDirect(ctx, []byte{5}, dsm.PageSize) }, nil)
				defer q.cancel()
				synctest.Wait()
			}
		}
		if err := home.area.WriteAt(t.Context(), []byte{9}, dsm.PageSize); err != nil {
			t.Fatal(err)
		}
		publish(home)
		s.drain()
		stored := make([]byte, dsm.PageSize)
		stored[100] = 7
		if err := replica.area.WriteBack(t.Context(), stored, dsm.PageSize); err != nil {
			t.Fatal(err)
		}
		if b := replica.area.mu.mem.Working(1); b[0] != 9 || b[100] != 7 {
			t.Errorf("memory has %d and %d, want 9 and 7", b[0], b[100])
		}
	})
}

// TestShrinkBelowStoresThatWait: a page is written as a whole and stored to while it is not here, and then another node makes the area end in its middle. The
// kernel has been answered for both: when the page comes, what lies before the end is there.
func TestShrinkBelowStoresThatWait(t *testing.T) {
	const end, off, size = 2 * dsm.ExtentSize, dsm.ExtentSize, 1000
	s, _, replica := pairOf(t, onDemand(dsm.Inode{Size: end}))
	replica.kernel.deaf = true
	data := bytes.Repeat([]byte{1}, dsm.PageSize)
	if err := replica.area.WriteAt(t.Context(), data, off); err != nil {
		t.Fatal(err)
	}
	data[5] = 9
	if err := replica.area.WriteBack(t.Context(), data, off); err != nil {
		t.Fatal(err)
	}
	s.resized(off + size)
	s.resized(end)
	s.drain()
	clear(data[size:])
	got := make([]byte, dsm.PageSize)
	if replica.area.mu.mem.ReadWorking(got, off); !bytes.Equal(got, data) {
		t.Errorf("byte 5 is %d, byte %d is %d; want 9 and 0", got[5], size, got[size])
	}
}
