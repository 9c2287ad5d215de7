package merge

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestIndexIsShortest checks which form the index takes.
func TestIndexIsShortest(t *testing.T) {
	bytewise := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	f32 := mustKernel(t, dsm.MergeLast, dsm.DTypeF32, 0)
	mixed := mustKernel(t, dsm.MergeLast, dsm.DTypeF64, 128)
	for _, c := range []struct {
		name        string
		k           Kernel
		store       func(p []byte)
		index, data int
	}{
		{"one byte", bytewise, func(p []byte) { p[5] = 1 }, 7, 1},
		{"one byte of f32", f32, func(p []byte) { p[5] = 1 }, 7, 4},
		{"all", bytewise, func(p []byte) { copy(p, pagetest.PageOf(1)) }, 1, 4096},
		{"every second byte", bytewise, func(p []byte) {
			for i := 0; i < len(p); i += 2 {
				p[i] = 1
			}
		}, 513, 2048},
		{"every second f32", f32, func(p []byte) {
			for i := 0; i < len(p); i += 8 {
				p[i] = 1
			}
		}, 129, 2048},
		{"two runs", bytewise, func(p []byte) { copy(p[10:20], pagetest.PageOf(1)); copy(p[30:50], pagetest.PageOf(1)) }, 11, 30},
		{"header only", mixed, func(p []byte) { p[127] = 1 }, 8, 1},
		{"elements only", mixed, func(p []byte) { p[128] = 1 }, 8, 8},
		{"both", mixed, func(p []byte) { copy(p, pagetest.PageOf(1)) }, 2, 4096},
	} {
		var d Delta
		base, working := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
		c.store(working)
		if changed, inexact := c.k.AppendDelta(&d, 0, base, working); !changed || inexact {
			t.Errorf("%s: changed %v, inexact %v", c.name, changed, inexact)
		}
		if len(d.Index) != c.index || len(d.Data) != c.data {
			t.Errorf("%s: index of %d bytes and data of %d, want %d and %d", c.name, len(d.Index), len(d.Data), c.index, c.data)
		}
		if err := d.Validate(c.k); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if d.Size() != c.index+c.data {
			t.Errorf("%s: size %d", c.name, d.Size())
		}
		d.Reset(3)
		if changed, _ := c.k.AppendDelta(&d, page(3, 255), working, working); changed || d.Size() != 0 || !d.Pages.Empty() {
			t.Errorf("%s: an equal page leaves %d bytes", c.name, d.Size())
		}
	}
}

