package pages

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// NoticeKind is what a notice asks of the kernel.
type NoticeKind uint8

const (
	// NoticeInvalidate: deliver the dirty pages of the range as WRITEs and drop it
	// (FUSE_NOTIFY_INVAL_INODE, go-fuse's NotifyContent).
	NoticeInvalidate NoticeKind = iota + 1
	// NoticeStore: put Data into the page cache (FUSE_NOTIFY_STORE, go-fuse's
	// WriteCache).
	NoticeStore
)

// Notice is something to tell the kernel about a range of one extent: whole pages, or up to the end of
// the area. Call Done when the kernel has been told. If the kernel refuses a store, send it an
// invalidation of the same range instead. If it does not know the file any more, there is nothing to
// tell, and Done follows all the same.
type Notice struct {
	Kind NoticeKind
	Off  int64
	Len  int64
	Data []byte // of a store: Len bytes, valid and unchanged until Done

	id uint64
}

// flight is a notice that was handed out.
type flight struct {
	id       uint64
	x        *cachedExtent
	from, to int // pages of the extent
	data     []byte
	valid    int // how many bytes of data lie before the smallest end that the area has had since
}

// page returns the bytes that a store gives to page p, without those that were truncated since: fewer
// than a page at the end of the area.
func (f *flight) page(p dsm.PageIndex) []byte {
	_, i := p.Extent()
	at := (i - f.from) * dsm.PageSize
	return f.data[min(at, f.valid):min(at+dsm.PageSize, f.valid)]
}

// NextNotice returns what the kernel must be told next. ok is false if there is nothing now. Several
// notices may be in flight, and be carried out in any order. A notice may block until a READ or WRITE
// is answered (K7). So send it with no lock held, and not from a goroutine that answers those.
func (c *Cached) NextNotice() (n Notice, ok bool) {
	for len(c.queue) > 0 {
		x := c.queue[0]
		c.queue = c.queue[1:]
		x.queued = false
		from, to := c.nextRun(x)
		if from == to {
			c.enqueue(x) // what is left is paused
			c.retire(x)
			continue
		}
		n = c.launch(x, from, to)
		c.enqueue(x) // behind the other extents
		return n, true
	}
	return Notice{}, false
}

// nextRun cancels the notices of pages that the page cache has up to date. Then it returns the first
// run of pages of x that get one notice.
func (c *Cached) nextRun(x *cachedExtent) (from, to int) {
	for i := range x.pending.Minus(x.flying).All() {
		p := x.page(i)
		if g, ok := c.given[p]; ok && !x.away(i) && !c.forced(x, i) && c.current(p, g) {
			if c.shared {
				c.settle(x, i)
			} else {
				c.clean(x, i)
			}
		}
	}
	ready := c.ready(x)
	for i := range ready.All() {
		for to = i + 1; to < dsm.ExtentPages && ready.Has(to) && c.kind(x, to) == c.kind(x, i); to++ {
		}
		return i, to
	}
	return 0, 0
}

// kind returns which kind of notice page i gets.
func (c *Cached) kind(x *cachedExtent, i int) NoticeKind {
	if c.writers || c.shared || x.doubtful.Has(i) || x.unsure.Has(i) || x.late.Has(i) || x.away(i) || c.punchForces(x, i) {
		return NoticeInvalidate
	}
	if _, kept := c.given[x.page(i)]; kept && c.within(x.page(i)) < dsm.PageSize {
		return NoticeInvalidate // a store ends at the end of the area, and would leave old bytes of the page after that
	}
	return NoticeStore
}

// launch puts a notice of the pages [from, to) in flight.
func (c *Cached) launch(x *cachedExtent, from, to int) Notice {
	c.area.drops.last++
	f := &flight{id: c.area.drops.last, x: x, from: from, to: to}
	off := int64(x.page(from)) * dsm.PageSize
	n := Notice{Kind: c.kind(x, from), Off: off, Len: int64(to-from) * dsm.PageSize, id: f.id}
	if n.Kind == NoticeStore {
		// Never past the end: the kernel would make the file longer.
		n.Len = min(n.Len, c.area.size-off)
		f.data = append(c.spare[:0], c.area.working.mem[off:off+n.Len]...)
		c.spare = nil
		f.valid = len(f.data)
		n.Data = f.data
	}
	for i := from; i < to; i++ {
		if x.pending.Has(i) {
			c.remove(&x.pending, i, &c.open)
			c.add(&x.flying, i, &c.open)
		} else {
			x.flying.Add(i)
			x.quiet.Add(i)
		}
		c.weigh(x, i)
		if n.Kind == NoticeStore {
			c.forget(x, i)
			c.remove(&x.blind, i, &c.unready)
			c.add(&x.storing, i, &c.unready)
		}
	}
	c.flights = append(c.flights, f)
	return n
}

