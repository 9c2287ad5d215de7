package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// A page that a shrink has truncated stays in the kernel's page cache until the kernel is told, and a program may have stored to it before the shrink. The kernel
// says of such a store when it likes. By then the area may have grown again, and other nodes have stored there: the old store would be put into the new bytes. So
// the part of the page past the smallest end is void: stores to mappings of it, which come as a WRITE, are not taken. That ends when the kernel does not have the
// page of before the shrink any more: it has dropped it for an invalidation that was handed out after the shrink, or has sent a READ of it.
//
// A store that a program makes meanwhile, after the area has grown, is void as well: it is in the same page, and nothing tells when it was made. The program made
// it to memory that did not show the new bytes yet. It cannot have heard of them by this node: an open, msync, fsync, and stat(2) wait until the kernel is told.
// Nor by who has made the file shorter, for that call waits as well (AwaitTruncated of coherence), if the kernel takes no longer than a short limit.
//
// It may have heard of them by its own call: a write(2), or a truncate(2) to a larger size. The first waits, for a short time. The second cannot, for the kernel
// withholds WRITEs until it is answered, and the invalidation waits for these. When such a call is answered, the page is mixed: a WRITE that changes the part that
// is void is an error, which msync and fsync return. A write(2) of all that is void in a page ends the state: what the program stores later is a change from that.
//
// A truncate(2) of this node to a smaller size has the kernel drop what is past it before it writes anything back. So that is not void, nor is it as long as the
// answer has not come, for until then no WRITE comes.

// voidSpan is a range of bytes of a page.
type voidSpan struct{ from, to int }

var wholePage = voidSpan{0, dsm.PageSize}

// voided makes the part of page i from byte from on void. A shrink has truncated it.
func (c *Cached) voided(x *cachedExtent, i, from int) {
	if !c.writers {
		return // nobody has stored to it, and nobody will before the kernel is told: see Writable
	}
	p := x.page(i)
	if had, ok := c.voidOf(x, i); ok && had.from < from {
		from = had.from
	} else {
		x.mixed.Remove(i) // what was stored since the call is void, too
	}
	c.add(&x.void, i, &c.voids)
	c.setVoid(p, voidSpan{from, dsm.PageSize})
	if x.flying.Has(i) {
		x.early.Add(i)
	}
}

// voidOf returns which part of page i is void; ok is false if none is.
func (c *Cached) voidOf(x *cachedExtent, i int) (s voidSpan, ok bool) {
	if !x.void.Has(i) {
		return voidSpan{}, false
	}
	if s, ok = c.voidPart[x.page(i)]; ok {
		return s, true
	}
	return wholePage, true
}

func (c *Cached) setVoid(p dsm.PageIndex, s voidSpan) {
	switch {
	case s == wholePage:
		delete(c.voidPart, p)
	case c.voidPart == nil:
		c.voidPart = map[dsm.PageIndex]voidSpan{p: s}
	default:
		c.voidPart[p] = s
	}
}

// valid ends that part of page i is void.
func (c *Cached) valid(x *cachedExtent, i int) {
	if x.void.Has(i) {
		c.remove(&x.void, i, &c.voids)
		x.mixed.Remove(i)
		delete(c.voidPart, x.page(i))
	}
}

// Void returns which bytes [from, to) of page p are void.
func (c *Cached) Void(p dsm.PageIndex) (from, to int) {
	e, i := p.Extent()
	if x := c.extents[e]; x != nil {
		s, _ := c.voidOf(x, i)
		return s.from, s.to
	}
	return 0, 0
}

// Truncated reports whether the kernel has dropped all that shrinks have truncated, and to which programs may store.
func (c *Cached) Truncated() bool { return c.voids == 0 || !c.writers }

// Answered says that a call of a program about [off, off+n) is answered, as a truncate(2) to a larger size is about all that is before that. What the program stores
// from now on counts, and cannot be told from what it had stored before a shrink: the pages of which some part is void are mixed.
func (c *Cached) Answered(off, n int64) {
	if c.voids == 0 {
		return
	}
	for _, x := range c.extents {
		for i := range x.void.All() {
			s, _ := c.voidOf(x, i)
			if at := int64(x.page(i)) * dsm.PageSize; at+int64(s.from) < off+n && off < at+int64(s.to) {
				x.mixed.Add(i)
			}
		}
	}
}

// kernelTruncates says that the kernel drops what it has of page i from byte from on, before it writes anything back.
func (c *Cached) kernelTruncates(x *cachedExtent, i, from int) {
	switch s, ok := c.voidOf(x, i); {
	case !ok:
	case from <= s.from:
		c.valid(x, i)
	default:
		c.setVoid(x.page(i), voidSpan{s.from, min(s.to, from)})
	}
}

// overwritten records that a write(2) has put bytes into [lo, hi) of page i in the page cache.
func (c *Cached) overwritten(x *cachedExtent, i, lo, hi int) {
	if s, ok := c.voidOf(x, i); ok && lo <= s.from && s.to <= hi {
		c.valid(x, i)
	}
}

// voidOut takes the stores to the part of page i that is void out of a WRITE of a mapping: base, what the page cache was given, and merged, what it has, become
// there what came since the shrink. It reports false if the WRITE is to be refused.
func (c *Cached) voidOut(x *cachedExtent, i int, base, merged, since []byte) bool {
	s, ok := c.voidOf(x, i)
	if !ok {
		return true
	}
	changed := string(base[s.from:s.to]) != string(merged[s.from:s.to])
	copy(base[s.from:s.to], since[s.from:s.to])
	copy(merged[s.from:s.to], since[s.from:s.to])
	return !changed || !x.mixed.Has(i)
}
