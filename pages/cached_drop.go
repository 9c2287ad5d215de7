package pages

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Drop is called for pages of extent e that the caller wants to evict. It returns those that the
// kernel's page cache does not have: they can be evicted now. The others get an invalidation, and
// Done returns them once they are out. It does not return pages that were used again meanwhile.
func (c *Cached) Drop(e dsm.ExtentIndex, set dsm.PageSet) (out dsm.PageSet) {
	given := c.givenOf(e, set)
	if x := c.extent(e); x != nil {
		x.leaving = x.leaving.Or(given)
		c.enqueue(x)
	}
	return set.Minus(given)
}

// Expect says that the kernel has sent a WRITE of page p, which is not here; Wrote follows when it
// is. Until then the ledger keeps what the page cache was given of the page, as the baseline of
// that WRITE, even if the page cache drops the page.
func (c *Cached) Expect(p dsm.PageIndex) {
	e, i := p.Extent()
	if x := c.extent(e); x != nil && x.given.Has(i) {
		x.expected.Add(i)
		x.leaving.Remove(i)
	}
}

// Given reports whether the page cache may have a page of [off, off+n), or a notice for one is in
// flight.
func (c *Cached) Given(off, n int64) bool {
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+n; e++ {
		first := max(off-int64(e)*dsm.ExtentSize, 0) / dsm.PageSize
		end := (min(off+n-int64(e)*dsm.ExtentSize, dsm.ExtentSize) + dsm.PageSize - 1) / dsm.PageSize
		if x := c.extent(e); x != nil {
			if set := dsm.Range(int(first), int(end)).And(x.given.Or(x.flying)); !set.Empty() {
				return true
			}
		}
	}
	return false
}

// givenOf returns which pages of the set the page cache may have.
func (c *Cached) givenOf(e dsm.ExtentIndex, set dsm.PageSet) dsm.PageSet {
	if x := c.extent(e); x != nil {
		return set.And(x.given)
	}
	return dsm.PageSet{}
}

// grown makes the pages from first on, those past the old end, leave. The kernel was given zeroes
// for them. In an area on demand, pages that a growth adds are not here, and need not be zero.
func (c *Cached) grown(first dsm.PageIndex) {
	if c.area.demand == nil {
		return
	}
	for _, e := range slices.Sorted(maps.Keys(c.extents)) {
		x := c.extents[e]
		for i := range x.given.All() {
			if x.page(i) < first {
				continue
			}
			switch _, ok := c.given[x.page(i)]; {
			case ok || x.doubtful.Has(i) || x.blind.Has(i):
			case c.writers || c.shared:
				clear(c.keep(x, i).mem)
				c.keepsGiven(x, i)
				c.remove(&x.bare, i, &c.unready)
			default:
				c.add(&x.blind, i, &c.unready)
			}
			x.leaving.Add(i)
			c.want(x, i)
		}
	}
}

// away reports whether the working bytes of page i may not be here, so that they must not be looked
// at.
func (x *cachedExtent) away(i int) bool { return x.leaving.Has(i) || x.expected.Has(i) }

// ready returns the pages that may get a notice now.
func (c *Cached) ready(x *cachedExtent) dsm.PageSet {
	return x.pending.Or(x.leaving).Minus(x.flying).Minus(c.pausedPages(x))
}

// retire forgets x if nothing is known about it any more.
func (c *Cached) retire(x *cachedExtent) {
	if before := c.givenBefore(x.extent); before.Empty() && x.given.Empty() && x.flying.Empty() && x.late.Empty() && !x.queued && !x.waits {
		delete(c.extents, x.extent)
	}
}
