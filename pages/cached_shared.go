package pages

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// SetShared says whether attached programs may store into the working copy. Set it before the first
// of them is let in, which then waits for Writable. Unset it when the last one is gone and its stores
// have been found. When it is set, every given page without a g gets an invalidation.
//
// While it is set the bytes of every given page are kept: at most the size of the area, and only
// pages that programs read through the page cache.
func (c *Cached) SetShared(on bool) {
	if c.shared == on {
		return
	}
	c.shared = on
	if on {
		c.findResumed(0)
	}
	for _, e := range slices.Sorted(maps.Keys(c.extents)) {
		x := c.extents[e]
		for i := range x.given.All() {
			if on {
				c.share(x, i)
			} else {
				c.unshare(x, i)
			}
		}
	}
	c.lineUp() // nothing is paused while it is set
}

// share makes page i bare if there is no copy of what the page cache was given.
func (c *Cached) share(x *cachedExtent, i int) {
	_, kept := c.given[x.page(i)]
	if !kept && !x.blind.Has(i) && !x.storing.Has(i) && !x.doubtful.Has(i) {
		c.add(&x.bare, i, &c.unready)
		c.want(x, i)
	}
}

// unshare drops the copy of page i if it equals the working copy.
func (c *Cached) unshare(x *cachedExtent, i int) {
	if x.bare.Has(i) {
		c.clean(x, i)
		return
	}
	g, ok := c.given[x.page(i)]
	switch {
	case ok && (x.away(i) || c.forced(x, i)):
		c.want(x, i)
	case ok && c.current(x.page(i), g):
		c.settle(x, i)
		c.forget(x, i)
	case ok:
		c.want(x, i)
	}
}

// Touched says that attached programs have stored into pages of extent e. Pages that differ in the
// page cache get a notice.
func (c *Cached) Touched(e dsm.ExtentIndex, pages dsm.PageSet) {
	x := c.extents[e]
	if x == nil || !c.shared {
		return
	}
	for i := range pages.And(x.given).All() {
		switch {
		case x.bare.Has(i): // no program has been let in yet, so it was a WRITE of the kernel that changed the page
		case x.storing.Has(i):
			c.want(x, i)
		default:
			c.compare(x, i)
		}
	}
}

// compare makes a notice for page i pending if the working copy differs from the page cache, and
// cancels it if not. If g is not known, or the page is leaving, it does nothing: the page gets an
// invalidation anyway.
func (c *Cached) compare(x *cachedExtent, i int) {
	g, ok := c.given[x.page(i)]
	switch {
	case !ok || x.away(i):
	case c.current(x.page(i), g):
		c.settle(x, i)
	default:
		c.want(x, i)
	}
}

// readShared reads page i, from byte lo on, into dst, and keeps a copy if the page cache will have
// the page. dst is shorter than the page only at the end of the area, or if only part of the page
// is read.
func (c *Cached) readShared(x *cachedExtent, i, lo int, dst []byte, whole bool) {
	var now [dsm.PageSize]byte
	read := now[:]
	keeps := !x.storing.Has(i) && (whole || !x.given.Has(i))
	if keeps {
		read = c.keep(x, i).mem
	}
	c.snapshot(read, x.page(i))
	if keeps {
		c.keepsGiven(x, i)
	}
	copy(dst, read[lo:])
}

// overwrite takes a WRITE of a page without g into the working copy as it is. Such a page was not
// given, or K = W, or the ledger does not know K.
func (c *Cached) overwrite(x *cachedExtent, i, lo int, data []byte) {
	p := x.page(i)
	w := c.area.Working(p)
	if !c.shared {
		copy(w[lo:], data)
		return
	}
	merge.OverwriteShared(w, lo, data)
	if x.doubtful.Has(i) {
		return
	}
	g := c.keep(x, i).mem
	c.snapshot(g, p)
	copy(g[lo:], data)
	c.keepsGiven(x, i)
	c.remove(&x.bare, i, &c.unready)
	c.compare(x, i)
}

// snapshot sets dst to what a READ of page p returns: the working copy up to the end of the area,
// and zeroes.
func (c *Cached) snapshot(dst []byte, p dsm.PageIndex) {
	n := c.within(p)
	if n == 0 {
		clear(dst)
		return
	}
	merge.Snapshot(dst, c.area.Working(p)[:n])
}

// current reports whether g, what the page cache was given of page p, is what a READ would return
// now.
func (c *Cached) current(p dsm.PageIndex, g frame) bool {
	n := c.within(p)
	if n == dsm.PageSize {
		return string(g.mem) == string(c.area.Working(p))
	}
	return allZero(g.mem[n:]) && (n == 0 || string(g.mem[:n]) == string(c.area.Working(p)[:n]))
}

// within returns how many bytes of page p are before the end of the area.
func (c *Cached) within(p dsm.PageIndex) int {
	return int(min(max(c.area.size-int64(p)*dsm.PageSize, 0), dsm.PageSize))
}
