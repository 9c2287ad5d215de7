package pages

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// An answer that tells the kernel of another size has the thread that asked cut the page cache off there: pages past the size
// are dropped, and the rest of the page in which it lies is cleared in place. If that page is locked, by a READ that
// is under way, the thread waits, and clears what the READ brings: also bytes that were
// written when the area had grown again. No request tells when that is over, nor that it happened.
//
// So that page is late. The reply to a READ of it has zeroes from the size on, which the clearing does not
// change. When the area grows past the size the page gets an invalidation, whether it was given or
// not. Invalidation and thread wait in line for the lock of the page: when the one is done the other is.
// So is it when a WRITE comes from past the size: that page is unlocked, and the kernel knows of a larger size.
//
// Nothing helps a store to a mapping that is made, after the size was told and the area grew, before the
// thread has the page: the kernel clears it. Nor where the thread is held up before it waits in line.

// late is a page of which the kernel may yet clear the end.
type late struct {
	from int // where in the page
	next int // the same, told since the invalidation in flight was taken; a page if nothing was
}

// lateLimit is how many late pages there are before all get an invalidation.
const lateLimit = 1000

// KernelTold is called before an answer tells the kernel of the size.
func (c *Cached) KernelTold(size int64) {
	c.shaken = c.shaken || size < c.told // it drops the pages past it
	c.told = size
	lo := int(size % dsm.PageSize)
	if lo == 0 {
		return
	}
	p := dsm.PageIndex(size / dsm.PageSize)
	x, i := c.page(p)
	l, ok := c.late[p]
	if !ok {
		l = late{dsm.PageSize, dsm.PageSize}
		x.late.Add(i)
	}
	if x.flying.Has(i) && !x.storing.Has(i) {
		l.next = min(l.next, lo)
	} else {
		l.from = min(l.from, lo)
	}
	c.late[p] = l
	c.enqueue(x) // a notice of a late page is not on hold
	c.tellLate()
}

// tellLate gives the late pages invalidations that are to have one.
func (c *Cached) tellLate() {
	for _, p := range slices.Sorted(maps.Keys(c.late)) { // in order: runs repeat from their seed
		if x, i := c.page(p); c.due(x, i) && !x.flying.Has(i) {
			c.want(x, i)
		}
	}
}

// due reports whether page i is late and the area has more of it than the kernel may clear.
func (c *Cached) due(x *cachedExtent, i int) bool {
	if !x.late.Has(i) {
		return false
	}
	p := x.page(i)
	return len(c.late) > lateLimit || c.within(p) > c.late[p].least()
}

func (l late) least() int { return min(l.from, l.next) }

// hideLate clears what the kernel may clear of the reply to a READ of page i from byte lo on, and reports whether that
// changes it.
func (c *Cached) hideLate(x *cachedExtent, i int, reply []byte, lo int) bool {
	hides := c.hidePunched(x.page(i), reply, lo)
	if !x.late.Has(i) {
		return hides
	}
	rest := reply[min(max(c.late[x.page(i)].least()-lo, 0), len(reply)):]
	if allZero(rest) {
		return hides
	}
	clear(rest)
	return true
}

// wroteLate takes note of a WRITE of page i up to byte end of it.
func (c *Cached) wroteLate(x *cachedExtent, i, end int) {
	if p := x.page(i); x.late.Has(i) && end > c.late[p].least() {
		c.setLate(x, i, late{dsm.PageSize, dsm.PageSize})
	}
}

// droppedLate takes note that an invalidation of page i is done.
func (c *Cached) droppedLate(x *cachedExtent, i int) {
	if l, ok := c.late[x.page(i)]; ok {
		c.setLate(x, i, late{l.next, dsm.PageSize})
	}
}

func (c *Cached) setLate(x *cachedExtent, i int, l late) {
	p := x.page(i)
	if l.least() < dsm.PageSize {
		c.late[p] = l
		return
	}
	x.late.Remove(i)
	delete(c.late, p)
}

// forced reports whether page i is to be invalidated though the page cache may have it as it is.
func (c *Cached) forced(x *cachedExtent, i int) bool {
	return x.doubtful.Has(i) || x.unsure.Has(i) || c.due(x, i)
}
