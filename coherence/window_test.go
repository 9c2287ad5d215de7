package coherence

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// storeAll adds one to every element of an area.
func storeAll(t *testing.T, n *simNode, extents int64) {
	t.Helper()
	ones := bytes.Repeat([]byte{1, 0, 0, 0}, dsm.ExtentSize/4)
	for e := range extents {
		if err := n.area.WriteAt(context.Background(), ones, e*dsm.ExtentSize); err != nil {
			t.Fatal(err)
		}
	}
}

// TestParkedPublishesAreBounded: the slots of all extents are on their way to this node, a publish of
// a large area to itself waits: no more than a window of it is copied and parked.
func TestParkedPublishesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const extents = 64
		s, _, after := pairOf(t, sums(extents, dsm.ApplyArrival))
		storeAll(t, after, extents)
		s.move(after, extents)
		publish(after)
		parked := 0
		for _, m := range after.area.mu.parked {
			for _, p := range m.payload {
				parked += len(p)
			}
		}
		if parked == 0 || parked > 2*publishWindow {
			t.Errorf("%d MiB parked, the window is %d MiB", parked>>20, publishWindow>>20)
		}
		s.rested()
	})
}

// TestPublishIsSentInParts: the first extents of a publish are sent before the others are diffed.
func TestPublishIsSentInParts(t *testing.T) {
	const extents = publishWindow / dsm.ExtentSize
	s, home, replica := pairOf(t, sums(extents, dsm.ApplyArrival))
	storeAll(t, replica, extents)
	diffed := func() (n int) {
		for _, x := range replica.area.mu.replica.extents {
			if x.pub != nil {
				n++
			}
		}
		return n
	}
	g := newGate(replica, func(m any) bool { _, ok := m.(*wire.Publish); return ok })
	g.during(func() { publish(replica) }, func() {
		if n := diffed(); n == 0 || n > extents/2 {
			t.Errorf("%d of %d extents are diffed when the first is sent, want at most half", n, extents)
		}
	})
	if n := diffed(); n != extents {
		t.Errorf("%d extents are sent, want %d", n, extents)
	}
	s.rested()
	want(t, home, 1)
}
