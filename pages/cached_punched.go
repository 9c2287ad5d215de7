package pages

import (
	"maps"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// When a program punches a hole (fallocate), the kernel first writes back dirty pages and then sends
// the request. When it has the answer it drops the hole from its page cache: it drops whole pages,
// and in the pages where the hole begins and ends it clears the hole's part in place.
//
// To the ledger the zeroes are a write past the page cache (WroteDirect). Until the pages are dropped,
// what the page cache was given is the baseline of each WRITE. The request is answered when they are
// dropped. READs after that bring the zeroes, and what was stored since, also by other nodes. But in
// the pages where the hole begins and ends, the kernel may clear the hole's part only after such a
// READ. So until such a page has been dropped once more after the answer, the replies to READs have
// zeroes in the hole: then the clearing changes nothing. For sizes, cached_told.go does the same.
//
// The kernel does one punch, truncation, write(2) or fsync of a file at a time, so the next one shows
// that the punch is over. So does any request of the thread that has punched. An open by another thread
// shows nothing, yet its program must see what was published before. So some time after the punch
// TellPunched has such pages dropped.
//
// If the daemon is killed after the answer, a READ of such a page comes to the next one. So that one is
// told of the hole before the answer: each of the pages has a frame. If the daemon is killed before that,
// the request comes again.
//
// What is not covered: before the invalidation, the kernel may clear what a program stores to the hole
// through a mapping.

// punched is the last hole, as long as the kernel may not have dropped it.
type punched struct {
	// pending are the pages that it begins and ends in, until they have been dropped after the answer.
	pending  map[dsm.PageIndex]hole
	answered bool
	at       time.Time // of the answer
	told     bool      // TellPunched was called
	last     uint64    // the last notice before the answer
}

// hole is what a hole has of a page.
type hole struct {
	from, to int
	kept     frame // says so to the next daemon, if there is one: it has nothing but its tag
}

// KernelPunches records that a program punches a hole of n bytes at off. Call it before the zeroes
// are stored here, and call answered right before the request is answered. Call over when the thread that
// has punched goes on: the kernel has dropped this hole then, and perhaps not one that was punched since.
func (c *Cached) KernelPunches(off, n int64) (answered func(now time.Time), over func()) {
	h := &punched{pending: make(map[dsm.PageIndex]hole, 2)}
	for _, at := range [...]int64{off, off + n} {
		if at%dsm.PageSize != 0 {
			p := dsm.PageIndex(at / dsm.PageSize)
			start := int64(p) * dsm.PageSize
			h.pending[p] = hole{from: int(max(off-start, 0)), to: int(min(off+n-start, dsm.PageSize))}
		}
	}
	c.forgetPunched()
	c.punched = h
	answered = func(now time.Time) {
		h.answered, h.at, h.last = true, now, c.area.drops.last
		if c.punched == h {
			c.keepPunched()
		}
	}
	over = func() {
		if c.punched == h {
			c.punchOver()
		}
	}
	return answered, over
}

// KernelLocks must be called when a request comes for which the kernel has locked the file, before
// anything waits: the WRITE of a write(2), an FSYNC, a FALLOCATE. If a punch was answered, it is over.
func (c *Cached) KernelLocks() { c.punchOver() }

// TellPunched makes an invalidation pending for the pages in which the last hole begins and ends, if
// they have not been dropped since the answer. It does so only if that was before the given time: since
// then the program must have gone on. A page that was not given gets one too: a READ of it may wait for its answer, and
// the program for that READ. The invalidation waits for the page's lock behind the program, as that of a late page.
func (c *Cached) TellPunched(before time.Time) {
	if c.punched == nil || !c.punched.answered || !c.punched.at.Before(before) {
		return
	}
	c.punched.told = true
	for _, p := range slices.Sorted(maps.Keys(c.punched.pending)) { // in order: runs repeat from their seed
		c.want(c.page(p))
	}
}

// punchForces reports whether page i must be invalidated because of the last hole: after TellPunched, and before the answer if the page cache has
// something in the hole. The kernel clears that, also if the working copy has it again by then.
func (c *Cached) punchForces(x *cachedExtent, i int) bool {
	if c.punched == nil {
		return false
	}
	p := x.page(i)
	if _, ok := c.punched.pending[p]; !ok || c.punched.told {
		return ok
	}
	g, kept := c.given[p]
	return kept && !c.punched.answered && !allZero(c.inHole(p, g.mem, 0))
}

// punchOver records that the kernel has dropped the last hole, if its request was answered.
func (c *Cached) punchOver() {
	h := c.punched
	if h == nil || !h.answered {
		return
	}
	c.forgetPunched()
	for p := range h.pending {
		x, i := c.page(p)
		if _, kept := c.given[p]; h.told && !kept && !x.blind.Has(i) && !x.bare.Has(i) {
			c.settle(x, i) // a notice only because of TellPunched
		}
		c.retire(x)
	}
}

// inHole returns the part of b that the kernel may still clear. b are the bytes of page p from lo on.
func (c *Cached) inHole(p dsm.PageIndex, b []byte, lo int) []byte {
	if c.punched == nil {
		return nil
	}
	x, ok := c.punched.pending[p]
	if !ok {
		return nil
	}
	from := min(max(x.from-lo, 0), len(b))
	return b[from:max(min(x.to-lo, len(b)), from)]
}

// hidePunched clears the part of a reply that is inHole, and reports whether that changed the reply.
func (c *Cached) hidePunched(p dsm.PageIndex, reply []byte, lo int) bool {
	b := c.inHole(p, reply, lo)
	hides := !allZero(b)
	clear(b)
	return hides
}

// deliveredPunched records a WRITE of stores to a mapping. If it comes after the answer, and brings bytes
// other than zero into the hole, these count as stored after the punch.
func (c *Cached) deliveredPunched(off int64, data []byte) {
	h := c.punched
	if h == nil || !h.answered {
		return
	}
	for p := range h.pending {
		at := int64(p)*dsm.PageSize - off // of the page, in data
		from, to := max(at, 0), min(at+dsm.PageSize, int64(len(data)))
		if from < to && !allZero(c.inHole(p, data[from:to], int(from-at))) {
			c.outOfHole(p)
		}
	}
}

// droppedPunched records that an invalidation of page p is done.
func (c *Cached) droppedPunched(p dsm.PageIndex, notice uint64) {
	if h := c.punched; h != nil && h.answered && (notice > h.last || h.told) {
		c.outOfHole(p)
	}
}

// outOfHole records that the kernel clears nothing of page p any more.
func (c *Cached) outOfHole(p dsm.PageIndex) {
	if x, ok := c.punched.pending[p]; ok && x.kept.slab != nil {
		c.area.frames.put(x.kept)
	}
	delete(c.punched.pending, p)
}

// forgetPunched forgets the last hole.
func (c *Cached) forgetPunched() {
	if c.punched == nil {
		return
	}
	for _, x := range c.punched.pending {
		if x.kept.slab != nil {
			c.area.frames.put(x.kept)
		}
	}
	c.punched = nil
}

// keepPunched tells the next daemon of the last hole.
func (c *Cached) keepPunched() {
	if !c.area.Outlives() {
		return
	}
	for p, x := range c.punched.pending {
		x.kept = c.area.frames.take()
		c.area.frames.tag(x.kept, framePunched, uint64(p), uint64(x.from)<<32|uint64(x.to))
		c.punched.pending[p] = x
	}
}

// resumePunched takes over the hole that a program had punched when the daemon before was killed, or pages of it. That was longer ago than the program takes
// to go on.
func (c *Cached) resumePunched(left []tagged) {
	h := &punched{pending: make(map[dsm.PageIndex]hole, len(left)), answered: true, last: c.area.drops.last}
	for _, x := range left {
		if p := dsm.PageIndex(x.arg); int64(p)*dsm.PageSize < c.area.size {
			h.pending[p] = hole{int(x.more >> 32), int(uint32(x.more)), x.frame}
		} else {
			c.area.frames.put(x.frame)
		}
	}
	if len(h.pending) > 0 {
		c.punched = h
	}
}
