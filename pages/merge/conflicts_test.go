package merge

import (
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		name string
		rule dsm.MergeRule
		l    dsm.Layout
		page dsm.PageIndex
		mine map[int]byte // what this node has stored at which offsets; the base is zero
		them map[int]byte
		want Runs
	}{
		{name: "nobody"},
		{name: "this node alone", mine: map[int]byte{7: 1}},
		{name: "the others alone", them: map[int]byte{7: 1}},
		{name: "different bytes", mine: map[int]byte{7: 1}, them: map[int]byte{8: 1}},
		{name: "the same value", mine: map[int]byte{7: 1}, them: map[int]byte{7: 1}},
		{name: "one byte", mine: map[int]byte{7: 1, 9: 1}, them: map[int]byte{7: 2, 8: 2}, want: Runs{{7, 1}}},
		{name: "a run, and the last byte", mine: map[int]byte{4: 1, 5: 1, 4095: 1}, them: map[int]byte{4: 2, 5: 2, 4095: 2}, want: Runs{{4, 2}, {4095, 1}}},
		{name: "bytes of one element", l: dsm.Layout{DType: dsm.DTypeI32}, mine: map[int]byte{8: 1}, them: map[int]byte{11: 1}, want: Runs{{8, 4}}},
		{name: "elements side by side", l: dsm.Layout{DType: dsm.DTypeI64}, mine: map[int]byte{8: 1, 16: 1}, them: map[int]byte{9: 1, 17: 1}, want: Runs{{8, 16}}},
		{name: "in the header", l: dsm.Layout{DType: dsm.DTypeI32, DataOffset: 64}, mine: map[int]byte{8: 1, 64: 1}, them: map[int]byte{9: 1, 65: 1}, want: Runs{{64, 4}}},
		{name: "sum", rule: dsm.MergeSum, l: dsm.Layout{DType: dsm.DTypeI32}, page: 1, mine: map[int]byte{8: 1}, them: map[int]byte{8: 2}},
		{name: "max", rule: dsm.MergeMax, l: dsm.Layout{DType: dsm.DTypeI32}, page: 1, mine: map[int]byte{8: 1}, them: map[int]byte{8: 2}},
	} {
		k, err := KernelFor(c.rule, c.l)
		if err != nil {
			t.Fatal(err)
		}
		side := func(stores map[int]byte) []byte {
			p := make([]byte, dsm.PageSize)
			for at, v := range stores {
				p[at] = v
			}
			return p
		}
		if got := k.Conflicts(c.page, side(nil), side(c.mine), side(c.them)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
