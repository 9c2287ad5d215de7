package pages

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// Cached is the ledger of what the kernel's page cache was last given of an area. It is the third
// baseline, beside the base copy and the home's. A program maps the page cache, not the working
// copy, so a WRITE request carries stores that were made on top of what the page cache held. The
// working copy may have received updates since. Taking the WRITE for stores on top of the working
// copy would publish the undoing of those updates, or count them twice.
//
// # What is known of a page
//
// The page cache may have a page only if it was given to it: in the reply to a READ, by a store
// notice, or by the program's own write, seen as a WRITE. Let W be the bytes of the working copy.
// Let K be the bytes of the page cache, without those stores that have not come as a WRITE yet.
// Then a page is in one of these states:
//
//	not given    the page cache does not have it; no notice is needed
//	clean        given, no entry: K = W
//	entry g      given, K = g, kept here; W may differ
//	storing      a store notice with the bytes s is in flight: K = s soon, and
//	             until then the page cache has older bytes, or none
//	blind        given, K unknown, and no program can have stored to it
//	doubtful     given, and truncated by a shrink that the kernel may not know of, or with
//	             bytes that were not taken; with g if that is known (in the code: doubtful)
//	bare         only while the working copy is shared: given, K = W, g not kept yet
//
// While an invalidation is in flight, "given" means that the page cache may have the page, not that
// it does. In any state a page may also be leaving: Drop was called for it.
//
// # Why no store is lost or doubled
//
// A WRITE of a page in state clean has K = W as its baseline: taking its bytes is exact. In state
// entry its baseline is g. The change from g to the bytes is merged into W by the area's
// merge.Kernel, and the bytes become the new g, since K has them. (All that a write(2) brings
// counts as stored, also where it equals g. Elements with the rule sum are the exception.) In state
// not given the bytes are taken as they are: only write(2) sends such a WRITE. States storing and
// blind exclude writers: see Writable.
//
// A READ makes its page clean, since the kernel only asks for what it does not have. There is one
// exception, a store notice in flight. The kernel may have carried it out before the READ. Or it
// waits for the READ's reply and is carried out after it, and K will be s whatever the reply says.
// So the reply is s in both cases: the page does not go back in time, and K = s is known.
//
// An invalidation first delivers the page's stores as a WRITE, on top of g, and then drops the page
// (K6). If no READ and no WRITE came between NextNotice and Done, the page cache does not have it.
// If one came, it may have come after the drop. Then the page stays given, with what the READ or
// WRITE made known, and is invalidated again if W differs. A READ that came before the drop does no
// harm: the invalidation waits for it (K7), so stores on top of its reply are delivered as well.
//
// At most one notice of a page is in flight, so that it is clear what Done means. A store notice
// would overwrite stores that were not delivered yet (K34). A program can have made one only through
// a handle for writing, and the kernel writes all of them back before it releases that handle. So
// store notices are made only while there is no writer, and a writer is let in only when none is in
// flight.
//
// Without writers an entry does not need its bytes, since no WRITE will be merged against them. Then
// no copy is kept and the state is blind. So a backlog of notices takes no memory on a node whose
// programs only read.
//
// # When the area shrinks
//
// A shrink on another node truncates the working copy at once, and the kernel's page cache when the kernel is told. Until then pages show the old bytes, with
// stores that the kernel withholds, and the area may have grown again. So what is truncated of such a page is void: stores to mappings of it are not taken
// (cached_void.go). What a write(2) brings is, and stores before the end are: BeforeShrink keeps g of the pages that are truncated, and a WRITE brings the change
// from g, as always. Where there is no room for g, a WRITE of a mapping is refused, unless all of the page is void. Each page that was truncated gets an
// invalidation. That ends state doubtful, as a READ does.
//
// The kernel truncates its page cache some time after it was told of a size. So it may still clear what a
// later READ brought: see cached_told.go.
//
// # When programs store into the working copy
//
// Attached programs store into W itself, at any time. The ledger hears of it by Touched, when a scan
// has found the pages. While there may be such programs, since SetShared, W may move away from K
// unseen. So there is no state clean: every page that is given keeps its g, whether or not a notice
// of it is pending.
//
// A READ takes the bytes of a page from memory once. They are the reply and g, so K = g whatever is
// stored meanwhile. A WRITE brings the change from g to its bytes into W by compare-and-swap. It is
// never copied as a whole: bytes that it does not change may have been stored to since the READ. A
// page without g is not given or bare, and its WRITE is put into W as it is. After that g is W with
// these bytes.
//
// A notice is dropped when g is found equal to W. A store made after this comparison is found by a
// later scan, and then Touched compares again. A store made before a READ may be found only after
// it. It is in the reply, and the comparison finds no difference. So the page cache gets every
// store, from a notice or from a READ.
//
// All notices are invalidations, and no page becomes blind, as with writers. Pages that were given
// before SetShared have no g, unless a notice is pending: they are bare. Until the first store of an
// attached program W is their baseline. Each bare page gets an invalidation; a READ, a WRITE and an
// update make g known sooner. When no page is bare, blind, storing or doubtful an attached program may be
// let in: see Writable.
//
// # When pages leave
//
// In an area on demand a page can be evicted. Then only the home has W, and nothing here may look at
// it (see NewDemandArea). That does no harm only in state not given. So Drop returns the pages that
// are not given, and has the kernel drop the others: they are leaving. A leaving page gets an
// invalidation whatever else its state wants, and the invalidation is never left out because g
// equals W. K and its baseline stay what they are until Done: the WRITE that the invalidation
// delivers is merged like any other.
//
// A leaving page is out when an invalidation of it is Done and no READ or WRITE came after its
// NextNotice. By the argument above the page cache does not have it then, and gets it again only by
// a READ that the ledger answers. Done returns the page, so that it can be evicted before anything
// else happens. A READ or WRITE after Drop ends the leaving, because a program uses the page. One
// that came between NextNotice and Drop may have come before or after the kernel dropped the page,
// so the page is invalidated once more. The ledger keeps nothing of a page that is out, nor of an
// extent without pages.
//
// A drop tells the kernel nothing new, so nobody waits for it: Idle does not count it.
//
// Where an area on demand grows, other nodes may have stored to the added pages before anything of
// them comes here. The kernel may have zeroes for them, from a READ past the old end. So K = 0 and W
// is unknown. The state becomes entry with a g of zeroes, or blind, and the page is leaving, with a
// notice that counts. W is looked at when a READ or WRITE comes, since the page is here then. A
// program may have stored to those zeroes: then the WRITE waits for the page, and so does g (Expect).
//
// # What is not covered
//
// If a program mixes write(2) with stores through a mapping to one element at the same time, either
// may win. There is one more case, in which the kernel delays the invalidation of an unsure page
// (cached_unsure.go) for longer than the write(2) waits. If a program then stores to its mapping
// what was there before the write(2), that store does not count.
//
// The K numbers are measured facts of the kernel: docs/kernel.md lists them.
type Cached struct {
	area     *Area
	size     int64 // of the area, at the last Truncate
	shrunkTo int64 // while pages are doubtful: the smallest size since the first of them was
	told     int64 // the last size that the kernel was told
	writers  bool
	shared   bool // attached programs may store into the working copy
	paused   bool // notices of updates are paused: see cached_paused.go
	extents  map[dsm.ExtentIndex]*cachedExtent
	given    map[dsm.PageIndex]frame    // g of the pages in state entry
	others   map[dsm.PageIndex][]frame  // of unsure pages: what the page cache may have in place of g
	since    map[dsm.PageIndex][]byte   // of doubtful pages with g: see sinceShrink
	late     map[dsm.PageIndex]late     // of late pages
	voidPart map[dsm.PageIndex]voidSpan // of void pages: the part that is, if not all of it
	punched  *punched                   // nil: the kernel has no hole left to drop
	queue    []*cachedExtent            // extents with pages that may be pending
	waiting  []*cachedExtent            // extents with paused pages
	flights  []*flight
	spare    []byte // buffer of a store notice that is done

	windows map[dsm.ExtentIndex]*window // what happened since the last write(2): see cached_unsure.go
	resumed int64                       // not 0 if the ledger was taken over from an earlier daemon: all pages before it may be given
	before  *kernelHad                  // likewise, but of an area on demand, and only those that this says; or nil
	again   bool                        // likewise, and no write(2) was taken since
	shaken  bool                        // since the last write(2) the page cache may have dropped pages without a notice

	open    int // pages pending + pages in flight
	unready int // pages blind + storing + doubtful + bare
	backlog int // pages with g that are pending or in flight
	voids   int // pages void
}

