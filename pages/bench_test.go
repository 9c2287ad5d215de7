package pages

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// benchPages returns n pages of ordinary numbers and a copy of them that store changed.
func benchPages(n int, dt dsm.DType, store func(page []byte)) (base, working [][]byte) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range n {
		b := make([]byte, dsm.PageSize)
		fillNormal(rng, dt, b)
		w := append([]byte(nil), b...)
		store(w)
		base, working = append(base, b), append(working, w)
	}
	return base, working
}

// fillNormal fills b with normally distributed numbers: f32 unless dt is a half.
func fillNormal(rng *rand.Rand, dt dsm.DType, b []byte) {
	for i := 0; i < len(b); i += 4 {
		f, g := float32(rng.NormFloat64()), float32(rng.NormFloat64())
		switch dt {
		case dsm.DTypeF16:
			binary.LittleEndian.PutUint16(b[i:], roundF16(f))
			binary.LittleEndian.PutUint16(b[i+2:], roundF16(g))
		case dsm.DTypeBF16:
			binary.LittleEndian.PutUint16(b[i:], roundBF16(f))
			binary.LittleEndian.PutUint16(b[i+2:], roundBF16(g))
		default:
			binary.LittleEndian.PutUint32(b[i:], math.Float32bits(f))
		}
	}
}

func storeHalves(dt dsm.DType) func(p []byte) {
	return func(p []byte) { fillNormal(rand.New(rand.NewPCG(3, uint64(p[0]))), dt, p) }
}

func storeOne(p []byte) { p[1024]++ }

func storeEverySecondByte(p []byte) {
	for i := 0; i < len(p); i += 2 {
		p[i]++
	}
}

func storeAll(p []byte) {
	rng := rand.New(rand.NewPCG(3, uint64(p[0])))
	for i := 0; i < len(p); i += 4 {
		f := math.Float32frombits(binary.LittleEndian.Uint32(p[i:]))
		binary.LittleEndian.PutUint32(p[i:], math.Float32bits(f+float32(rng.NormFloat64())*0.01))
	}
}

func storeRandomBytes(p []byte) {
	rng := rand.New(rand.NewPCG(3, uint64(p[0])))
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
}

var benchCases = []struct {
	name  string
	rule  dsm.MergeRule
	dt    dsm.DType
	store func([]byte)
}{
	{"clean/bytes", dsm.MergeLast, dsm.DTypeAuto, func([]byte) {}},
	{"sparse/bytes", dsm.MergeLast, dsm.DTypeAuto, storeOne},
	{"sparse/sum-f32", dsm.MergeSum, dsm.DTypeF32, storeOne},
	{"second/bytes", dsm.MergeLast, dsm.DTypeAuto, storeEverySecondByte},
	{"dense/bytes", dsm.MergeLast, dsm.DTypeAuto, storeAll},
	{"random/bytes", dsm.MergeLast, dsm.DTypeAuto, storeRandomBytes},
	{"dense/last-f32", dsm.MergeLast, dsm.DTypeF32, storeAll},
	{"dense/sum-f32", dsm.MergeSum, dsm.DTypeF32, storeAll},
	{"dense/sum-f64", dsm.MergeSum, dsm.DTypeF64, storeAll},
	{"dense/sum-f16", dsm.MergeSum, dsm.DTypeF16, storeHalves(dsm.DTypeF16)},
	{"dense/sum-bf16", dsm.MergeSum, dsm.DTypeBF16, storeHalves(dsm.DTypeBF16)},
	{"dense/sum-i64", dsm.MergeSum, dsm.DTypeI64, storeAll},
	{"dense/sum-u8", dsm.MergeSum, dsm.DTypeU8, storeAll},
}

const benchSet = 64 // pages; both copies stay in the second-level cache

func perPage(b *testing.B) {
	b.SetBytes(dsm.PageSize)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/page")
}

func BenchmarkAppendDelta(b *testing.B) {
	for _, c := range benchCases {
		b.Run(c.name, func(b *testing.B) {
			k := mustKernel(b, c.rule, c.dt, 0)
			base, working := benchPages(benchSet, c.dt, c.store)
			var d Delta
			for i := 0; b.Loop(); i++ {
				p := i % benchSet
				if p == 0 {
					d.Reset(0)
				}
				k.AppendDelta(&d, dsm.PageIndex(p), base[p], working[p])
			}
			perPage(b)
		})
	}
}

func BenchmarkApply(b *testing.B) {
	for _, c := range benchCases[1:] {
		b.Run(c.name, func(b *testing.B) {
			k := mustKernel(b, c.rule, c.dt, 0)
			base, working := benchPages(benchSet, c.dt, c.store)
			var d Delta
			for p := range base {
				k.AppendDelta(&d, dsm.PageIndex(p), base[p], working[p])
			}
			home, _ := benchPages(benchSet, c.dt, storeOne)
			for i := 0; b.Loop(); i++ {
				k.Overlay(&d, i%benchSet, home[i%benchSet])
			}
			perPage(b)
		})
	}
}

