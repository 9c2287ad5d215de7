package coherence

import (
	"bytes"
	"context"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestParkedPublishesAreBounded: the slots of all extents are on their way to this node, a publish of
// a large area to itself waits: no more than a window of it is copied and parked.
func TestParkedPublishesAreBounded(t *testing.T) {
	const extents = 64
	s := newSim(t, 1, 2, dsm.Inode{Size: extents * dsm.ExtentSize, Layout: dsm.Layout{DType: dsm.DTypeI32},
		Spec: dsm.Spec{Merge: dsm.MergeSum, DType: dsm.DTypeI32, Apply: dsm.ApplyArrival}})
	before, after := s.nodes[0], s.nodes[1]
	v := *s.lastView()
	v.Epoch++
	for i := range v.Slots {
		v.Slots[i].Primary = before.id
	}
	s.commit(&v)
	for _, n := range s.nodes {
		n.open(true)
	}
	s.drain()
	ones := bytes.Repeat([]byte{1, 0, 0, 0}, dsm.ExtentSize/4)
	for e := range int64(extents) {
		if err := after.area.WriteAt(context.Background(), ones, e*dsm.ExtentSize); err != nil {
			t.Fatal(err)
		}
	}
	w := v
	w.Epoch++
	for i := range w.Slots {
		w.Slots[i] = dsm.SlotHome{Primary: after.id, Source: before.id, Epoch: w.Epoch}
	}
	s.commit(&w)
	publish(after)
	parked := 0
	for _, m := range after.area.mu.parked {
		for _, p := range m.payload {
			parked += len(p)
		}
	}
	t.Logf("%d MiB under way, %d MiB parked", after.area.mu.replica.underWay>>20, parked>>20)
	if parked > publishWindow+(publishBatch/dsm.ExtentPages+1)*dsm.ExtentSize {
		t.Errorf("%d MiB parked, the window is %d MiB", parked>>20, publishWindow>>20)
	}
	before.handOver()
	s.settle()
}
