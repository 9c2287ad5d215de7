package coherence

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestPunchOfAPageThatIsNotHere: the kernel drops the hole from its page cache some time after the answer, and the zeroes
// are stored only when the page comes. In between the reply to a READ has zeroes in the hole, whatever other nodes store there.
// The next write(2) of the file shows that the kernel has dropped it.
func TestPunchOfAPageThatIsNotHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, onDemand(dsm.Inode{Size: 2 * dsm.PageSize}))
		home, n := s.nodes[0], s.nodes[1]
		home.open(true)
		n.open(true)
		s.drain()
		store := func(b byte, off int64) {
			if err := home.area.WriteAt(t.Context(), []byte{b}, off); err != nil {
				t.Fatal(err)
			}
			publish(home)
			s.drain()
		}
		store(5, 100)
		ctx := context.Background()
		if err := n.area.WriteAt(ctx, []byte{9}, 10); err != nil { // comes before the punch, and waits for the page as well
			t.Fatal(err)
		}
		if _, err := n.area.Punch(ctx, 100, dsm.PageSize); err != nil {
			t.Fatal(err)
		}
		if n.here(0) {
			t.Fatal("the page is here before the punch is answered")
		}
		s.until("the page", func() bool { return n.here(0) })
		publish(n)
		s.drain()
		store(6, 200)
		read := func() []byte {
			b := make([]byte, dsm.PageSize)
			r := start(s, func(ctx context.Context) error { _, err := n.area.ReadAt(ctx, b, 0); return err })
			if !r.over(t) {
				t.Fatal("the READ is not answered")
			}
			return b
		}
		if b := read(); b[10] != 9 || b[100] != 0 || b[200] != 0 {
			t.Errorf("the page cache is given %d, and %d and %d in the hole that the kernel may be dropping", b[10], b[100], b[200])
		}
		if err := n.area.WriteAt(ctx, []byte{1}, 10); err != nil {
			t.Fatal(err)
		}
		if b := read(); b[10] != 1 || b[100] != 0 || b[200] != 6 {
			t.Errorf("after the punch the page cache is given %d, %d, %d; want 1, 0, 6", b[10], b[100], b[200])
		}
	})
}

// TestPunchIsOver: the thread that has punched goes on. That ends its own hole, and not one that was punched since.
func TestPunchIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, dsm.Inode{Size: 2 * dsm.PageSize})
		n, other := s.nodes[0], s.nodes[1]
		n.open(true)
		other.open(true)
		s.drain()
		first, err := n.area.Punch(t.Context(), 100, dsm.PageSize)
		if err != nil {
			t.Fatal(err)
		}
		second, err := n.area.Punch(t.Context(), 100, dsm.PageSize)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.area.WriteDirect(t.Context(), []byte{6}, 200); err != nil {
			t.Fatal(err)
		}
		publish(other)
		s.drain()
		for _, at := range []struct {
			over func()
			want byte
		}{{func() {}, 0}, {first, 0}, {second, 6}, {first, 6}} {
			at.over()
			b := make([]byte, dsm.PageSize)
			if _, err := n.area.ReadAt(t.Context(), b, 0); err != nil || b[200] != at.want {
				t.Errorf("the page cache is given %d, %v; want %d", b[200], err, at.want)
			}
		}
	})
}

// TestStoresThatWereTruncated: stores wait for a page while the area shrinks and grows again. What was truncated of them does not come back.
func TestStoresThatWereTruncated(t *testing.T) {
	for _, ino := range []dsm.Inode{{Size: dsm.PageSize}, onDemand(dsm.Inode{Size: dsm.PageSize})} {
		t.Run(ino.Spec.Residency.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 2, ino)
				home, n := s.nodes[0], s.nodes[1]
				home.open(true)
				put(t, home, 5)
				publish(home)
				s.drain()
				n.open(true)
				if n.here(0) {
					t.Fatal("the page is here before it was stored to")
				}
				if err := n.area.WriteAt(t.Context(), bytes.Repeat([]byte{7}, 100), 50); err != nil {
					t.Fatal(err)
				}
				s.resized(100)
				s.resized(dsm.PageSize)
				s.until("the page", func() bool { return n.here(0) })
				publish(n)
				s.drain()
				for _, n := range s.nodes {
					if w := n.area.mu.mem.Working(0); w[50] != 7 || w[99] != 7 || w[100] != 0 || w[149] != 0 {
						t.Errorf("node %d has %d before the end, %d after it", n.i, w[99], w[100])
					}
				}
			})
		})
	}
}