func BenchmarkMerge(b *testing.B) {
	for _, c := range benchCases {
		b.Run(c.name, func(b *testing.B) {
			k := mustKernel(b, c.rule, c.dt, 0)
			base, working := benchPages(benchSet, c.dt, c.store)
			_, incoming := benchPages(benchSet, c.dt, c.store)
			var w [dsm.PageSize]byte
			for i := 0; b.Loop(); i++ {
				copy(w[:], working[i%benchSet]) // 60 ns of the result
				k.Merge(dsm.PageIndex(i%benchSet), base[i%benchSet], w[:], incoming[(i+1)%benchSet], nil)
			}
			perPage(b)
		})
	}
}

var maskCases = []struct {
	name string
	word func(rng *rand.Rand) uint64
}{
	{"second", func(*rand.Rand) uint64 { return 0x5555555555555555 }},
	{"eighth", func(*rand.Rand) uint64 { return 0x0101010101010101 }},
	{"half", func(rng *rand.Rand) uint64 { return rng.Uint64() }},
	{"dense", func(rng *rand.Rand) uint64 { return ^uint64(1 << rng.IntN(64)) }},
}

// benchMasks measures move for masks of each kind, as many as it takes for the
// processor not to know them by heart.
func benchMasks(b *testing.B, move func(m *mask, page, data []byte)) {
	page, data := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
	for _, c := range maskCases {
		b.Run(c.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			var ms [benchSet]mask
			for i := range ms {
				for j := range ms[i] {
					ms[i][j] = c.word(rng)
				}
			}
			for i := 0; b.Loop(); i++ {
				move(&ms[i%benchSet], page, data)
			}
			perPage(b)
		})
	}
}

func BenchmarkGather(b *testing.B) {
	benchMasks(b, func(m *mask, page, _ []byte) { gatherBytes(m, page) })
}

func BenchmarkScatter(b *testing.B) { benchMasks(b, scatterBytes) }

// BenchmarkGatherOctets and BenchmarkScatterOctets are what other processors do.
func BenchmarkGatherOctets(b *testing.B) {
	benchMasks(b, func(m *mask, page, _ []byte) { gatherOctets(m, page) })
}

func BenchmarkScatterOctets(b *testing.B) {
	benchMasks(b, func(m *mask, page, data []byte) { scatterOctets(m[:], page, data) })
}

// BenchmarkLedger is a page that is updated, stored into the page cache, and so on.
func BenchmarkLedger(b *testing.B) {
	for _, writers := range []bool{false, true} {
		b.Run(fmt.Sprintf("writers=%v", writers), func(b *testing.B) {
			a := newTestArea(b, dsm.ExtentSize)
			c := NewCached(a)
			c.SetWriters(writers)
			all := make([]byte, dsm.ExtentSize)
			for i := 0; b.Loop(); i++ {
				p := dsm.PageIndex(i % dsm.ExtentPages)
				if p == 0 {
					c.Read(0, all)
				}
				c.BeforeMerge(p)
				a.Working(p)[i/dsm.ExtentPages%dsm.PageSize]++
				if p == dsm.ExtentPages-1 {
					for n, ok := c.NextNotice(); ok; n, ok = c.NextNotice() {
						c.Done(n)
					}
				}
			}
			perPage(b)
		})
	}
}

// BenchmarkAppendDeltaCold diffs pages of an area that are in no cache, in random order.
func BenchmarkAppendDeltaCold(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name  string
		store func(page []byte)
	}{
		{"byte", func(p []byte) { p[100]++ }},
		{"random", func(p []byte) {
			for i := range words(p) {
				words(p)[i] = rng.Uint64()
			}
		}},
	} {
		for _, prefetched := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/prefetched=%v", c.name, prefetched), func(b *testing.B) {
				benchCold(b, rng, c.store, prefetched)
			})
		}
	}
}

func benchCold(b *testing.B, rng *rand.Rand, store func(page []byte), prefetched bool) {
	const size, changed = 256 << 20, 8000
	a := newTestArea(b, size)
	for p := range dsm.PageIndex(size / dsm.PageSize) {
		a.Working(p)[0] = 1
		a.SetBase(p, a.Working(p))
	}
	var d Delta
	for b.Loop() {
		b.StopTimer()
		sets := make([]dsm.PageSet, dsm.Extents(size))
		for _, p := range rng.Perm(size / dsm.PageSize)[:changed] {
			store(a.Working(dsm.PageIndex(p)))
			e, i := dsm.PageIndex(p).Extent()
			sets[e].Add(i)
		}
		b.StartTimer()
		for e, set := range sets {
			e := dsm.ExtentIndex(e)
			d.Reset(e)
			for i := range set.All() {
				if prefetched {
					a.PrefetchNext(e, &set, i)
				}
				p := pageOfExtent(e, i)
				Kernel{}.AppendDelta(&d, p, a.Base(p), a.Working(p))
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/changed, "ns/page")
}
