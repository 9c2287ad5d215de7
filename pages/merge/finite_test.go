package merge

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// put stores bits, an element of type t, to element i of page.
func put(page []byte, t dsm.DType, i int, bits uint64) {
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], bits)
	copy(page[i*t.Size():(i+1)*t.Size()], word[:])
}

// notFinite are elements that are no finite numbers: infinite, or not a number, of either sign.
var notFinite = map[dsm.DType][]uint64{
	dsm.DTypeF64:  {math.Float64bits(math.Inf(1)), math.Float64bits(math.Inf(-1)), math.Float64bits(math.NaN()), 0xfff0000000000001},
	dsm.DTypeF32:  {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001},
	dsm.DTypeF16:  {0x7c00, 0xfc00, 0x7e00, 0xfc01},
	dsm.DTypeBF16: {0x7f80, 0xff80, 0x7fc0, 0xff81},
}

// finite are the largest and the smallest numbers.
var finite = map[dsm.DType][]uint64{
	dsm.DTypeF64:  {math.Float64bits(math.MaxFloat64), math.Float64bits(-math.MaxFloat64), 1, 1<<63 | 1},
	dsm.DTypeF32:  {0x7f7fffff, 0xff7fffff, 1, 0x80000001},
	dsm.DTypeF16:  {0x7bff, 0xfbff, 1, 0x8001},
	dsm.DTypeBF16: {0x7f7f, 0xff7f, 1, 0x8001},
}