// Done records that the kernel was told n. It returns the pages of extent e for which Drop was called
// and that the page cache does not have now.
func (c *Cached) Done(n Notice) (e dsm.ExtentIndex, out dsm.PageSet) {
	at := slices.IndexFunc(c.flights, func(f *flight) bool { return f.id == n.id })
	if at < 0 {
		c.area.drops.Done(n) // of a ledger before this one
		return 0, out
	}
	f := c.flights[at]
	c.flights = slices.Delete(c.flights, at, at+1)
	for i := f.from; i < f.to; i++ {
		if f.x.quiet.Has(i) {
			f.x.quiet.Remove(i)
			f.x.flying.Remove(i)
		} else {
			c.remove(&f.x.flying, i, &c.open)
		}
		c.weigh(f.x, i)
		if n.Kind == NoticeStore {
			c.stored(f, i)
		} else {
			c.wentAway(f.x, i)
			c.droppedPunched(f.x.page(i), f.id)
			if c.dropped(f.x, i) {
				out.Add(i)
			}
		}
		if !f.x.pending.Has(i) {
			f.x.urgent.Remove(i)
		}
		f.x.regiven.Remove(i)
		f.x.reread.Remove(i)
		f.x.early.Remove(i)
	}
	if f.data != nil && c.spare == nil {
		c.spare = f.data
	}
	c.enqueue(f.x)
	c.retire(f.x)
	c.certainAgain()
	return f.x.extent, out
}

// stored ends a store of page i: the page cache has the bytes of the flight.
func (c *Cached) stored(f *flight, i int) {
	x, p := f.x, f.x.page(i)
	c.remove(&x.storing, i, &c.unready)
	if x.doubtful.Has(i) || !x.pending.Has(i) && !c.shared {
		return // the page wants an invalidation, or is clean
	}
	s := f.page(p)
	if c.shared {
		g := c.keep(x, i)
		clear(g.mem[copy(g.mem, s):])
		return
	}
	if w := c.area.Working(p); string(w[:len(s)]) == string(s) && allZero(w[len(s):]) {
		c.clean(x, i)
		return
	}
	if !c.writers {
		c.add(&x.blind, i, &c.unready)
		return
	}
	g := c.keep(x, i)
	clear(g.mem[copy(g.mem, s):])
	c.keepsGiven(x, i)
}

// dropped ends an invalidation of page i. It reports whether the page was leaving and is out now.
func (c *Cached) dropped(x *cachedExtent, i int) (out bool) {
	c.droppedLate(x, i)
	_, kept := c.given[x.page(i)]
	switch {
	case kept && x.expected.Has(i):
	case !x.regiven.Has(i):
		out = x.leaving.Has(i)
		x.leaving.Remove(i)
		c.clean(x, i)
		x.given.Remove(i)
		c.notBack(x, i)
	case x.unsure.Has(i) && !x.reread.Has(i):
		c.sure(x, i) // only WRITEs came: see below
		c.notBack(x, i)
		if !x.early.Has(i) {
			c.trust(x, i)
		}
		c.want(x, i)
	case x.unsure.Has(i):
		c.want(x, i) // after the drop a READ may have come, then a write(2): it is still unsure
	case x.doubtful.Has(i) && kept && !x.early.Has(i):
		// Only WRITEs came: a READ would have ended the doubt. If the drop came after them, the page cache
		// has nothing. If not, it has what they brought, and that is g.
		c.trust(x, i)
		c.want(x, i)
	case x.doubtful.Has(i):
		c.want(x, i)
	}
	return out
}

// allZero reports whether b, at most a page, is zero.
func allZero(b []byte) bool {
	var zero [dsm.PageSize]byte
	return string(b) == string(zero[:len(b)])
}

// page returns the index in the area of page i of the extent.
func (x *cachedExtent) page(i int) dsm.PageIndex {
	return dsm.PageIndex(x.extent)*dsm.ExtentPages + dsm.PageIndex(i)
}

// page returns the ledger of p's extent, which it makes if there is none, and p's index in the extent.
func (c *Cached) page(p dsm.PageIndex) (*cachedExtent, int) {
	e, i := p.Extent()
	x := c.extent(e)
	if x == nil {
		x = &cachedExtent{extent: e}
		c.extents[e] = x
	}
	return x, i
}

// extent returns the ledger of an extent, nil if there is none. What the page cache may have since an earlier daemon is given.
func (c *Cached) extent(e dsm.ExtentIndex) *cachedExtent {
	x := c.extents[e]
	if x != nil || c.resumed == 0 {
		return x
	}
	if given := c.givenBefore(e); !given.Empty() {
		x = &cachedExtent{extent: e, given: given}
		c.extents[e] = x
	}
	return x
}

// givenBefore returns which pages of an extent the page cache may have since an earlier daemon.
func (c *Cached) givenBefore(e dsm.ExtentIndex) dsm.PageSet {
	upTo := func(end int64) dsm.PageSet {
		n := wholePages(end)/dsm.PageSize - int64(e)*dsm.ExtentPages
		return dsm.Range(0, int(min(max(n, 0), dsm.ExtentPages)))
	}
	switch {
	case c.resumed == 0:
		return dsm.PageSet{}
	case c.before != nil: // the area may be on demand no more
		return upTo(c.before.to).Minus(upTo(c.before.from)).Or(c.before.pages[e])
	}
	return upTo(c.resumed)
}

