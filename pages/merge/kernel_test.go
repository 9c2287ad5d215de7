package merge

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

func mustKernel(t testing.TB, merge dsm.MergeRule, dt dsm.DType, head int64) Kernel {
	t.Helper()
	k, err := KernelFor(merge, dsm.Layout{DType: dt, DataOffset: head})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// kernelCase is a kernel with what it was made from.
type kernelCase struct {
	Kernel
	rule dsm.MergeRule
	dt   dsm.DType
	head int64
}

func (c kernelCase) String() string { return fmt.Sprintf("%v/%v/%d", c.rule, c.dt, c.head) }

// kernelCases returns every rule and type, with headers that end at, within and
// beyond the end of page 1.
func kernelCases(t testing.TB) []kernelCase {
	var cs []kernelCase
	for dt := dsm.DTypeAuto; dt <= dsm.DTypeU64; dt++ {
		size := int64(dt.Size())
		for rule := dsm.MergeLast; rule <= dsm.MergeMax; rule++ {
			if rule != dsm.MergeLast && dt == dsm.DTypeAuto {
				continue
			}
			for _, head := range []int64{0, dsm.PageSize + size, dsm.PageSize + 13*size, dsm.PageSize + 128, 2*dsm.PageSize - size, 2 * dsm.PageSize} {
				cs = append(cs, kernelCase{mustKernel(t, rule, dt, head), rule, dt, head})
			}
		}
	}
	return cs
}

// naive is the reference: one element at a time, by the definition.
type naive struct{ kernelCase }

// elements yields the bounds of the elements of page p and their rule.
func (k naive) elements(p dsm.PageIndex, f func(from, to int, rule dsm.MergeRule)) {
	for at := 0; at < dsm.PageSize; {
		n, rule := k.dt.Size(), k.rule
		if int64(p)*dsm.PageSize+int64(at) < k.head {
			n, rule = 1, dsm.MergeLast
		}
		f(at, at+n, rule)
		at += n
	}
}

// op computes a+sign*b of one element.
func (k naive) op(a, b []byte, sign int) []byte {
	out := make([]byte, len(a))
	switch le := binary.LittleEndian; k.dt {
	case dsm.DTypeF64:
		x, y := math.Float64frombits(le.Uint64(a)), math.Float64frombits(le.Uint64(b))
		le.PutUint64(out, math.Float64bits(x+float64(sign)*y))
	case dsm.DTypeF32:
		x, y := math.Float32frombits(le.Uint32(a)), math.Float32frombits(le.Uint32(b))
		le.PutUint32(out, math.Float32bits(x+float32(sign)*y))
	case dsm.DTypeF16:
		x, y := slowF16(le.Uint16(a)), slowF16(le.Uint16(b))
		le.PutUint16(out, roundF16(float32(x+float64(sign)*y)))
	case dsm.DTypeBF16:
		x, y := uint32(le.Uint16(a))<<16, uint32(le.Uint16(b))<<16
		le.PutUint16(out, roundBF16(math.Float32frombits(x)+float32(sign)*math.Float32frombits(y)))
	default: // bytes with carry
		carry := 0
		for i := range a {
			carry += int(a[i]) + sign*int(b[i])
			out[i] = byte(carry)
			carry >>= 8
		}
	}
	return out
}

// less compares two elements by their values; -0 is less than +0, and NaN is less than nothing.
func (k naive) less(a, b []byte) bool {
	var bits [2]uint64
	for i, x := range [][]byte{a, b} {
		var wide [8]byte
		copy(wide[:], x)
		bits[i] = binary.LittleEndian.Uint64(wide[:])
	}
	var v [2]float64
	for i, x := range bits {
		switch k.dt {
		case dsm.DTypeF64:
			v[i] = math.Float64frombits(x)
		case dsm.DTypeF32:
			v[i] = float64(math.Float32frombits(uint32(x)))
		case dsm.DTypeF16:
			v[i] = slowF16(uint16(x))
		case dsm.DTypeBF16:
			v[i] = float64(math.Float32frombits(uint32(x) << 16))
		case dsm.DTypeI8, dsm.DTypeI16, dsm.DTypeI32, dsm.DTypeI64:
			unused := 64 - 8*k.dt.Size()
			return int64(bits[0])<<unused < int64(bits[1])<<unused
		default:
			return bits[0] < bits[1]
		}
	}
	if v[0] == 0 && v[1] == 0 {
		return math.Signbit(v[0]) && !math.Signbit(v[1])
	}
	return v[0] < v[1]
}

// better returns the one of two elements that min or max keeps.
func (k naive) better(rule dsm.MergeRule, a, b []byte) []byte {
	switch {
	case k.isNaN(a):
		return a
	case k.isNaN(b), rule == dsm.MergeMin && k.less(b, a), rule == dsm.MergeMax && k.less(a, b):
		return b
	}
	return a
}

// slowF16 widens an IEEE half by its definition.
func slowF16(x uint16) float64 {
	sign := 1.0
	if x&0x8000 != 0 {
		sign = -1
	}
	exp, frac := int(x>>10&31), float64(x&1023)
	switch exp {
	case 0:
		return sign * math.Ldexp(frac, -24)
	case 31:
		if frac != 0 {
			return math.NaN()
		}
		return sign * math.Inf(1)
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

// isNaN reports whether x is a NaN of the case's type: two NaNs count as equal
// where arithmetic made them, since their payload is up to the processor.
func (k naive) isNaN(x []byte) bool {
	switch le := binary.LittleEndian; {
	case k.dt == dsm.DTypeF64 && len(x) == 8:
		return math.IsNaN(math.Float64frombits(le.Uint64(x)))
	case k.dt == dsm.DTypeF32 && len(x) == 4:
		return math.IsNaN(float64(math.Float32frombits(le.Uint32(x))))
	case k.dt == dsm.DTypeF16 && len(x) == 2:
		return le.Uint16(x)&0x7fff > 0x7c00
	case k.dt == dsm.DTypeBF16 && len(x) == 2:
		return le.Uint16(x)&0x7fff > 0x7f80
	}
	return false
}

// check fails the test where got is not want.
func (k naive) check(t *testing.T, what string, p dsm.PageIndex, got, want []byte) {
	t.Helper()
	k.elements(p, func(from, to int, rule dsm.MergeRule) {
		g, w := got[from:to], want[from:to]
		if string(g) != string(w) && !(rule != dsm.MergeLast && k.isNaN(g) && k.isNaN(w)) {
			t.Fatalf("%v: %s: page %d bytes %d to %d: got %x, want %x", k, what, p, from, to, g, w)
		}
	})
}

// fillPage fills b with a mix of anything and of values near each other.
func (k naive) fillPage(rng *rand.Rand, b []byte) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	for i := 0; i+8 <= len(b); i += 8 {
		switch le := binary.LittleEndian; rng.IntN(4) {
		case 0:
			clear(b[i : i+8])
		case 1: // ordinary floats
			switch k.dt {
			case dsm.DTypeF64:
				le.PutUint64(b[i:], math.Float64bits(rng.NormFloat64()))
			case dsm.DTypeF32:
				le.PutUint32(b[i:], math.Float32bits(float32(rng.NormFloat64())))
			case dsm.DTypeF16, dsm.DTypeBF16:
				le.PutUint16(b[i:], uint16(rng.IntN(512))+0x3c00)
			}
		}
	}
}

// change returns a copy of b in which some bytes differ, from few to all.
func change(rng *rand.Rand, b []byte) []byte {
	c := append([]byte(nil), b...)
	switch rng.IntN(5) {
	case 0:
		for i := 0; i < len(c); i += 1 + rng.IntN(2) {
			c[i] ^= byte(1 + rng.IntN(255))
		}
	case 1:
		for range 1 + rng.IntN(4) {
			c[rng.IntN(len(c))] ^= byte(1 + rng.IntN(255))
		}
	case 2:
		for range rng.IntN(5) {
			from := rng.IntN(len(c))
			for i := from; i < min(from+rng.IntN(1000), len(c)); i++ {
				c[i]++
			}
		}
	case 3:
		for i := range c {
			if rng.IntN(3) == 0 {
				c[i]++
			}
		}
	}
	return c
}

func page(e dsm.ExtentIndex, i int) dsm.PageIndex {
	return dsm.PageIndex(e)*dsm.ExtentPages + dsm.PageIndex(i)
}

// TestKernelsAgainstReference compares every operation of every kernel with the
// reference, on random pages.
func TestKernelsAgainstReference(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, kc := range kernelCases(t) {
		k := naive{kc}
		for range pagetest.Rounds(12) {
			var d Delta
			d.Reset(0)
			var base, working, home, want [3][]byte
			inexact := false
			for p := range dsm.PageIndex(3) {
				base[p] = make([]byte, dsm.PageSize)
				k.fillPage(rng, base[p])
				working[p], home[p] = change(rng, base[p]), change(rng, base[p])
				want[p] = append([]byte(nil), home[p]...)
				changed := false
				pageInexact := false
				k.elements(p, func(from, to int, rule dsm.MergeRule) {
					b, w, n := base[p][from:to], working[p][from:to], want[p][from:to]
					if string(b) == string(w) {
						return
					}
					changed = true
					switch rule {
					case dsm.MergeLast:
						copy(n, w)
						return
					case dsm.MergeMin, dsm.MergeMax:
						r := k.better(rule, b, w)
						pageInexact = pageInexact || string(r) != string(w) && !(k.isNaN(r) && k.isNaN(w))
						copy(n, k.better(rule, n, w))
						return
					}
					diff := k.op(w, b, -1)
					if s := k.op(b, diff, 1); string(s) != string(w) && !(k.isNaN(s) && k.isNaN(w)) {
						pageInexact = true
					}
					copy(n, k.op(n, diff, 1))
				})
				gotChanged, gotInexact := k.AppendDelta(&d, p, base[p], working[p])
				if gotChanged != changed || pageInexact && !gotInexact {
					t.Fatalf("%v: changed %v, inexact %v; want %v, %v", k, gotChanged, gotInexact, changed, pageInexact)
				}
				if inexact = inexact || pageInexact; !pageInexact && gotInexact && !hasNaN(k, p, working[p]) {
					t.Fatalf("%v: inexact without reason", k)
				}
			}
			got := Delta{Extent: d.Extent, Pages: d.Pages, Index: d.Index, Data: d.Data}
			if err := got.Validate(kc.Kernel); err != nil {
				t.Fatalf("%v: %v", k, err)
			}
			for p := range home {
				over := append([]byte(nil), home[p]...)
				k.Overlay(&d, p, over)
				k.check(t, "overlay", dsm.PageIndex(p), over, want[p])
			}
			k.Apply(&got, func(i int) []byte { return home[i] })
			for p := range home {
				k.check(t, "apply", dsm.PageIndex(p), home[p], want[p])
				checkMerge(t, rng, k, dsm.PageIndex(p), base[p], working[p])
			}
		}
	}
}

func hasNaN(k naive, p dsm.PageIndex, b []byte) (found bool) {
	k.elements(p, func(from, to int, rule dsm.MergeRule) {
		found = found || rule != dsm.MergeLast && k.isNaN(b[from:to])
	})
	return found
}

// checkMerge compares the three-way merge of a random change of base into working.
func checkMerge(t *testing.T, rng *rand.Rand, k naive, p dsm.PageIndex, base, working []byte) {
	t.Helper()
	checkMergePages(t, k, p, base, working, change(rng, base))
}

// checkMergePages compares the three-way merge of pages with the reference.
func checkMergePages(t *testing.T, k naive, p dsm.PageIndex, base, working, incoming []byte) {
	t.Helper()
	got := append([]byte(nil), working...)
	want := append([]byte(nil), working...)
	k.elements(p, func(from, to int, rule dsm.MergeRule) {
		b, w, n := base[from:to], want[from:to], incoming[from:to]
		switch {
		case string(b) == string(w):
			copy(w, n)
		case rule == dsm.MergeLast || string(b) == string(n):
		case rule == dsm.MergeMin || rule == dsm.MergeMax:
			copy(w, k.better(rule, w, n))
		default:
			if k.dt == dsm.DTypeF16 || k.dt == dsm.DTypeBF16 {
				h := half{k.dt == dsm.DTypeBF16} // rounds once, not twice
				le := binary.LittleEndian
				d := h.float(le.Uint16(w)) - h.float(le.Uint16(b))
				le.PutUint16(w, h.round(h.float(le.Uint16(n))+d))
				return
			}
			copy(w, k.op(n, k.op(w, b, -1), 1))
		}
	})
	var runs Runs
	k.Merge(p, base, got, incoming, &runs)
	k.check(t, "merge", p, got, want)
	covered := make([]bool, dsm.PageSize)
	last := int64(-1)
	for _, r := range runs {
		if r.Off <= last || r.Len <= 0 {
			t.Fatalf("%v: runs out of order: %v", k, runs)
		}
		last = r.Off + r.Len // a run that touches would have been joined
		for i := r.Off; i < r.Off+r.Len; i++ {
			covered[i-int64(p)*dsm.PageSize] = true
		}
	}
	k.elements(p, func(from, to int, _ dsm.MergeRule) {
		changed := string(got[from:to]) != string(working[from:to])
		for i := from; i < to; i++ {
			if covered[i] != changed {
				t.Fatalf("%v: byte %d of page %d: in a run %v, changed %v", k, i, p, covered[i], changed)
			}
		}
	})
	again := append([]byte(nil), working...)
	k.Merge(p, base, again, incoming, nil)
	k.check(t, "merge without runs", p, again, got)
}

func TestKernelForRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		rule   dsm.MergeRule
		layout dsm.Layout
	}{
		"sum of bytes":         {dsm.MergeSum, dsm.Layout{}},
		"mean of bytes":        {dsm.MergeMean, dsm.Layout{}},
		"smallest of bytes":    {dsm.MergeMin, dsm.Layout{}},
		"header in an element": {dsm.MergeLast, dsm.Layout{DType: dsm.DTypeF32, DataOffset: 6}},
		"negative header":      {dsm.MergeLast, dsm.Layout{DataOffset: -1}},
		"unknown rule":         {9, dsm.Layout{}},
		"unknown type":         {dsm.MergeLast, dsm.Layout{DType: 99}},
	} {
		if _, err := KernelFor(c.rule, c.layout); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := KernelFor(dsm.MergeSum, dsm.Layout{})
	if want := "merge kernel: merge=sum needs user.dsm.dtype, or a header of an .npy or .safetensors file"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

// float and round convert one element.
func (h half) float(x uint16) float32 {
	var r row
	h.widen(&r, []uint16{x})
	return r[0]
}

func (h half) round(f float32) uint16 {
	var x [1]uint16
	h.narrow(x[:], &row{f})
	return x[0]
}

func TestHalfConversions(t *testing.T) {
	for i := range 1 << 16 {
		x := uint16(i)
		f, slow := f16ToFloat(x), slowF16(x)
		if math.IsNaN(slow) != math.IsNaN(float64(f)) || !math.IsNaN(slow) && float64(f) != slow {
			t.Fatalf("f16 %04x: got %v, want %v", x, f, slow)
		}
		if back := roundF16(f); !math.IsNaN(slow) && back != x {
			t.Fatalf("f16 %04x comes back as %04x", x, back)
		}
		if b := (half{bfloat: true}).float(x); !math.IsNaN(float64(b)) && roundBF16(b) != x {
			t.Fatalf("bf16 %04x comes back as %04x", x, roundBF16(b))
		}
	}
	// Rounding: between neighbours a < b, everything below the middle goes to a.
	for _, h := range []half{{bfloat: false}, {bfloat: true}} {
		for x := uint16(0); !math.IsInf(float64(h.float(x+1)), 0); x++ {
			a, b := h.float(x), h.float(x+1)
			mid := float32((float64(a) + float64(b)) / 2)
			even := x + x&1
			for _, c := range []struct {
				f    float32
				want uint16
			}{{mid, even}, {math.Nextafter32(mid, 0), x}, {math.Nextafter32(mid, b), x + 1}} {
				if got := h.round(c.f); got != c.want {
					t.Fatalf("%+v: %v rounds to %04x, want %04x", h, c.f, got, c.want)
				}
				if got := h.round(-c.f); got != c.want|0x8000 {
					t.Fatalf("%+v: %v rounds to %04x, want %04x", h, -c.f, got, c.want|0x8000)
				}
			}
		}
	}
	if got := roundF16(65520); got != 0x7c00 {
		t.Errorf("65520 rounds to %04x, want infinity", got)
	}
}

func TestRunsAdd(t *testing.T) {
	var r Runs
	for _, x := range []Run{{0, 4}, {4, 4}, {10, 2}, {40, 1}} {
		r.Add(x.Off, x.Len)
	}
	if want := (Runs{{0, 8}, {10, 2}, {40, 1}}); fmt.Sprint(r) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", r, want)
	}
}
