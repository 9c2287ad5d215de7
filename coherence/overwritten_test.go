package coherence

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestWrittenTheSame: a node writes a byte, and that is acknowledged. Another one, which has not heard of it, writes the byte that it has had all the time: it is the last one, and all nodes have it. Where the other bytes of the page differ nothing is lost.
func TestWrittenTheSame(t *testing.T) {
	for _, at := range []string{"elsewhere", "first", "second"} { // where the home is
		for _, pushed := range []bool{false, true} { // what was published first comes between the write and its publish
			for _, other := range []bool{false, true} { // so does what was published before that, of another byte
				for _, demand := range []bool{false, true} {
					t.Run(fmt.Sprint(at, pushed, other, demand), func(t *testing.T) {
						ino := dsm.Inode{Size: 2 * dsm.PageSize}
						if demand {
							ino = onDemand(ino)
						}
						s := newHomed(t, 3, ino)
						home := s.nodes[0]
						a, b := s.nodes[1], s.nodes[2]
						switch at {
						case "first":
							a = home
						case "second":
							b = home
						}
						s.openAll()
						s.drain()
						write := func(n *simNode, off int64, v ...byte) {
							t.Helper()
							for !n.here(0) {
								s.drain()
							}
							if err := n.area.WriteAt(t.Context(), v, off); err != nil {
								t.Fatal(err)
							}
						}
						publishes := func(n *simNode) {
							t.Helper()
							publish(n)
							for range 3 { // to the home, and its ack: no push gets to the other node, nor to the replica of the home
								s.deliverAll(link{n.i, home.i})
								s.deliverAll(link{home.i, n.i})
							}
							if x := n.area.mu.replica.extents[0]; x.pub != nil {
								t.Fatal("it is not acknowledged")
							}
						}
						write(a, 8, '0', '0')
						publish(a)
						s.drain()
						for _, n := range []*simNode{a, b} {
							write(n, 100, 'x') // all have the page
							publish(n)
							s.drain()
						}
						if other {
							write(a, 200, 'y')
							publishes(a)
						}
						write(a, 8, '1')
						publishes(a)
						write(b, 8, '0')
						if pushed {
							s.drain()
						}
						publish(b)
						s.drain()
						for _, n := range []*simNode{home, a, b} {
							for !n.here(0) {
								s.drain()
							}
							want := []byte{'0', '0'}
							if got := n.area.mu.mem.Working(0); !bytes.Equal(got[8:10], want) || got[100] != 'x' || other && got[200] != 'y' {
								t.Errorf("node %d has %q, %q and %q", n.i, got[8:10], got[100], got[200])
							}
						}
					})
				}
			}
		}
	}
}

// TestWrittenAndRefused: updates enter memory in sync calls only, and a home refuses a publish because another node has made the file shorter. What was written counts all the same where
// this node had the same bytes.
func TestWrittenAndRefused(t *testing.T) {
	s := newHomed(t, 3, dsm.Inode{Size: 2 * dsm.PageSize, Spec: dsm.Spec{Apply: dsm.ApplySync}})
	s.openAll()
	s.drain()
	write := func(n *simNode, off int64, data string) {
		t.Helper()
		if err := n.area.WriteAt(t.Context(), []byte(data), off); err != nil {
			t.Fatal(err)
		}
		publish(n)
	}
	for _, n := range s.nodes {
		write(n, 8, "same")
		s.drain()
	}
	home, b := s.nodes[0], s.nodes[2]
	write(s.nodes[1], 8, "1111")
	s.drain()
	write(b, 9, "am")
	s.resized(dsm.PageSize)
	s.drain()
	if got := home.area.mu.mem.Home(0)[8:12]; string(got) != "1am1" {
		t.Errorf("the home has %q", got)
	}
	if w := b.area.mu.replica.leaves().written; len(w) > 0 {
		t.Errorf("it is noted what was written to %d pages", len(w))
	}
}

