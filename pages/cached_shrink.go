package pages

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// shrinkLimit bounds the memory for copies of pages that are truncated. They are the baselines of stores that
// the kernel may still write back.
const shrinkLimit = 64 << 20

// BeforeShrink must be called before a Resize to a smaller size. It keeps what the page cache was given of the pages that are truncated.
func (c *Cached) BeforeShrink(size int64) {
	if !c.writers && !c.shared {
		return // nobody can have stored to them
	}
	c.notCertain(size)
	c.findResumed(size)
	room := (shrinkLimit - c.CopyBytes()) / dsm.PageSize
	c.pagesPast(size, func(x *cachedExtent, i, _ int) {
		_, kept := c.given[x.page(i)]
		if kept || x.blind.Has(i) || x.storing.Has(i) || x.doubtful.Has(i) || room <= 0 || c.within(x.page(i)) > 0 && !c.area.isHere(x.page(i)) {
			return
		}
		c.snapshot(c.keep(x, i).mem, x.page(i))
		c.keepsGiven(x, i)
		c.remove(&x.bare, i, &c.unready)
		room--
	})
}

// Truncate must be called after every Resize. If an area on demand grew, the pages that were given
// past the old end begin to leave. If the area shrank, all given pages from the new end on become doubtful: they get an invalidation.
//
// The answer to a SETATTR that shrinks the file must not wait for Idle. Until the answer the kernel
// may withhold WRITEs of the file, and an invalidation waits for those.
func (c *Cached) Truncate(size int64) {
	was := c.size
	c.size = size
	c.shaken = true
	if size > was {
		c.grown(dsm.PageIndex(wholePages(was) / dsm.PageSize))
		c.tellLate()
	}
	if size >= was {
		return
	}
	for _, f := range c.flights {
		off := int64(f.x.page(f.from)) * dsm.PageSize
		f.valid = int(min(int64(f.valid), max(size-off, 0)))
	}
	c.shrunkAt(size)
	c.pagesPast(size, func(x *cachedExtent, i, from int) {
		if from == 0 {
			c.remove(&x.blind, i, &c.unready)
			x.expected.Remove(i)
		}
		c.remove(&x.bare, i, &c.unready)
		if since := c.since[x.page(i)]; since != nil {
			clear(since[from:])
		}
		c.doubt(x, i)
		c.voided(x, i, from)
	})
	c.certainAgain()
}

// sinceShrink returns the baseline of a write(2) to page p, which is doubtful and has g. What is past the smallest size is void there, and zero, but for
// what WRITEs have brought since: that is taken, and counted, already.
func (c *Cached) sinceShrink(p dsm.PageIndex) []byte {
	since := c.since[p]
	if since == nil {
		since = slices.Clone(c.given[p].mem)
		clear(since[min(max(c.shrunkTo-int64(p)*dsm.PageSize, 0), dsm.PageSize):])
		if c.since == nil {
			c.since = make(map[dsm.PageIndex][]byte)
		}
		c.since[p] = since
	}
	return since
}

// trust ends state doubtful of page i.
func (c *Cached) trust(x *cachedExtent, i int) {
	c.remove(&x.doubtful, i, &c.unready)
	delete(c.since, x.page(i))
	c.valid(x, i)
}

// Refuses reports whether Wrote refuses stores to mappings of page p, because their baseline is gone, or the page is mixed.
func (c *Cached) Refuses(p dsm.PageIndex) bool {
	e, i := p.Extent()
	x := c.extent(e)
	if x == nil || !x.doubtful.Has(i) {
		return false
	}
	_, kept := c.given[p]
	s, _ := c.voidOf(x, i)
	return x.mixed.Has(i) || !kept && s != wholePage
}

// NotTaken records that data at off, of a WRITE, is not taken into the working copy. It lies past the
// end, because the kernel had not heard that the area shrank, or the WRITE is refused because there is
// no memory for it. The page cache has these bytes, and must not go on showing them.
func (c *Cached) NotTaken(off int64, data []byte) {
	c.shrunkAt(c.size)
	from, to := pagesOf(off, int64(len(data)))
	for p := from; p < to; p++ {
		lo := int(max(off-int64(p)*dsm.PageSize, 0))
		n := min(dsm.PageSize-lo, len(data))
		x, i := c.page(p)
		if int64(p)*dsm.PageSize >= c.size {
			c.hasPast(p)
		}
		shown := c.shows(x, i, lo, data[:n])
		x.given.Add(i)
		if x.flying.Has(i) {
			x.regiven.Add(i)
		}
		if shown {
			data = data[n:]
			continue
		}
		g, kept := c.given[p]
		if !kept && !x.blind.Has(i) && !x.storing.Has(i) && !x.doubtful.Has(i) && (c.within(p) == 0 || c.area.isHere(p)) {
			g, kept = c.keep(x, i), true
			c.snapshot(g.mem, p)
			c.keepsGiven(x, i)
			c.remove(&x.bare, i, &c.unready)
		}
		// First, for the next daemon: the WRITE comes again to that. If g had it already, and that daemon took it, it would be no store.
		c.doubt(x, i)
		if kept {
			copy(g.mem[lo:], data[:n])
		}
		data = data[n:]
	}
}

// shows reports whether the page cache was given data at lo of page i, as far as that is known. Past the
// end it is given zeroes. So a page that is written back as a whole, and of which programs have stored to
// the part before the end only, brings nothing new there. During a notice this is not known: the WRITE may
// have come after the drop.
func (c *Cached) shows(x *cachedExtent, i, lo int, data []byte) bool {
	if !x.given.Has(i) || x.flying.Has(i) || x.blind.Has(i) || x.doubtful.Has(i) || x.unsure.Has(i) {
		return false
	}
	if g, ok := c.given[x.page(i)]; ok {
		return string(g.mem[lo:lo+len(data)]) == string(data)
	}
	return lo >= c.within(x.page(i)) && allZero(data)
}

// KernelShrinks must be called before a SETATTR of the size, by a program of this node, is
// answered. The kernel then drops what it has past size before it writes anything back.
func (c *Cached) KernelShrinks(size int64) {
	c.punchOver() // the kernel has locked the file
	c.pagesPast(size, func(x *cachedExtent, i, from int) {
		if g, ok := c.given[x.page(i)]; ok {
			clear(g.mem[from:])
		}
		c.kernelTruncates(x, i, from)
	})
	c.Answered(0, size)
}

// shrunkAt records that pages are truncated at size.
func (c *Cached) shrunkAt(size int64) {
	for _, x := range c.extents {
		if !x.doubtful.Empty() {
			c.shrunkTo = min(c.shrunkTo, size)
			return
		}
	}
	c.shrunkTo = size
}

// pagesPast calls f for each given page that reaches past size, with the offset in the page at which
// the part past size begins.
func (c *Cached) pagesPast(size int64, f func(x *cachedExtent, i, from int)) {
	first := dsm.PageIndex(size / dsm.PageSize) // the last page, if the end is in it
	var list []dsm.ExtentIndex
	for e := range c.extents {
		if (dsm.PageIndex(e)+1)*dsm.ExtentPages > first {
			list = append(list, e)
		}
	}
	slices.Sort(list) // runs repeat from their seed
	for _, e := range list {
		x := c.extents[e]
		for i := range x.given.All() {
			switch p := x.page(i); {
			case p > first:
				f(x, i, 0)
			case p == first:
				f(x, i, int(size%dsm.PageSize))
			}
		}
	}
}
