package catalog

import (
	"math"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func TestGrowByTellsThePlace(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	f := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile}).Ino
	by := func(n int64) setAttrOp { return setAttrOp{f, dsm.SetAttr{GrowBy: &n}} }
	end := int64(0)
	for i, n := range []int64{16, 1, 5000, 0, 16} {
		end += n
		if got := m.must([]dsm.NodeID{nodeA, nodeB}[i%2], by(n)).Size; got != end {
			t.Errorf("the size is %d, want %d", got, end)
		}
	}
	for n, want := range map[int64]errs.Kind{-1: errs.Invalid, math.MaxInt64: errs.Invalid, dsm.MaxAreaSize: errs.TooLarge, 2 << 30: errs.NoSpace} {
		if _, err := m.do(nodeB, by(n)); !errs.Is(err, want) {
			t.Errorf("by %d: %v, want kind %v", n, err, want)
		}
	}
	if m.inodes[f].Size != end {
		t.Errorf("the size is %d, want %d", m.inodes[f].Size, end)
	}
}