// findSparse makes the ledgers of all extents of an area on demand of which the page cache may have something since an earlier daemon. What is not here leaves.
func (c *Cached) findSparse() {
	had := c.before
	list := slices.Collect(maps.Keys(had.pages))
	for e := dsm.ExtentOf(had.from); int(e) < dsm.Extents(had.to); e++ {
		if _, ok := had.pages[e]; !ok {
			list = append(list, e)
		}
	}
	slices.Sort(list) // runs repeat from their seed
	for _, e := range list {
		x := c.extent(e)
		if x == nil {
			continue
		}
		away := x.given.Minus(c.area.Here(e))
		for i := range away.All() {
			x.leaving.Add(i)
			c.want(x, i)
		}
	}
}

// findResumed makes the ledgers of all extents, from the byte on, of which the page cache may have something since an earlier daemon.
func (c *Cached) findResumed(from int64) {
	for e := dsm.ExtentOf(from); c.resumed > 0 && int(e) < dsm.Extents(c.resumed); e++ {
		c.extent(e)
	}
}

// flightOf returns the flight of page p, which must be in flight.
func (c *Cached) flightOf(p dsm.PageIndex) *flight {
	e, i := p.Extent()
	for _, f := range c.flights {
		if f.x.extent == e && f.from <= i && i < f.to {
			return f
		}
	}
	panic("page in flight without a notice")
}

// clean records that the page cache has page i as the working copy has it, or does not have it.
func (c *Cached) clean(x *cachedExtent, i int) {
	c.forget(x, i)
	c.known(x, i)
}

// known records that the ledger knows what the page cache has of page i, and that the page needs no
// notice.
func (c *Cached) known(x *cachedExtent, i int) {
	c.remove(&x.blind, i, &c.unready)
	if x.doubtful.Has(i) {
		c.trust(x, i)
		c.certainAgain()
	}
	c.remove(&x.bare, i, &c.unready)
	c.sure(x, i)
	c.settle(x, i)
}

// settle records that page i needs no notice, unless it is forced.
func (c *Cached) settle(x *cachedExtent, i int) {
	if !c.forced(x, i) {
		c.remove(&x.pending, i, &c.open)
		x.urgent.Remove(i)
		c.weigh(x, i)
	}
}

// doubt puts page i into state doubtful, and makes the invalidation pending that ends it.
func (c *Cached) doubt(x *cachedExtent, i int) {
	c.notCertain(int64(x.page(i)) * dsm.PageSize)
	c.add(&x.doubtful, i, &c.unready)
	c.want(x, i)
}

// keep returns the frame of page i's g. If there was none, its bytes are undefined.
func (c *Cached) keep(x *cachedExtent, i int) frame {
	p := x.page(i)
	g, ok := c.given[p]
	if !ok {
		g = c.area.frames.take()
		c.given[p] = g
		c.weigh(x, i)
	}
	return g
}

// forget drops page i's g, if it is kept.
func (c *Cached) forget(x *cachedExtent, i int) {
	p := x.page(i)
	if g, ok := c.given[p]; ok {
		delete(c.given, p)
		c.area.frames.put(g)
		c.weigh(x, i)
	}
}

// weigh updates backlog. It is called after page i's membership in given, pending or flying has changed.
func (c *Cached) weigh(x *cachedExtent, i int) {
	if _, ok := c.given[x.page(i)]; ok && (x.pending.Has(i) || x.flying.Has(i)) {
		c.add(&x.backlog, i, &c.backlog)
	} else {
		c.remove(&x.backlog, i, &c.backlog)
		if c.paused {
			c.enqueue(x) // the page may have been paused
		}
	}
}

// want makes a notice of page i pending.
func (c *Cached) want(x *cachedExtent, i int) {
	c.add(&x.pending, i, &c.open)
	c.weigh(x, i)
	c.enqueue(x)
}

// enqueue puts x into queue if NextNotice may have a notice for it, and into waiting if it has pages on
// hold.
func (c *Cached) enqueue(x *cachedExtent) {
	if ready := c.ready(x); !x.queued && !ready.Empty() {
		x.queued = true
		c.queue = append(c.queue, x)
	}
	if set := c.pausedPages(x); !x.waits && !set.Empty() {
		x.waits = true
		c.waiting = append(c.waiting, x)
	}
}

// add puts page i into a set whose members n counts.
func (c *Cached) add(s *dsm.PageSet, i int, n *int) {
	if !s.Has(i) {
		s.Add(i)
		*n++
	}
}

// remove takes page i out of a set whose members n counts.
func (c *Cached) remove(s *dsm.PageSet, i int, n *int) {
	if s.Has(i) {
		s.Remove(i)
		*n--
	}
}
