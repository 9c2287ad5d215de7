package coherence

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// counting is a Sender that counts messages.
type counting struct {
	nowhere
	n int
}

func (c *counting) Send(dsm.NodeID, any, [][]byte, bool) { c.n++ }

// TestOpenOfASparseArea: to open 1 TiB of which nothing was ever stored to takes a message to each home, and no memory for its extents.
func TestOpenOfASparseArea(t *testing.T) {
	v := oneHome()
	v.Slots[5].Primary, v.Slots[6].Primary = 2, 3
	sent := &counting{}
	n := New(Config{Self: 1, View: &slowPair{view: v, size: 1 << 40}, Sender: sent, Log: slog.New(slog.DiscardHandler), Linger: time.Hour})
	t.Cleanup(n.Close)
	a, err := n.area(1)
	if err != nil {
		t.Fatal(err)
	}
	a.step(func() { err = a.openedLocked(true) })
	if err != nil {
		t.Fatal(err)
	}
	if r := &a.mu.replica; sent.n != 2 || len(r.extents) > 1 || len(r.subs) != 2 || len(a.mu.home.subs[1].extents) > 1 {
		t.Errorf("%d messages, %d answers awaited, state of %d extents, and of %d at the home", sent.n, len(r.subs), len(r.extents), len(a.mu.home.subs[1].extents))
	}
}

// BenchmarkSparseArea does what must not depend on the size of an area: it has 1 TiB, of which nothing was ever stored to, and its
// homes are 500 nodes.
func BenchmarkSparseArea(b *testing.B) {
	const size, homes = 1 << 40, 500
	v := &dsm.View{Cluster: 1, Epoch: 1}
	for id := range dsm.NodeID(homes) {
		v.Members = append(v.Members, dsm.Member{ID: id + 1})
	}
	for sl := range v.Slots {
		v.Slots[sl] = dsm.SlotHome{Primary: dsm.NodeID(sl%homes + 1), Epoch: 1}
	}
	n := New(Config{Self: 1, View: &slowPair{view: v, size: size}, Sender: nowhere{}, Log: slog.New(slog.DiscardHandler), Linger: time.Hour})
	b.Cleanup(n.Close)
	a, err := n.area(1)
	if err != nil {
		b.Fatal(err)
	}
	open := func() {
		a.step(func() {
			if err := a.openedLocked(true); err != nil {
				b.Fatal(err)
			}
		})
	}
	shut := func() {
		a.Close(true)
		a.expire()
	}
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			open()
			b.StopTimer()
			shut()
			b.StartTimer()
		}
	})
	b.Run("close", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			open()
			b.StartTimer()
			shut()
		}
	})
	open()
	b.Run("fsync", func(b *testing.B) {
		for b.Loop() {
			a.step(func() {
				if a.requestPublishLocked() != nil {
					b.Fatal("there is something to publish")
				}
			})
		}
	})
	b.Run("acquire", func(b *testing.B) {
		for b.Loop() {
			a.step(func() {
				op := a.startAcquireLocked(true)
				a.drainLocked()
				a.drainedLocked()
				a.endAcquireLocked(op)
			})
		}
	})
	b.Run("version", func(b *testing.B) {
		for b.Loop() {
			a.Version()
		}
	})
	shut()
}

// TestPagesWithDataAreNotCountedAgain: a publish that changes nothing about which pages have data does not have them counted, also while a program is
// attached.
func TestPagesWithDataAreNotCountedAgain(t *testing.T) {
	for _, attached := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ino := sums(1, dsm.ApplyArrival)
			ino.Spec.Merge = dsm.MergeLast
			s := newHomed(t, 2, ino)
			n := s.nodes[1]
			n.open(true)
			s.calm()
			if attached {
				n.ask("attach", func(ctx context.Context) error {
					at, f, err := n.area.Attach(ctx, 1, true)
					if err != nil {
						return err
					}
					t.Cleanup(at.Detach)
					return f.Close()
				}, nil)
				s.calm()
			}
			for i, want := range []bool{true, false, true, false} {
				put(t, n, []int32{1, 2, 0, 0}[i])
				n.ask("sync", func(ctx context.Context) error { return n.area.Sync(ctx, true) }, nil)
				s.calm()
				if got := n.area.Recounts(); got != want {
					t.Errorf("attached %v: publish %d: to be counted again: %v, want %v", attached, i, got, want)
				}
			}
		})
	}
}