// cachedExtent is the ledger of the pages of one extent.
type cachedExtent struct {
	extent   dsm.ExtentIndex
	queued   bool
	waits    bool // in waiting
	given    dsm.PageSet
	pending  dsm.PageSet // wants a notice
	flying   dsm.PageSet // has a notice in flight
	storing  dsm.PageSet // of flying: the notice is a store
	regiven  dsm.PageSet // of flying: a READ or WRITE came meanwhile
	blind    dsm.PageSet
	doubtful dsm.PageSet // in state doubtful
	bare     dsm.PageSet
	backlog  dsm.PageSet // with g, and pending or flying
	leaving  dsm.PageSet // to be invalidated because of Drop
	quiet    dsm.PageSet // of flying: the notice is for Drop only
	expected dsm.PageSet // Expect was called, and Wrote not yet
	late     dsm.PageSet // the kernel may still clear the end of the page: see cached_told.go
	reread   dsm.PageSet // of flying: a READ came meanwhile
	urgent   dsm.PageSet // of pending: a write(2) waits for the notice, so it is never on hold
	unsure   dsm.PageSet // the page cache has one of several values: see cached_unsure.go
	void     dsm.PageSet // of doubtful: stores to mappings are not taken: see cached_void.go
	mixed    dsm.PageSet // of void: they are refused
	early    dsm.PageSet // of flying: the notice was handed out before the shrink that made the page void
}