func kernelOf(t *testing.T, rule dsm.MergeRule, l dsm.Layout) Kernel {
	t.Helper()
	k, err := KernelFor(rule, l)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A delta tells how many elements are no finite numbers, and where the first one is; with OnlyFinite it has all but them.
func TestNotFinite(t *testing.T) {
	for _, rule := range []dsm.MergeRule{dsm.MergeLast, dsm.MergeSum, dsm.MergeMean, dsm.MergeMin, dsm.MergeMax} {
		for dtype, bad := range notFinite {
			for _, head := range []int{0, 64} {
				for _, at := range []int{head / dtype.Size(), 100, dsm.PageSize/dtype.Size() - 1} {
					base, working := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
					for i, bits := range finite[dtype] {
						put(working, dtype, 40+i, bits)
					}
					want := slices.Clone(working)
					for i, bits := range bad[:min(len(bad), dsm.PageSize/dtype.Size()-at)] {
						put(working, dtype, at+i, bits)
					}
					count := min(len(bad), dsm.PageSize/dtype.Size()-at)
					k := kernelOf(t, rule, dsm.Layout{DType: dtype, DataOffset: int64(head)})
					for _, only := range []Kernel{k, k.OnlyFinite()} {
						var d Delta
						d.Reset(0)
						only.AppendDelta(&d, 0, base, working)
						if d.NotFinite != count || d.FirstNotFinite != int64(at*dtype.Size()) {
							t.Fatalf("%v of %v, header %d, %d at %d: found %d, the first one at byte %d", rule, dtype, head, count, at, d.NotFinite, d.FirstNotFinite)
						}
						home := slices.Clone(base)
						if err := d.Validate(only); err != nil {
							t.Fatal(err)
						}
						overflowed := only.Apply(&d, func(int) []byte { return home })
						if only.onlyFinite {
							if rule.Adds() && !slices.Equal(home, want) || !(section{dtype: dtype}).finite(home) || overflowed != 0 {
								t.Fatalf("%v of %v, header %d: the home has something else than the finite elements", rule, dtype, head)
							}
						} else if rule.Adds() && overflowed != count {
							t.Fatalf("%v of %v: %d sums are not finite, want %d", rule, dtype, overflowed, count)
						}
						mine := slices.Clone(working)
						if only.Finite(0, base, mine); !slices.Equal(mine, want) {
							t.Fatalf("%v of %v: Finite left something else than the finite elements", rule, dtype)
						}
					}
				}
			}
		}
	}
}

// Integers and bytes are never counted, whatever bits they have.
func TestIntegersAreFinite(t *testing.T) {
	for _, dtype := range []dsm.DType{dsm.DTypeI32, dsm.DTypeU64, dsm.DTypeU8, dsm.DTypeI16} {
		working := make([]byte, dsm.PageSize)
		for i := range working {
			working[i] = 0xff
		}
		var d Delta
		d.Reset(0)
		k := kernelOf(t, dsm.MergeSum, dsm.Layout{DType: dtype}).OnlyFinite()
		if changed, _ := k.AppendDelta(&d, 0, make([]byte, dsm.PageSize), working); !changed || d.NotFinite != 0 {
			t.Errorf("%v: changed %v, %d elements are not finite", dtype, changed, d.NotFinite)
		}
	}
}

// Two finite numbers may have a sum that is none: the home counts it.
func TestOverflow(t *testing.T) {
	k := kernelOf(t, dsm.MergeSum, dsm.Layout{DType: dsm.DTypeF32}).OnlyFinite()
	home := make([]byte, dsm.PageSize)
	for n := range 2 {
		working := make([]byte, dsm.PageSize)
		for _, i := range []int{3, 700} {
			put(working, dsm.DTypeF32, i, 0x7f7fffff)
		}
		var d Delta
		d.Reset(0)
		k.AppendDelta(&d, 0, make([]byte, dsm.PageSize), working)
		if got := k.Apply(&d, func(int) []byte { return home }); got != 2*n || d.NotFinite != 0 {
			t.Fatalf("publish %d: %d sums are not finite, %d elements", n, got, d.NotFinite)
		}
	}
}

// The fast test of many elements says the same as that of one, for random bits.
func TestFiniteOfMany(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	page := make([]byte, 64)
	for range 100000 {
		for i := range page {
			a, b := byte(r.Uint32()), byte(r.Uint32())
			page[i] = a | b // more exponents that are full
		}
		for dtype := range notFinite {
			s := section{dtype: dtype, unit: dtype.Size()}
			want := true
			for at := 0; at < len(page); at += s.unit {
				want = want && s.finiteAt(page[at:])
			}
			if got := s.finite(page); got != want {
				t.Fatalf("%v: %x: finite %v, want %v", dtype, page, got, want)
			}
		}
	}
}

// TestNotFiniteSince counts what AppendDelta counts.
func TestNotFiniteSince(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, dtype := range []dsm.DType{dsm.DTypeF64, dsm.DTypeF32, dsm.DTypeF16, dsm.DTypeBF16, dsm.DTypeI32} {
		k, err := KernelFor(dsm.MergeLast, dsm.Layout{DType: dtype})
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for range 50 {
			base, working := make([]byte, dsm.PageSize), alignedPage()
			for _, b := range [][]byte{base, working} {
				for range rng.IntN(20) {
					b[rng.IntN(len(b))] = byte(rng.Uint32())
				}
			}
			for range rng.IntN(5) { // all bits set: no finite number of any dtype
				at := rng.IntN(dsm.PageSize/8) * 8
				copy(working[at:], "\xff\xff\xff\xff\xff\xff\xff\xff")
				if rng.IntN(2) == 0 {
					copy(base[at:at+8], working[at:])
				}
			}
			var d Delta
			k.AppendDelta(&d, 0, base, working)
			if got := k.NotFiniteSince(0, base, working); got != d.NotFinite {
				t.Fatalf("%v: %d, and the delta has %d", dtype, got, d.NotFinite)
			}
			found += d.NotFinite
		}
		if (found > 0) != (dtype != dsm.DTypeI32) {
			t.Errorf("%v: %d elements are not finite", dtype, found)
		}
	}
}

// alignedPage returns a page that other processes could store to. A slice of bytes may be on the stack, at any address.
func alignedPage() []byte {
	words := make([]uint64, dsm.PageSize/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), dsm.PageSize)
}
