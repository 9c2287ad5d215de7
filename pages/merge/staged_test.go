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
				s.Reset()
				for w := range deltas {
					k.Fold(&s, &deltas[w], p)
				}
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
					k.Fold(&s, &deltas[w], 0)
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

// BenchmarkFold adds two dense parts of a round, one mebibyte each: the first is copied, the other is added. With apply there are four, and they are
// merged. The yardstick is a copy of as many bytes.
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
			b.SetBytes(dsm.ExtentSize)
			for b.Loop() {
				for p := range dsm.PageIndex(dsm.ExtentPages) {
					s.Reset()
					k.Fold(&s, &d, p)
					k.Fold(&s, &d, p)
				}
			}
		})
		b.Run(c.rule.String()+"-"+c.dt.String()+"-apply", func(b *testing.B) {
			k := mustKernel(b, c.rule, c.dt, 0)
			base, working := benchPages(dsm.ExtentPages, c.dt, storeAll)
			parts := make([]Delta, 4)
			for w := range parts {
				for p := range base {
					k.AppendDelta(&parts[w], dsm.PageIndex(p), base[p], working[p])
				}
			}
			var s Staged
			b.SetBytes(int64(len(parts)) * dsm.ExtentSize)
			for b.Loop() {
				for p := range base {
					s.Reset()
					for w := range parts {
						k.Fold(&s, &parts[w], dsm.PageIndex(p))
					}
					k.ApplyStaged(&s, dsm.PageIndex(p), 4, working[p])
				}
			}
		})
	}
}

// TestDense: elements that are handed over without a comparison make what those do that are diffed.
func TestDense(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, kc := range kernelCases(t) {
		k := naive{kc}
		for range pagetest.Rounds(2) {
			const pages = 4
			values := make([]byte, pages*dsm.PageSize)
			k.fillPage(rng, values)
			for i := range values {
				values[i] |= 1
			}
			clear(values[2*dsm.PageSize : 3*dsm.PageSize])
			lo, hi := 8*rng.IntN(dsm.PageSize/8), len(values)-8*rng.IntN(dsm.PageSize/8)
			dense := Delta{Data: values[lo:lo]}
			zero, home := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
			for p := range dsm.PageIndex(pages) {
				from, to := max(int(p)*dsm.PageSize, lo), min((int(p)+1)*dsm.PageSize, hi)
				at := from - int(p)*dsm.PageSize
				sums := true
				for _, s := range k.sections(p, nil) {
					if a, b := max(s.from, at), min(s.to, at+to-from); a < b {
						sums = sums && s.op == opSum && (b-a)%8 == 0 && s.finite(values[from+a-at:from+b-at])
					}
				}
				page := append([]byte(nil), zero...)
				copy(page[at:], values[from:to]) // behind a page that was not taken they move
				if took := k.AppendDense(&dense, p, at, values[from:to]); took != (sums && p != 2) {
					t.Fatalf("%v: bytes %d of page %d from %d on are taken: %v", k, to-from, p, at, took)
				} else if !took {
					continue
				}
				var diffed Delta
				k.AppendDelta(&diffed, p, zero, page)
				k.fillPage(rng, home)
				var results [2][]byte
				for i, d := range []*Delta{&dense, &diffed} {
					results[i] = append([]byte(nil), home...)
					k.Overlay(d, int(p), results[i])
				}
				k.check(t, "dense", p, results[0], results[1])
			}
			if err := dense.Validate(kc.Kernel); err != nil {
				t.Fatalf("%v: %v", k, err)
			}
			if len(dense.Data) > 0 && dense.Pages.Has(0) && &dense.Data[0] != &values[lo] {
				t.Errorf("%v: %d bytes were copied", k, len(dense.Data))
			}
		}
	}
}