// NewCached returns a ledger of a with nothing given: the kernel must have nothing of the file. It
// replaces the ledger that a had before. Of notices of the old ledger that are still in flight it
// knows only that they may make the page cache drop pages: see Drops.
func NewCached(a *Area) *Cached {
	c := newCached(a)
	c.certainAgain()
	return c
}

func newCached(a *Area) *Cached {
	if old := a.ledger; old != nil {
		old.Replaced()
		for _, g := range old.given {
			a.frames.put(g)
		}
		for p := range old.others {
			old.dropOthers(p)
		}
		old.forgetPunched()
	}
	a.ledger = &Cached{
		area:    a,
		size:    a.size,
		extents: map[dsm.ExtentIndex]*cachedExtent{},
		given:   map[dsm.PageIndex]frame{},
		late:    map[dsm.PageIndex]late{},
		others:  map[dsm.PageIndex][]frame{},
		windows: map[dsm.ExtentIndex]*window{},
		shaken:  a.drops.Under(),
	}
	return a.ledger
}

// SetWriters says whether a program has the file open for writing, or is about to. Set it before the
// OPEN for writing is answered; the answer then waits for Writable. Unset it after the RELEASE of
// the last handle for writing, which the kernel sends after the last WRITE (K35).
func (c *Cached) SetWriters(on bool) {
	c.writers = on
	if !on {
		c.EndWrite()
		c.punchOver() // its handle is closed
		c.lineUp()    // nothing is paused without writers
	}
}

// Writable reports whether an OPEN for writing may be answered: the baseline of every page is known.
// After SetWriters(true) only Truncate makes a baseline unknown. So Writable becomes true when
// enough notices are Done, even while updates keep coming.
func (c *Cached) Writable() bool { return c.unready == 0 }

// Idle reports whether the page cache has nothing but the working copy's bytes and stores that
// were not delivered yet: no notice is pending or in flight. Notices that only make pages leave do
// not count, nor do those on hold.
func (c *Cached) Idle() bool { return c.open == 0 || c.paused && c.open == c.countPaused() }

// Pending reports whether NextNotice may have a notice.
func (c *Cached) Pending() bool { return len(c.queue) > 0 }

