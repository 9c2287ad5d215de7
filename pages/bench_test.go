package pages

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

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
			pagetest.PerPage(b)
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
			for i := 0; i < len(p); i += 8 {
				binary.LittleEndian.PutUint64(p[i:], rng.Uint64())
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
	var d merge.Delta
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
				merge.Kernel{}.AppendDelta(&d, p, a.Base(p), a.Working(p))
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/changed, "ns/page")
}
