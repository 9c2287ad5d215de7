package coherence

import (
	"context"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// change is a write(2) through the page cache, or a hole that is punched. Of one file the kernel does one at a time.
type change struct {
	off  int64 // of the byte that is stored, or that the hole has among those which programs store to
	data byte
	page *cachedPage // of a write(2): nil if the page is not in the page cache; then it is locked until the answer
	send func()      // of a write(2) that is in the page cache and not sent yet

	from, to int64  // the hole
	over     func() // says that the thread which has punched goes on
	answered bool   // then the kernel drops the hole from its page cache
	dropped  bool   // it has, but of pages that wait for a READ
}

// writeThrough is a write(2) of one byte through the page cache. The bytes are in the page before the WRITE is sent. In between, the page
// may be dropped, and read again.
func (k *fakeKernel) writeThrough(off int64, b byte) {
	p := dsm.PageIndex(off / dsm.PageSize)
	w := &change{off: off, data: b, page: k.cache[p]}
	if w.page != nil {
		w.page.data[off%dsm.PageSize] = b
	}
	k.change = w
	w.send = func() {
		w.send = nil
		wrote := k.n.writes(off, b)
		k.n.ask("write", func(ctx context.Context) error { return k.n.area.WriteAt(ctx, []byte{b}, off) }, func(err error) {
			k.change = nil
			if c := k.cache[p]; c != nil && c == w.page { // also if it was refused
				c.given[off%dsm.PageSize] = b
				c.mixed = c.cut
			}
			if err == nil {
				wrote()
			}
		}).firm = true
	}
	if k.n.sim.rng.IntN(2) == 0 {
		w.send()
	}
}

// punch punches a hole. done is called with what Punch returned.
func (k *fakeKernel) punch(from, to, off int64, done func(err error)) {
	for p := dsm.PageIndex(from / dsm.PageSize); int64(p)*dsm.PageSize < to; p++ {
		if c := k.cache[p]; c != nil && c.dirty {
			k.writeBack(p, c)
		}
	}
	h := &change{off: off, from: from, to: to}
	k.change = h
	k.n.ask("punch", func(ctx context.Context) (err error) {
		h.over, err = k.n.area.Punch(ctx, from, to-from)
		return err
	}, func(err error) {
		if done(err); err != nil {
			k.change = nil
			return
		}
		h.answered = true
	}).firm = true
}

// goOn takes what is under way a step further, and reports whether there was one to take.
func (k *fakeKernel) goOn() bool {
	switch h := k.change; {
	case h == nil:
	case h.send != nil:
		h.send()
		return true
	case h.answered:
		k.dropHole(h)
		return k.change == nil
	}
	return false
}

// dropHole drops a hole from the page cache. Pages that wait for a READ are dropped when it has ended, and the punch ends after that.
func (k *fakeKernel) dropHole(h *change) {
	over := true
	for p := dsm.PageIndex(h.from / dsm.PageSize); int64(p)*dsm.PageSize < h.to; p++ {
		at := int64(p) * dsm.PageSize
		from, to := max(h.from-at, 0), min(h.to-at, dsm.PageSize)
		r, c := k.reading[p], k.cache[p]
		over = over && r == nil
		switch {
		case h.dropped:
		case r != nil && to-from == dsm.PageSize:
			r.valid = 0
		case r != nil:
			r.hole = [2]int64{from, to}
		case c != nil && to-from == dsm.PageSize:
			delete(k.cache, p)
		case c != nil:
			clear(c.data[from:to])
			clear(c.given[from:to])
		}
	}
	if h.dropped = true; over {
		k.change, k.goesOn = nil, h.over
	}
}

// locked reports whether a write(2) has page p locked, which is not in the page cache, until it is answered.
func (k *fakeKernel) locked(p dsm.PageIndex) bool {
	w := k.change
	return w != nil && w.to == 0 && w.page == nil && dsm.PageIndex(w.off/dsm.PageSize) == p
}

// changing reports whether a byte is being written, or punched.
func (k *fakeKernel) changing(off int64) bool { return k.change != nil && k.change.off == off }

// readings returns the pages that wait for READs, in order.
func (k *fakeKernel) readings() []dsm.PageIndex { return slices.Sorted(maps.Keys(k.reading)) }

// punchable says which bytes holes are punched to: those are zero after it, and so do not say how old they are.
func punchable(off int64) bool { return off%dsm.PageSize < simNodes }

// changeByte has the program that stores to the page cache change one byte by write(2), or punch a hole, unless the byte is not its own.
func (r *simRun) changeByte(n *simNode, p dsm.PageIndex) {
	k, off := n.kernel, int64(p)*dsm.PageSize+int64(r.rng.IntN(hotBytes))
	if k.goesOn != nil && r.rng.IntN(2) == 0 {
		k.goesOn() // also while the next hole is being punched
	}
	punch := r.rng.IntN(3) == 0
	if punch {
		off = int64(p)*dsm.PageSize + int64(n.i)
	}
	if r.owner(off) != n.i || r.toAttached(off) || off >= k.size || k.reading[p] != nil || k.past[p] || k.changing(off) {
		return
	}
	if punch && n.isRefused() {
		return // of a hole where there are zeroes nothing would be kept
	}
	if punch && k.change == nil {
		r.storesTo(n, off)
		from := off
		if off == int64(p)*dsm.PageSize && p > 0 && r.rng.IntN(2) == 0 { // into the end of the page before, or of the one before that
			from -= 1 + int64(r.rng.IntN(2*dsm.PageSize-hotBytes))
			if in := from % dsm.PageSize; in < hotBytes {
				from += hotBytes - in
			}
			if p := dsm.PageIndex(from / dsm.PageSize); slices.Contains(r.hotPages(), p+1) && p+1 < dsm.PageIndex(off/dsm.PageSize) || k.past[p] || k.past[p+1] {
				from = off
			}
		}
		shrinks := r.seen.shrinks
		k.punch(from, off+1, off, func(err error) {
			if err != nil || shrinks != r.seen.shrinks || r.whole && (n.isOusted() || n.isRefused()) {
				r.maybe[off] = true
				return
			}
			delete(r.bytes, off)
			delete(r.maybe, off)
		})
		return
	}
	if k.change != nil {
		return // also a write(2) past the page cache takes the lock of the inode
	}
	through := r.rng.IntN(2) == 0
	r.bytes[off] = r.seen.store(off)
	r.storesTo(n, off)
	delete(r.maybe, off)
	if through {
		k.writeThrough(off, r.bytes[off])
	} else {
		k.writePast(off, r.bytes[off])
	}
}