// CopyBytes returns how much memory is taken by copies of pages whose notices are pending or in
// flight. It grows with the backlog of notices while there are writers: whoever merges faster than
// the kernel takes notices has to pause. Copies that are kept because the working copy is shared do
// not count, since a pause would not free them.
func (c *Cached) CopyBytes() int64 {
	n := int64(c.backlog) * dsm.PageSize
	for _, f := range c.flights {
		n += int64(len(f.data))
	}
	return n
}

// Read serves a READ of the page cache. It copies to dst what the page cache is to have from off on.
// It returns the number of bytes, which is less than len(dst) only at the end of the area. The reply
// must be sent, whatever else happens meanwhile. dst must be as long as the READ asks for: the
// kernel fills the rest of a short reply with zeroes, and has these too.
func (c *Cached) Read(off int64, dst []byte) int {
	n := 0
	if c.shared {
		n = int(min(max(c.area.size-off, 0), int64(len(dst))))
	} else {
		n = c.area.ReadWorking(dst, off)
	}
	for at := off; at < off+int64(len(dst)); {
		p := dsm.PageIndex(at / dsm.PageSize)
		start := int64(p) * dsm.PageSize
		end := min(start+dsm.PageSize, off+int64(len(dst)))
		has := max(min(end, off+int64(n)), at) // of the page, the reply has [at, has)
		x, i := c.page(p)
		whole := at == start && (end == start+dsm.PageSize || end >= c.area.size)
		if c.shared {
			c.readShared(x, i, int(at-start), dst[at-off:has-off], whole)
		}
		x.given.Add(i)
		switch {
		case x.storing.Has(i):
			if whole {
				x.leaving.Remove(i)
			}
			s := c.flightOf(p).page(p)
			if skip := at - start; skip < int64(len(s)) {
				copy(dst[at-off:has-off], s[skip:])
			}
			if c.hideLate(x, i, dst[at-off:has-off], int(at-start)) || has > at && has-start > int64(len(s)) {
				c.doubt(x, i) // the area grew: the page cache may have the rest as in this reply, or zero
			}
		case whole:
			// Part of a page may be a read that leaves nothing in the page cache.
			x.leaving.Remove(i)
			reply := dst[at-off : has-off]
			switch hidden := c.hideLate(x, i, reply, 0); {
			case hidden:
				g := c.keep(x, i)
				clear(g.mem[copy(g.mem, reply):])
				c.keepsGiven(x, i)
				c.known(x, i)
				c.want(x, i)
			case c.shared:
				c.known(x, i)
			default:
				c.clean(x, i)
			}
			c.cameBack(x, i)
			if x.flying.Has(i) {
				x.regiven.Add(i)
				x.reread.Add(i)
			}
		}
		if whole && start >= c.area.size {
			c.gavePast(x, i)
		}
		at = end
	}
	return n
}

// Delivered must be called when a WRITE of the page cache comes, before anything waits for its pages.
// Wrote follows, when the pages are here. back is that of Wrote. What the WRITE shows about the kernel
// it shows now: once it is answered, the kernel may truncate the same pages.
func (c *Cached) Delivered(off int64, data []byte, back bool) {
	c.deliveredLate(off, int64(len(data)))
	if back {
		c.deliveredPunched(off, data)
	}
}

// Wrote takes a WRITE of the kernel into the working copy. It may be of any range of bytes up to the
// end of the area. Wrote returns the pages [from, to) that the range lies in. They must be here:
// fetched, or written as a whole. back says that the WRITE carries stores to mappings, not a
// write(2). If there is no baseline of such stores (see Refuses), the page is left as it is, and ok is
// false.
func (c *Cached) Wrote(k merge.Kernel, off int64, data []byte, back bool) (from, to dsm.PageIndex, ok bool) {
	ok = true
	from, to = pagesOf(off, int64(len(data)))
	for p := from; p < to; p++ {
		lo := max(off-int64(p)*dsm.PageSize, 0)
		n := min(dsm.PageSize-lo, int64(len(data)))
		ok = c.wrotePage(k, p, int(lo), data[:n], back, false) && ok
		data = data[n:]
	}
	return from, to, ok
}