// TestWrittenAndCut: what was written past where another node cuts the file does not come back when it has grown.
func TestWrittenAndCut(t *testing.T) {
	for _, size := range []int64{0, 4, dsm.PageSize, dsm.PageSize + 50} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s, home, n := pairOf(t, dsm.Inode{Size: 2 * dsm.PageSize})
			for _, off := range []int64{8, dsm.PageSize + 100} {
				if err := n.area.WriteAt(t.Context(), []byte{7, 7}, off); err != nil {
					t.Fatal(err)
				}
			}
			publish(n)
			s.drain()
			for _, off := range []int64{8, dsm.PageSize + 100} {
				if err := n.area.WriteAt(t.Context(), []byte{7, 7}, off); err != nil {
					t.Fatal(err)
				}
			}
			s.resized(size)
			s.drain()
			s.resized(2 * dsm.PageSize)
			s.drain()
			publish(n)
			s.drain()
			for _, o := range []*simNode{home, n} {
				for _, off := range []int64{8, dsm.PageSize + 100} {
					want := byte(0)
					if off < size {
						want = 7
					}
					if got := o.area.mu.mem.Working(dsm.PageIndex(off / dsm.PageSize))[off%dsm.PageSize]; got != want {
						t.Errorf("node %d has %d at %d, want %d", o.i, got, off, want)
					}
				}
			}
			if w := n.area.mu.replica.leaves().written; len(w) > 0 {
				t.Errorf("it is noted what was written to %d pages", len(w))
			}
		})
	}
}

// TestWrittenZeroes: zeroes that a program writes where all is zero take no memory, and are not sent.
func TestWrittenZeroes(t *testing.T) {
	s, home, n := pairOf(t, dsm.Inode{Size: 4 * dsm.PageSize})
	if err := n.area.WriteAt(t.Context(), make([]byte, 3*dsm.PageSize), 10); err != nil {
		t.Fatal(err)
	}
	publish(n)
	s.drain()
	if got := n.node.stats.publishes.Load(); got != 0 || home.area.mu.home.pages != 0 {
		t.Errorf("%d publishes; the home has %d pages", got, home.area.mu.home.pages)
	}
}

func TestWrittenBytes(t *testing.T) {
	for lo := 0; lo <= 200; lo += 7 {
		for hi := lo; hi <= 300; hi += 13 {
			for _, end := range []int{0, 3, 64, 100, 191, dsm.PageSize} {
				w := new(writtenBytes)
				w.add(lo, hi)
				w.cut(end)
				base, page := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
				w.unlike(base, page)
				for i, b := range base {
					if is := i >= lo && i < min(hi, end); (b != page[i]) != is {
						t.Fatalf("[%d,%d) cut at %d: byte %d differs: %v", lo, hi, end, i, !is)
					}
				}
			}
		}
	}
	base, page := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
	allWritten.unlike(base, page)
	for i, b := range base {
		if b == page[i] {
			t.Fatalf("all: byte %d does not differ", i)
		}
	}
}

// TestWrittenByAnotherRule: the rule is `sum` when what was written is published: only what is different is added.
func TestWrittenByAnotherRule(t *testing.T) {
	s, home, n := pairOf(t, dsm.Inode{Size: dsm.PageSize})
	for i := range 2 {
		if err := n.area.WriteAt(t.Context(), []byte{5, 0, 0, 0}, 8); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			publish(n)
		}
		s.drain()
	}
	s.changeRules(func(ino *dsm.Inode) { ino.Spec.Merge, ino.Layout.DType = dsm.MergeSum, dsm.DTypeI32 })
	s.catchUp()
	s.drain()
	publish(n)
	s.drain()
	if got := home.area.mu.mem.Home(0)[8]; got != 5 {
		t.Errorf("the home has %d, want 5", got)
	}
}

// TestWrittenBesideTheHome: updates enter memory in sync calls only, so the replica of the home's node has not what another node has published. A program there writes what its memory has: it is the last one.
func TestWrittenBesideTheHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, n := pairOf(t, dsm.Inode{Size: dsm.PageSize, Spec: dsm.Spec{Apply: dsm.ApplySync}})
		write := func(o *simNode, v byte) {
			t.Helper()
			if err := o.area.WriteAt(t.Context(), []byte{v}, 8); err != nil {
				t.Fatal(err)
			}
			publish(o)
			s.drain()
		}
		write(home, 5)
		for _, o := range []*simNode{home, n} {
			o.ask("sync", func(ctx context.Context) error { return o.area.Sync(ctx, true) }, nil)
			s.calm()
		}
		write(n, 6)
		if h, w := home.area.mu.mem.Home(0)[8], home.area.mu.mem.Working(0)[8]; h != 6 || w != 5 {
			t.Fatalf("the home has %d, and its replica %d", h, w)
		}
		write(home, 5)
		if got := home.area.mu.mem.Home(0)[8]; got != 5 {
			t.Errorf("the home has %d, want 5", got)
		}
	})
}
