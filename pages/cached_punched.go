package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// The kernel cuts a hole that a program punches (fallocate) out of its page cache when the request is answered: whole pages are dropped,
// and the part of a page in which the hole begins or ends is cleared in place. Before the request it has written back what was dirty.
//
// To the ledger the zeroes are a write past the page cache: the bytes that it was given are the baseline of what comes until they are
// dropped, and the request is answered when that is done. What is read from then on has the zeroes, and what was stored since, also by
// other nodes. Of that the kernel may clear what lies in the hole. So the replies to READs have zeroes there until the page has been
// dropped after the answer, by the argument for sizes that the kernel is told of (cached_told.go): the clearing changes nothing.
//
// The kernel does one punch, truncation or write(2) of a file at a time, so the next one says that it is over. Nothing helps a store
// to a mapping that is made in the hole before that.

// punched is the last hole, as long as the kernel may not have cut it out.
type punched struct {
	from, to int64
	// pending are the pages that it begins and ends in, unless they have been dropped since.
	pending  map[dsm.PageIndex]struct{}
	answered bool
	last     uint64 // the last notice before the answer
}

// KernelPunches says that a program punches a hole of n bytes at off, before anything of it is stored here. The caller calls ended right
// before the answer.
func (c *Cached) KernelPunches(off, n int64) (ended func()) {
	h := &punched{from: off, to: off + n, pending: make(map[dsm.PageIndex]struct{}, 2)}
	for _, at := range [...]int64{off, off + n} {
		if at%dsm.PageSize != 0 {
			h.pending[dsm.PageIndex(at/dsm.PageSize)] = struct{}{}
		}
	}
	c.punched = h
	return func() { h.answered, h.last = true, c.area.notices }
}

// punchOver takes note that the kernel has cut out every hole that it was to.
func (c *Cached) punchOver() {
	if c.punched != nil && c.punched.answered {
		c.punched = nil
	}
}

// inHole returns the part of b, which lies in page p from byte lo on, that the kernel may yet clear.
func (c *Cached) inHole(p dsm.PageIndex, b []byte, lo int) []byte {
	if c.punched == nil {
		return nil
	}
	if _, ok := c.punched.pending[p]; !ok {
		return nil
	}
	at, n := int64(p)*dsm.PageSize+int64(lo), int64(len(b))
	from := min(max(c.punched.from-at, 0), n)
	return b[from:max(min(c.punched.to-at, n), from)]
}

// hidePunched clears that part of a reply, and reports whether that changes it.
func (c *Cached) hidePunched(p dsm.PageIndex, reply []byte, lo int) bool {
	b := c.inHole(p, reply, lo)
	hides := !allZero(b)
	clear(b)
	return hides
}

// wrotePunched takes note of a WRITE to page p from byte lo on. Of a write(2) it says that no hole is being cut out any more. After
// the answer a mapping brings bytes other than zero if a program has stored to the hole: they count, as after it.
func (c *Cached) wrotePunched(p dsm.PageIndex, data []byte, lo int, back bool) {
	switch {
	case c.punched == nil || !c.punched.answered:
	case !back:
		c.punchOver()
	case !allZero(c.inHole(p, data, lo)):
		delete(c.punched.pending, p)
	}
}

// droppedPunched takes note that an invalidation of page p is done.
func (c *Cached) droppedPunched(p dsm.PageIndex, notice uint64) {
	if h := c.punched; h != nil && h.answered && notice > h.last {
		delete(h.pending, p)
	}
}
