package merge

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
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
			pagetest.PerPage(b)
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
			pagetest.PerPage(b)
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
			pagetest.PerPage(b)
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
			pagetest.PerPage(b)
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

func BenchmarkFinite(b *testing.B) {
	s := section{to: dsm.PageSize, unit: 4, dtype: dsm.DTypeF32}
	page := make([]byte, dsm.PageSize)
	var m mask
	m.set(s.units())
	for b.Loop() {
		if !m.finite(s, page) {
			b.Fatal("zero is finite")
		}
	}
}
