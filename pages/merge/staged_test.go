package merge

import (
	"encoding/binary"
	"math"
	"math/big"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// staged is what a round must make of one element at the home, from its values or differences in the order in which they are folded.
func (k naive) staged(rule dsm.MergeRule, home []byte, parts [][]byte, writers int) []byte {
	if len(parts) == 0 {
		return home
	}
	if rule != dsm.MergeMean {
		writers = 1
	}
	le := binary.LittleEndian
	out := make([]byte, len(home))
	switch {
	case rule == dsm.MergeLast:
		return parts[len(parts)-1]
	case !rule.Adds():
		for _, p := range parts {
			home = k.better(rule, home, p)
		}
		return home
	case k.dt == dsm.DTypeF64:
		sum := math.Float64frombits(le.Uint64(parts[0]))
		for _, p := range parts[1:] {
			sum += math.Float64frombits(le.Uint64(p))
		}
		le.PutUint64(out, math.Float64bits(math.Float64frombits(le.Uint64(home))+sum/float64(writers)))
	case k.dt == dsm.DTypeF32:
		sum := math.Float32frombits(le.Uint32(parts[0]))
		for _, p := range parts[1:] {
			sum += math.Float32frombits(le.Uint32(p))
		}
		le.PutUint32(out, math.Float32bits(math.Float32frombits(le.Uint32(home))+sum/float32(writers)))
	case k.dt == dsm.DTypeF16, k.dt == dsm.DTypeBF16:
		h := half{k.dt == dsm.DTypeBF16}
		sum := float32(0)
		for _, p := range parts {
			sum += h.float(le.Uint16(p))
		}
		le.PutUint16(out, h.round(h.float(le.Uint16(home))+sum/float32(writers)))
	default:
		sum := new(big.Int)
		for _, p := range parts {
			sum.Add(sum, big.NewInt(number64(p)))
		}
		if k.dt.Size() == 8 { // these wrap
			sum.SetInt64(int64(new(big.Int).And(sum, new(big.Int).SetUint64(math.MaxUint64)).Uint64()))
		}
		// The nearest whole number: floor(sum/n + 1/2), but the even one of two.
		n := big.NewInt(int64(writers))
		twice := new(big.Int).Add(new(big.Int).Mul(sum, big.NewInt(2)), n)
		q, r := new(big.Int).DivMod(twice, new(big.Int).Mul(n, big.NewInt(2)), new(big.Int))
		if r.Sign() == 0 && q.Bit(0) == 1 {
			q.Sub(q, big.NewInt(1))
		}
		var wide [8]byte
		le.PutUint64(wide[:], uint64(number64(home)+q.Int64()))
		copy(out, wide[:])
	}
	return out
}

// number64 is an integer of any size, with its sign.
func number64(b []byte) int64 {
	var wide [8]byte
	copy(wide[8-len(b):], b)
	return int64(binary.LittleEndian.Uint64(wide[:])) >> (64 - 8*len(b))
}

// TestStagedAgainstReference folds the parts of up to five writers and compares the result with the reference, with
// memory that was used before.
func TestStagedAgainstReference(t *testing.T) {
	rng := pagetest.Rand(t)
	var s Staged
	for _, kc := range kernelCases(t) {
		k := naive{kc}
		for range pagetest.Rounds(2) {
			s.Reset()
			writers := 1 + rng.IntN(5)
			var base, home [3][]byte
			for p := range base {
				base[p] = make([]byte, dsm.PageSize)
				k.fillPage(rng, base[p])
				home[p] = change(rng, base[p])
			}
			deltas := make([]Delta, writers)
			for w := range deltas {
				for p := range dsm.PageIndex(3) {
					k.AppendDelta(&deltas[w], p, base[p], change(rng, base[p]))
				}
				k.Fold(&s, &deltas[w])
			}
			var all dsm.PageSet
			for w := range deltas {
				all = all.Or(deltas[w].Pages)
			}
			if s.Pages != all {
				t.Fatalf("%v: pages %x are staged, want %x", k, s.Pages, all)
			}
			for p := range dsm.PageIndex(3) {
				want := append([]byte(nil), home[p]...)
				stored := make([]pageParts, writers)
				for w := range deltas {
					stored[w] = partsOf(kc.Kernel, &deltas[w], p)
				}
				var parts [][]byte
				k.elements(p, func(from, to int, rule dsm.MergeRule) {
					parts = parts[:0]
					for w := range deltas {
						if part := stored[w][from]; part != nil {
							parts = append(parts, part)
						}
					}
					copy(want[from:], k.staged(rule, home[p][from:to], parts, writers))
				})
				got := append([]byte(nil), home[p]...)
				k.ApplyStaged(&s, p, writers, got)
				k.check(t, "staged", p, got, want)
			}
		}
	}
}

// pageParts are values or differences of elements of a page, by the offset of the element in the page.
type pageParts [dsm.PageSize][]byte

// partsOf returns what a delta has of page p.
func partsOf(k Kernel, d *Delta, p dsm.PageIndex) (parts pageParts) {
	if !d.Pages.Has(int(p)) {
		return parts
	}
	at := d.at[rank(&d.Pages, int(p))]
	index, data := d.Index[at.index:], d.Data[at.data:]
	for _, s := range k.sections(p, nil) {
		var m mask
		used, _ := m.decode(index, s)
		for lo, hi := range m.runs() {
			for u := lo; u < hi; u++ {
				parts[u*s.unit], data = data[:s.unit], data[s.unit:]
			}
		}
		index = index[used:]
	}
	return parts
}

// TestStagedInAnyOrder: but for last, and for the rounding of floats, the order of the parts does not matter; a part of min or max may come twice.
func TestStagedInAnyOrder(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, kc := range kernelCases(t) {
		float := kc.dt >= dsm.DTypeF64 && kc.dt <= dsm.DTypeBF16
		if kc.head != 0 || kc.rule == dsm.MergeLast || kc.rule.Adds() && float {
			continue
		}
		k := naive{kc}
		for range 5 {
			base := make([]byte, dsm.PageSize)
			k.fillPage(rng, base)
			deltas := make([]Delta, 4)
			for w := range deltas {
				k.AppendDelta(&deltas[w], 0, base, change(rng, base))
			}
			var results [2][]byte
			for i := range results {
				var s Staged
				order := rng.Perm(len(deltas))
				if !kc.rule.Adds() {
					order = append(order, rng.IntN(len(deltas)))
				}
				for _, w := range order {
					k.Fold(&s, &deltas[w])
				}
				results[i] = append([]byte(nil), base...)
				k.ApplyStaged(&s, 0, len(deltas), results[i])
			}
			pagetest.WantPage(t, kc.String()+": in another order", results[1], results[0])
		}
	}
}

func TestNearest(t *testing.T) {
	for _, c := range []struct{ sum, n, want int64 }{
		{7, 2, 4}, {5, 2, 2}, {-5, 2, -2}, {-7, 2, -4}, {1, 2, 0}, {3, 2, 2}, {-1, 2, 0}, {10, 4, 2}, {14, 4, 4},
		{10, 3, 3}, {11, 3, 4}, {-10, 3, -3}, {-11, 3, -4}, {6, 3, 2}, {0, 9, 0}, {math.MaxInt64, 2, 1 << 62}, {math.MinInt64, 3, -3074457345618258603},
	} {
		if got := nearest(c.sum, c.n); got != c.want {
			t.Errorf("%d/%d: got %d, want %d", c.sum, c.n, got, c.want)
		}
	}
}

// BenchmarkFold adds the dense parts of a round, one mebibyte each: the first is copied, the others are added. The yardstick is
// a copy of as many bytes.
func BenchmarkFold(b *testing.B) {
	b.Run("memcpy", func(b *testing.B) {
		from, to := make([]byte, dsm.ExtentSize), make([]byte, dsm.ExtentSize)
		b.SetBytes(dsm.ExtentSize)
		for b.Loop() {
			copy(to, from)
		}
	})
	for _, c := range []struct {
		rule dsm.MergeRule
		dt   dsm.DType
	}{
		{dsm.MergeLast, dsm.DTypeF32}, {dsm.MergeSum, dsm.DTypeF32}, {dsm.MergeMean, dsm.DTypeF32}, {dsm.MergeSum, dsm.DTypeF64}, {dsm.MergeSum, dsm.DTypeI64},
		{dsm.MergeSum, dsm.DTypeBF16}, {dsm.MergeSum, dsm.DTypeF16}, {dsm.MergeMean, dsm.DTypeI32}, {dsm.MergeMin, dsm.DTypeF32}, {dsm.MergeMax, dsm.DTypeI64},
	} {
		b.Run(c.rule.String()+"-"+c.dt.String(), func(b *testing.B) {
			k := mustKernel(b, c.rule, c.dt, 0)
			base, working := benchPages(dsm.ExtentPages, c.dt, storeAll)
			var d Delta
			for p := range base {
				clear(base[p])
				k.AppendDelta(&d, dsm.PageIndex(p), base[p], working[p])
			}
			var s Staged
			k.Fold(&s, &d)
			b.SetBytes(dsm.ExtentSize)
			for b.Loop() {
				k.Fold(&s, &d)
			}
		})
		b.Run(c.rule.String()+"-"+c.dt.String()+"-apply", func(b *testing.B) {
			k := mustKernel(b, c.rule, c.dt, 0)
			base, working := benchPages(dsm.ExtentPages, c.dt, storeAll)
			var d Delta
			for p := range base {
				k.AppendDelta(&d, dsm.PageIndex(p), base[p], working[p])
			}
			var s Staged
			k.Fold(&s, &d)
			b.SetBytes(dsm.ExtentSize)
			for b.Loop() {
				for p := range base {
					k.ApplyStaged(&s, dsm.PageIndex(p), 4, working[p])
				}
			}
		})
	}
}