// WroteLate is Wrote for a WRITE to one page that has waited for the page. It has been answered, so it is not
// refused: if its baseline is gone meanwhile, all of its bytes count as stored.
func (c *Cached) WroteLate(k merge.Kernel, off int64, data []byte, back bool) {
	p := dsm.PageIndex(off / dsm.PageSize)
	c.wrotePage(k, p, int(off-int64(p)*dsm.PageSize), data, back, true)
}

// wrotePage takes the bytes data at offset lo of page p.
func (c *Cached) wrotePage(k merge.Kernel, p dsm.PageIndex, lo int, data []byte, back, late bool) bool {
	x, i := c.page(p)
	x.expected.Remove(i)
	x.given.Add(i)
	x.leaving.Remove(i)
	if x.flying.Has(i) {
		x.regiven.Add(i)
	}
	g, ok := c.given[p]
	split := !back && c.isBack(x, i)
	if !back && !split {
		defer c.overwritten(x, i, lo, lo+len(data))
	}
	if split {
		g, ok = c.beforeWrite(x, i, lo, data)
	}
	if !ok {
		if x.blind.Has(i) || x.storing.Has(i) {
			c.doubt(x, i) // a writer that nobody announced
		}
		if back && x.doubtful.Has(i) && !late {
			return !c.Refuses(p) // all of it is void
		}
		c.overwrite(x, i, lo, data)
		return true
	}
	// The three-way merge with g as the base, what the kernel has now as the
	// local stores, and the working copy as what comes in.
	w := c.area.Working(p)
	taken := true
	var base, merged [dsm.PageSize]byte
	copy(base[:], g.mem)
	copy(merged[:], g.mem)
	copy(merged[lo:], data)
	var since []byte
	if x.doubtful.Has(i) {
		since = c.sinceShrink(p)
	}
	if !back {
		if since != nil { // no more than data changes
			copy(base[:], since)
			copy(merged[:], since)
			copy(merged[lo:], data)
			copy(since[lo:], data)
		}
		k.Overwriting(p, base[:], merged[:], lo, lo+len(data))
	} else {
		for _, o := range c.others[p] {
			k.Either(p, base[:], o.mem, merged[:])
		}
		if since != nil {
			taken = c.voidOut(x, i, base[:], merged[:], since) || late
			k.Changed(p, base[:], merged[:], since)
		}
	}
	if c.shared {
		g = c.storeShared(k, p, lo, data, base[:], merged[:])
	} else {
		c.area.BeginMerge(p, true, nil)
		k.Merge(p, base[:], merged[:], w, nil)
		copy(w, merged[:])
		g = c.nowGiven(p, lo, data)
	}
	if !split { // whatever the page cache held before, it holds data now
		for _, o := range c.others[p] {
			copy(o.mem[lo:], data)
		}
	}
	switch {
	case c.forced(x, i) || !c.current(p, g):
		c.want(x, i) // if an invalidation is in flight, this WRITE may have come after the drop
	case c.shared:
		c.settle(x, i)
	default:
		c.forget(x, i)
		c.settle(x, i)
	}
	return taken
}

// BeforeMerge must be called before an update from elsewhere changes working page p. It keeps what
// the page cache was given, and makes a notice pending.
func (c *Cached) BeforeMerge(p dsm.PageIndex) {
	e, i := p.Extent()
	x := c.extent(e)
	if x == nil || !x.given.Has(i) {
		return
	}
	if x.storing.Has(i) {
		c.want(x, i)
		return
	}
	switch _, ok := c.given[p]; {
	case x.blind.Has(i) || x.doubtful.Has(i) && !ok:
		return // a notice is pending, or an invalidation in flight is about to drop the page
	case ok && !c.shared:
		return // as above; g is kept already
	case ok:
	case c.writers || c.shared:
		c.snapshot(c.keep(x, i).mem, p)
		c.keepsGiven(x, i)
		c.remove(&x.bare, i, &c.unready)
	default:
		c.add(&x.blind, i, &c.unready)
	}
	c.want(x, i)
}
