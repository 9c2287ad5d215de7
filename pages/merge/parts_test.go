package merge

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// drawParts draws parts in the first pages of an area: many small ones, or some that are longer than a page.
func drawParts(rng *rand.Rand) (parts []dsm.Part) {
	at := int64(rng.IntN(200))
	most := []int{20, 300, 3 * dsm.PageSize}[rng.IntN(3)]
	for at < 4*dsm.PageSize && len(parts) < 1000 {
		t := dsm.DType(rng.IntN(int(dsm.DTypeU64) + 1))
		size := int64(t.Size())
		at += -at & (size - 1)
		p := dsm.Part{From: at, To: at + size*int64(1+rng.IntN(most)), DType: t}
		parts, at = append(parts, p), p.To
		if rng.IntN(10) == 0 {
			at += int64(rng.IntN(100))
		}
	}
	return parts
}

// TestPartsMergeAsAreasOfTheirType compares every operation on an area of several parts with that on areas
// that have the type of one of them throughout.
func TestPartsMergeAsAreasOfTheirType(t *testing.T) {
	rng := pagetest.Rand(t)
	for round := range pagetest.Rounds(60) {
		rule := dsm.MergeRule(round % 5)
		parts := drawParts(rng)
		layout, err := dsm.LayoutOf(parts)
		if err != nil {
			t.Fatal(err)
		}
		k, err := KernelFor(rule, layout)
		if err != nil {
			continue // the parts that are left are untyped
		}
		for p := range dsm.PageIndex(5) {
			base := make([]byte, dsm.PageSize)
			naive{kernelCase{dt: dsm.DTypeF32}}.fillPage(rng, base)
			working, other, incoming := change(rng, base), change(rng, base), change(rng, base)
			got := mergeEveryWay(t, k, p, base, working, other, incoming)
			want := make(map[dsm.DType][][]byte) // of the same bytes, as a page of one type
			types := typesOf(layout, parts, p)
			for at := 0; at < dsm.PageSize; {
				n := naive{kernelCase{rule: rule, dt: types[at]}}
				if n.dt == dsm.DTypeAuto {
					n.rule = dsm.MergeLast
				}
				if want[n.dt] == nil {
					want[n.dt] = mergeEveryWay(t, mustKernel(t, n.rule, n.dt, 0), p, base, working, other, incoming)
				}
				to := at + n.dt.Size()
				for op := range got {
					if g, w := got[op][at:to], want[n.dt][op][at:to]; string(g) != string(w) && !(n.rule.Adds() && n.isNaN(g) && n.isNaN(w)) {
						t.Fatalf("%v of parts: page %d byte %d of %v: operation %d gives %x, want %x", rule, p, at, n.dt, op, g, w)
					}
				}
				at = to
			}
		}
	}
}

// typesOf returns the type of the element that each byte of page p is in.
func typesOf(l dsm.Layout, parts []dsm.Part, p dsm.PageIndex) (types [dsm.PageSize]dsm.DType) {
	start := int64(p) * dsm.PageSize
	fill := func(from, to int64, dt dsm.DType) {
		for at := max(from-start, 0); at < min(to-start, dsm.PageSize); at++ {
			types[at] = dt
		}
	}
	fill(l.DataOffset, start+dsm.PageSize, l.DType) // also behind the last part
	for _, x := range parts {
		fill(x.From, x.To, x.DType)
	}
	return types
}

// mergeEveryWay returns the results of all operations that merge a page.
func mergeEveryWay(t *testing.T, k Kernel, p dsm.PageIndex, base, working, other, incoming []byte) (results [][]byte) {
	t.Helper()
	var d [2]Delta
	for i, stored := range [][]byte{working, other} {
		k.AppendDelta(&d[i], p, base, stored)
		sent := Delta{Extent: d[i].Extent, Pages: d[i].Pages, Index: d[i].Index, Data: d[i].Data}
		if err := sent.Validate(k); err != nil {
			t.Fatal(err)
		}
	}
	result := func() []byte {
		results = append(results, pagetest.AlignedPage(incoming))
		return results[len(results)-1]
	}
	k.Overlay(&d[0], int(p), result())
	k.StoreShared(p, base, result(), working)
	three := result()
	copy(three, working)
	k.Merge(p, base, three, incoming, nil)
	shared := result()
	copy(shared, working)
	k.MergeShared(p, base, shared, incoming)
	var s Staged
	k.Fold(&s, &d[0], p)
	k.Fold(&s, &d[1], p)
	k.ApplyStaged(&s, p, 3, result())
	overwritten := result()
	copy(overwritten, base)
	k.Overwriting(p, overwritten, working, 100, 900)
	either := result()
	copy(either, base)
	k.Either(p, either, incoming, working)
	return results
}

// TestDeltaOfManyParts: a page of as many parts as there can be, and the elements that changed in them.
func TestDeltaOfManyParts(t *testing.T) {
	var parts []dsm.Part
	for i := range int64(dsm.PageSize) {
		parts = append(parts, dsm.Part{From: i, To: i + 1, DType: []dsm.DType{dsm.DTypeU8, dsm.DTypeI8}[i%2]})
	}
	layout, err := dsm.LayoutOf(parts)
	if err != nil {
		t.Fatal(err)
	}
	k, err := KernelFor(dsm.MergeMax, layout)
	if err != nil {
		t.Fatal(err)
	}
	base, working := make([]byte, dsm.PageSize), bytes.Repeat([]byte{0x80}, dsm.PageSize)
	var d Delta
	if changed, inexact := k.AppendDelta(&d, 0, base, working); !changed || !inexact || len(d.Data) != dsm.PageSize {
		t.Fatalf("changed %v, inexact %v, %d bytes", changed, inexact, len(d.Data))
	}
	k.Overlay(&d, 0, base)
	pagetest.WantPage(t, "128 or 0", base, bytes.Repeat([]byte{0x80, 0}, dsm.PageSize/2))
}

func TestKernelForRefusesOpaqueParts(t *testing.T) {
	layout, err := dsm.LayoutOf([]dsm.Part{{From: 8, To: 16, DType: dsm.DTypeF32}, {From: 16, To: 24, Opaque: true}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := KernelFor(dsm.MergeLast, layout); err != nil {
		t.Error(err)
	}
	_, err = KernelFor(dsm.MergeSum, layout)
	if want := "merge kernel: merge=sum: the elements from byte 16 on, such as complex numbers and floats of 8 bits, can only be merged by last"; !errs.Is(err, errs.Invalid) || err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestKernelForRefusesTheOrderOfComplexNumbers(t *testing.T) {
	layout := dsm.Layout{DType: dsm.DTypeF32, DataOffset: 128, Complex: true}
	for rule, ok := range map[dsm.MergeRule]bool{
		dsm.MergeLast: true, dsm.MergeSum: true, dsm.MergeMean: true, dsm.MergeMin: false, dsm.MergeMax: false,
	} {
		if _, err := KernelFor(rule, layout); (err == nil) != ok || !ok && !errs.Is(err, errs.Invalid) {
			t.Errorf("%v: %v", rule, err)
		}
	}
}
