package pages

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// When an answer tells the kernel of a smaller size, the thread that asked truncates the page cache there.
// It drops the pages past the size, and in the page in which the size lies it clears the rest in
// place. If a READ of that page is under way, the page is locked. Then the thread waits for the READ,
// and clears what it brings, even bytes that were written after the area had grown again. No request
// tells that this happens, nor when it is over.
//
// So that page is late. The reply to a READ of it has zeroes from the size on, which the clearing does
// not change. When the area grows past the size the page gets an invalidation, whether it was given
// or not. The invalidation waits for the page's lock behind the thread, so when the invalidation is
// done the thread is done too. A WRITE of bytes past the size shows the same: the page was unlocked,
// and the kernel knows of a larger size.
//
// Three cases are not covered. After the size was told and the area grew, a program may store to a
// mapping of the page before the thread has the page's lock: the kernel clears that store. And the
// thread may be delayed before it waits for the lock: then the invalidation comes first. And a daemon
// that follows one that was killed does not know which pages are late.

// late is a page whose end the kernel may still clear.
type late struct {
	from int // the offset in the page from which on it may
	next int // the same for sizes told since the invalidation in flight was taken; dsm.PageSize if there is none
}

// lateLimit bounds the late pages: with more, all of them get an invalidation.
const lateLimit = 1000

// KernelTold must be called before an answer tells the kernel of the size.
func (c *Cached) KernelTold(size int64) {
	c.shaken = c.shaken || size < c.told // the kernel drops the pages past a smaller size
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
	c.enqueue(x) // a notice of a late page is not paused
	c.tellLate()
}

// tellLate makes an invalidation pending for each late page that is due.
func (c *Cached) tellLate() {
	for _, p := range slices.Sorted(maps.Keys(c.late)) { // in order: runs repeat from their seed
		if x, i := c.page(p); c.due(x, i) && !x.flying.Has(i) {
			c.want(x, i)
		}
	}
}

// due reports whether page i is late and must be invalidated: the area has bytes that the kernel may
// clear, or there are too many late pages.
func (c *Cached) due(x *cachedExtent, i int) bool {
	if !x.late.Has(i) {
		return false
	}
	p := x.page(i)
	return len(c.late) > lateLimit || c.within(p) > c.late[p].least()
}

func (l late) least() int { return min(l.from, l.next) }

// hideLate clears what the kernel may still clear of a page, or of a hole (hidePunched), in the reply
// to a READ of page i from byte lo on. It reports whether that changed the reply.
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

// deliveredLate records a WRITE of n bytes at off.
func (c *Cached) deliveredLate(off, n int64) {
	if len(c.late) == 0 {
		return
	}
	from, to := pagesOf(off, n)
	for p := from; p < to; p++ {
		x, i := c.page(p)
		if x.late.Has(i) && off+n-int64(p)*dsm.PageSize > int64(c.late[p].least()) {
			c.setLate(x, i, late{dsm.PageSize, dsm.PageSize})
		}
		c.retire(x)
	}
}

// droppedLate records that an invalidation of page i is done.
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

// forced reports whether page i must be invalidated even if the page cache has it up to date.
func (c *Cached) forced(x *cachedExtent, i int) bool {
	return x.doubtful.Has(i) || x.unsure.Has(i) || c.due(x, i) || c.punchForces(x, i)
}