// TestValidateRefuses lists what is wrong with deltas that a node must not apply.
func TestValidateRefuses(t *testing.T) {
	one := dsm.Range(0, 1)
	run := func(xs ...uint16) []byte {
		b := []byte{tagRuns}
		for _, x := range xs {
			b = binary.LittleEndian.AppendUint16(b, x)
		}
		return b
	}
	full := make([]byte, dsm.PageSize)
	bytewise := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	f32 := mustKernel(t, dsm.MergeSum, dsm.DTypeF32, 64)
	short := mustKernel(t, dsm.MergeLast, dsm.DTypeF32, 4) // a header of less than a byte of mask
	maskOf := func(n int, set ...int) []byte {
		m := make([]byte, 1+n)
		m[0] = tagMask
		for _, i := range set {
			m[1+i/8] |= 1 << (i % 8)
		}
		return m
	}
	for _, c := range []struct {
		name string
		k    Kernel
		d    Delta
		ok   bool
	}{
		{"nothing", bytewise, Delta{}, true},
		{"all", bytewise, Delta{Pages: one, Index: []byte{tagAll}, Data: full}, true},
		{"one run", bytewise, Delta{Pages: one, Index: run(1, 4095, 1), Data: full[:1]}, true},
		{"mask", bytewise, Delta{Pages: one, Index: maskOf(512, 0, 4095), Data: full[:2]}, true},
		{"header and run", f32, Delta{Pages: one, Index: append([]byte{tagAll}, run(1, 16, 1008)...), Data: full}, true},
		{"header and mask", f32, Delta{Pages: one, Index: append([]byte{tagNone}, maskOf(126, 0)...), Data: full[:4]}, true},
		{"no index", bytewise, Delta{Pages: one}, false},
		{"index of nothing", bytewise, Delta{Index: []byte{tagAll}, Data: full}, false},
		{"data of nothing", bytewise, Delta{Data: full[:1]}, false},
		{"none", bytewise, Delta{Pages: one, Index: []byte{tagNone}}, false},
		{"none twice", f32, Delta{Pages: one, Index: []byte{tagNone, tagNone}}, false},
		{"unknown tag", bytewise, Delta{Pages: one, Index: []byte{9}, Data: full}, false},
		{"data short", bytewise, Delta{Pages: one, Index: []byte{tagAll}, Data: full[:4095]}, false},
		{"data long", bytewise, Delta{Pages: one, Index: run(1, 0, 1), Data: full[:2]}, false},
		{"index long", bytewise, Delta{Pages: one, Index: []byte{tagAll, 0}, Data: full}, false},
		{"runs that end early", bytewise, Delta{Pages: one, Index: run(1, 0, 1)[:6], Data: full[:1]}, false},
		{"a count that ends early", bytewise, Delta{Pages: one, Index: run(1)[:2], Data: full[:1]}, false},
		{"no runs", bytewise, Delta{Pages: one, Index: run(0)}, false},
		{"empty run", bytewise, Delta{Pages: one, Index: run(1, 5, 0)}, false},
		{"run past the page", bytewise, Delta{Pages: one, Index: run(1, 4095, 2), Data: full[:2]}, false},
		{"run far past", bytewise, Delta{Pages: one, Index: run(1, 65535, 65535), Data: full}, false},
		{"runs that touch", bytewise, Delta{Pages: one, Index: run(2, 0, 1, 1, 1), Data: full[:2]}, false},
		{"runs out of order", bytewise, Delta{Pages: one, Index: run(2, 5, 1, 1, 1), Data: full[:2]}, false},
		{"run in the header", f32, Delta{Pages: one, Index: append([]byte{tagNone}, run(1, 15, 1)...), Data: full[:4]}, false},
		{"header run in the elements", f32, Delta{Pages: one, Index: append(run(1, 64, 1), tagNone), Data: full[:1]}, false},
		{"a mask that ends early", bytewise, Delta{Pages: one, Index: maskOf(511, 0), Data: full[:1]}, false},
		{"mask of the last of a short header", short, Delta{Pages: one, Index: append(maskOf(1, 3), tagNone), Data: full[:1]}, true},
		{"mask past a short header", short, Delta{Pages: one, Index: append(maskOf(1, 3, 4), tagNone), Data: full[:2]}, false},
		{"mask after a short header", short, Delta{Pages: one, Index: append([]byte{tagNone}, maskOf(128, 1)...), Data: full[:4]}, true},
		{"mask before the elements", short, Delta{Pages: one, Index: append([]byte{tagNone}, maskOf(128, 0, 1)...), Data: full[:8]}, false},
		{"empty mask", bytewise, Delta{Pages: one, Index: maskOf(512)}, false},
	} {
		err := c.d.Validate(c.k)
		if c.ok && err != nil || !c.ok && !errs.Is(err, errs.Corrupt) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// FuzzDelta feeds Validate with anything. What it accepts must apply, change
// nothing outside of its pages, and be its own index again.
func FuzzDelta(f *testing.F) {
	f.Add(uint8(0), uint16(0), uint64(1), []byte{tagAll}, make([]byte, dsm.PageSize))
	f.Add(uint8(1), uint16(64), uint64(3), []byte{tagRuns, 1, 0, 5, 0, 1, 0, tagAll, tagAll}, make([]byte, 4097))
	f.Add(uint8(13), uint16(16), uint64(1<<63), []byte{tagMask, 1}, []byte{1})
	f.Add(uint8(17), uint16(4000), uint64(1), []byte{tagRuns, 255, 255}, []byte{})
	f.Fuzz(func(t *testing.T, kind uint8, head uint16, set uint64, index, data []byte) {
		l := dsm.Layout{DType: dsm.DType(kind % 13), DataOffset: int64(head)}
		k, err := KernelFor(dsm.MergeRule(kind/13%5), l)
		if err != nil {
			return
		}
		d := Delta{Pages: dsm.PageSet{set}, Index: index, Data: data}
		if d.Validate(k) != nil {
			return
		}
		pages := map[int][]byte{}
		k.Apply(&d, func(i int) []byte {
			if !d.Pages.Has(i) || pages[i] != nil {
				t.Fatalf("page %d asked for", i)
			}
			pages[i] = make([]byte, dsm.PageSize)
			return pages[i]
		})
		if len(pages) != d.Pages.Len() {
			t.Fatalf("%d pages of %d applied", len(pages), d.Pages.Len())
		}
		for i, p := range pages {
			over := make([]byte, dsm.PageSize)
			if k.Overlay(&d, i, over); !bytes.Equal(over, p) {
				t.Fatal("overlay and apply differ")
			}
		}
		if k.op != opLast {
			return
		}
		// What changed must be found again, and change the same.
		var again Delta
		zero := make([]byte, dsm.PageSize)
		for i := range d.Pages.All() {
			k.AppendDelta(&again, dsm.PageIndex(i), zero, pages[i])
		}
		k.Apply(&again, func(i int) []byte {
			want := pages[i]
			pages[i] = make([]byte, dsm.PageSize)
			t.Cleanup(func() { pagetest.WantPage(t, "found again", pages[i], want) })
			return pages[i]
		})
		if again.Size() > d.Size()+2*d.Pages.Len() {
			t.Fatalf("the shortest index takes %d bytes, this one %d", again.Size(), d.Size())
		}
	})
}

// fuzzPages gives a test arbitrary kernels, by their references, and whole pages.
func fuzzPages(f *testing.F, test func(t *testing.T, ref naive, base, working, incoming []byte)) {
	f.Fuzz(func(t *testing.T, kind uint8, head uint16, base, working, incoming []byte) {
		rule, l := dsm.MergeRule(kind/13%5), dsm.Layout{DType: dsm.DType(kind % 13), DataOffset: int64(head)}
		k, err := KernelFor(rule, l)
		if err != nil {
			return
		}
		whole := func(b []byte) []byte {
			p := make([]byte, dsm.PageSize)
			for i := 0; len(b) > 0 && i < len(p); {
				i += copy(p[i:], b)
			}
			return p
		}
		test(t, naive{kernelCase{k, rule, l.DType, l.DataOffset}}, whole(base), whole(working), whole(incoming))
	})
}

// FuzzMerge compares the merge of arbitrary pages with the reference.
func FuzzMerge(f *testing.F) {
	f.Add(uint8(2), uint16(8), []byte{1, 2, 3}, []byte{4, 5, 6}, []byte{7, 8, 9})
	f.Add(uint8(15), uint16(4), []byte{0, 0, 128, 127}, []byte{0, 0, 128, 255}, []byte{1, 0, 128, 127})
	fuzzPages(f, func(t *testing.T, ref naive, b, w, n []byte) { checkMergePages(t, ref, 0, b, w, n) })
}
