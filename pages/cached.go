package pages

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// Cached is the ledger of what the kernel's page cache was last given of an area:
// the third baseline, beside the base copy and the home's. A program maps the
// page cache, not the working copy, so a WRITE request carries stores that were
// made on top of what the page cache held. Taking it for stores on top of the
// working copy, which may have received updates since, would publish the undoing
// of those updates, or count them twice.
//
// # What is known of a page
//
// The page cache may hold the bytes of a page only if they were given to it: in
// the reply to a READ, by a store notice, or by the program's own write, seen
// as a WRITE. Let K be the bytes that it holds without the stores that have not come as a
// WRITE yet, and W the working copy's. Then a page is in one of these states:
//
//	not given    the page cache does not hold it; no notice is needed
//	clean        given, no entry: K = W
//	entry g      given, K = g, kept here; W may differ
//	storing      a store notice with the bytes s is in flight: K = s soon, and
//	             until then the page cache holds older bytes, or none
//	blind        given, K unknown, and no program can have stored to it
//	cut          given, and cut by a truncation that the kernel may not know of; with
//	             g, or, if that is not known, without
//	bare         only while the working copy is shared: given, K = W, g not kept yet
//
// and while an invalidation is in flight, "given" is no longer sure but possible. Beside its
// state a page may be leaving: Drop was called for it.
//
// # Why no store is lost or doubled
//
// A WRITE of a page in state clean has K = W as its baseline: taking its bytes is
// exact. In state entry its baseline is g, so W gets the change from g to the
// bytes, by the area's kernel, and the bytes become the new g: K holds them. (What write(2) brings is stored also where
// it is as g, but for elements that add up.) In
// state not given the bytes are taken as they are: only write(2) sends such a WRITE.
// States storing and blind exclude writers: see Writable.
//
// A READ makes its page clean, since the kernel only asks for what it does not
// hold. There is one exception. A store notice in flight may have been carried out
// before the READ, or wait for the READ's reply and be carried out after it; in
// the second case K will be s whatever the reply says. So the reply is s as well:
// the page does not go back in time, and K = s is known in both cases.
//
// An invalidation first delivers the page's stores as a WRITE, on top of g, and
// then drops the page (K6). If no READ and no WRITE came between NextNotice and
// Done, the page cache does not hold it. If one came, it may have come after the
// drop: the page stays given, with what the READ or WRITE made known, and is
// invalidated again if W differs. A READ that came before the drop does no harm:
// the invalidation waits for it (K7), so that stores on top of its reply are
// delivered as well.
//
// At most one notice of a page is in flight, so that what Done means is
// unambiguous. A store notice would overwrite stores that were not delivered yet
// (K34). A program can have made one only through a handle for writing, and the
// kernel writes all of them back before it releases that handle. So there are
// store notices only while there is no writer, and a writer is let in only when
// none is in flight.
//
// # When the area shrinks
//
// A shrink on another node takes the working copy's bytes at once, and the kernel's when it is told. Until then
// a program goes on storing to pages that show the bytes of before, and the area may have grown again:
// those stores are good, and the bytes beneath them are void. So BeforeCut keeps g of the pages that are cut, as they
// were, and a WRITE brings the change from g, as ever. Stores that the kernel held before the shrink, and that
// nobody had heard of, count as made after it. Where there is no room for g, a WRITE of a mapping is refused.
// Each page that was cut gets an invalidation, which ends the doubt, as a READ does.
//
// The kernel cuts its page cache off some time after it was told of a size, so a READ that is answered after that may yet be
// cleared: see cached_told.go.
//
// Without writers no entry needs its bytes, since no WRITE will be merged against
// them. Then no copy is kept and the state is blind: for a subscriber that only
// reads, a backlog of notices takes no memory.
//
// # When programs store into the working copy
//
// Programs that attached store into W itself, at any time, and the ledger hears
// of it by Touched, when a scan has found the pages. While there may be such
// programs, since SetShared, W may move away from K unseen, so there is no state
// clean: every page that is given keeps its g, whether a notice of it is
// pending (K differs from W, as far as is known) or not.
//
// A READ takes the bytes of a page from memory once. They are the reply and g, so
// K = g whatever is stored meanwhile. A WRITE brings the change from g to its
// bytes into W by compare-and-swap, never as a copy: bytes that it does not
// change may have been stored to since the READ. A page without g was not given, so
// only write(2) sends its bytes, and all of them are its: they are put into W,
// and what W holds after that, with them, is g.
//
// A notice is dropped when g is found equal to W. Stores that come after the
// comparison are found by a later scan than the comparison, and Touched compares again.
// Stores that come before a READ may be found after it; they are in its bytes, and
// the comparison finds nothing to tell. So every store is told of, or was given.
//
// All notices are invalidations, and no page becomes blind, as with writers. What
// was given before SetShared has no g kept, unless a notice is pending: it is bare.
// Its baseline is W until the first store of an attached program. Each bare page
// gets an invalidation; a READ, a WRITE and an update make g known sooner. When no
// page is bare, blind, storing or cut an attached program may be let in: see
// Writable.
//
// # When pages leave
//
// In a demand area a page can be evicted: then W is at the home only, and nothing
// here may look at it (see NewDemandArea). Not given is the one state in which that does no
// harm, so Drop tells which pages are not given, and has the kernel drop the others:
// they are leaving, which is an invalidation whatever else their state wants, and never
// dropped for lack of a difference. K and its baseline stay what they are until Done:
// the WRITE that the invalidation delivers is merged as any other.
//
// A page that is leaving is out when an invalidation of it is Done that no READ and no
// WRITE came after, by the argument above: the page cache does not hold it, and gets it
// again only by a READ that the ledger answers. Done returns it, so that it can be evicted
// before anything else happens. A READ or WRITE after Drop ends the leaving: a program uses the page. Of
// one that came between NextNotice and Drop it is not known whether the drop was before or after it, so
// the page is invalidated once more. Nothing is left of a page that is out, nor of an extent.
//
// A drop tells the kernel nothing new, so nobody waits for it: Idle does not count it.
//
// Where a demand area grows, what is added may have been stored to elsewhere before
// anything of it comes here, and the kernel may hold zeroes for it, from a READ past the old
// end. So K = 0 and W is unknown: the state becomes entry with a g of zeroes, or blind, and the page is
// leaving, with a notice that counts. Its W is looked at when a READ or WRITE comes, as the page is here then.
// A program can have stored to those zeroes: then the WRITE waits for the page, and g with it (Expect).
//
// # What is not covered
//
// A program that mixes write(2) with stores through a mapping to one element at
// the same time gets either. Where the kernel holds up the invalidation of an unsure page (see cached_unsure.go)
// for longer than the write(2) waits, a program that then stores to its mapping what was there before the write(2) has not stored.
//
// The K numbers are measured facts of the kernel: docs/kernel.md lists them.
type Cached struct {
	area    *Area
	size    int64 // of the area, at the last Truncate
	cut     int64 // the least size since a page was cut, if one is
	told    int64 // the size that the kernel was told last
	writers bool
	shared  bool // attached programs may store into the working copy
	hold    bool // notices of updates are on hold: see cached_hold.go
	extents map[dsm.ExtentIndex]*cachedExtent
	given   map[dsm.PageIndex]frame   // g of the pages in state entry
	others  map[dsm.PageIndex][]frame // what the page cache may hold in place of g, of unsure pages
	late    map[dsm.PageIndex]late    // of late pages
	punched *punched                  // nil: no hole is to be cut out
	queue   []*cachedExtent           // with pages that may be pending
	waiting []*cachedExtent           // with pages on hold
	flights []*flight
	spare   []byte // buffer of a store notice that is done

	windows map[dsm.ExtentIndex]*window // what happened since the last write(2): see cached_unsure.go
	shaken  bool                        // since then the page cache may have dropped pages without a notice
	drops   int                         // calls of KernelDrops that have not ended

	open    int // pages pending + pages in flight
	unready int // pages blind + storing + doubtful + bare
	held    int // pages with g that are pending or in flight
}

// cachedExtent is the ledger of the pages of one extent.
type cachedExtent struct {
	extent   dsm.ExtentIndex
	queued   bool
	waits    bool // in waiting
	given    dsm.PageSet
	pending  dsm.PageSet // wants a notice
	flying   dsm.PageSet // has a notice in flight
	storing  dsm.PageSet // of flying: a store
	regiven  dsm.PageSet // of flying: a READ or WRITE came meanwhile
	blind    dsm.PageSet
	doubtful dsm.PageSet // cut
	bare     dsm.PageSet
	held     dsm.PageSet // with g, and pending or flying
	leaving  dsm.PageSet // to be invalidated because of Drop
	quiet    dsm.PageSet // of flying: for Drop only
	expected dsm.PageSet // Expect was called, and Wrote not yet
	late     dsm.PageSet // the kernel may yet clear the end of the page: see cached_told.go
	reread   dsm.PageSet // of flying: a READ came meanwhile
	urgent   dsm.PageSet // of pending: because of a write(2), and never on hold
	unsure   dsm.PageSet // of a write(2): see cached_unsure.go
}

// NewCached returns the ledger of a with nothing given: the kernel holds nothing
// of the file. It takes the place of the ledger that a had before: notices of
// that one that are still in flight mean nothing to this one.
func NewCached(a *Area) *Cached {
	shaken := false
	if old := a.ledger; old != nil {
		shaken = len(old.flights) > 0
		for _, g := range old.given {
			a.frames.put(g)
		}
		for p := range old.others {
			old.dropOthers(p)
		}
	}
	a.ledger = &Cached{
		area:    a,
		size:    a.size,
		extents: map[dsm.ExtentIndex]*cachedExtent{},
		given:   map[dsm.PageIndex]frame{},
		late:    map[dsm.PageIndex]late{},
		others:  map[dsm.PageIndex][]frame{},
		windows: map[dsm.ExtentIndex]*window{},
		shaken:  shaken,
	}
	return a.ledger
}

// SetWriters says whether a program has the file open for writing, or is about
// to. It is set before the OPEN for writing is answered, which then waits for
// Writable, and unset after the RELEASE of the last handle for writing, which the
// kernel sends after the last WRITE (K35).
func (c *Cached) SetWriters(on bool) {
	c.writers = on
	if !on {
		c.EndWrite()
		c.lineUp() // nothing is on hold without writers
	}
}

// Writable reports whether an OPEN for writing may be answered: no page is in a
// state whose baseline is not known. After SetWriters(true) no page gets into one
// any more but by Truncate, so it becomes true when enough notices are Done, even
// while updates keep coming.
func (c *Cached) Writable() bool { return c.unready == 0 }

// Idle reports whether the page cache holds nothing but the working copy's bytes
// and stores that were not delivered yet: no notice is pending or in flight, but for
// those that only make pages leave, and those on hold.
func (c *Cached) Idle() bool { return c.open == 0 || c.hold && c.open == c.holds() }

// Pending reports whether NextNotice may have a notice.
func (c *Cached) Pending() bool { return len(c.queue) > 0 }

// CopyBytes returns the memory that copies of pages take whose notices are pending
// or in flight. It grows with the backlog of notices while there are writers: whoever
// merges faster than the kernel takes notices has to pause. Copies that are kept
// because the working copy is shared do not become fewer by that and do not count.
func (c *Cached) CopyBytes() int64 {
	n := int64(c.held) * dsm.PageSize
	for _, f := range c.flights {
		n += int64(len(f.data))
	}
	return n
}

// Read serves a READ of the page cache: it copies to dst what the page cache is
// to hold from off on and returns the number of bytes, which is short only at the
// end of the area. The reply must be sent, whatever else happens meanwhile. dst
// is as long as the READ asks for: the kernel fills what the reply lacks with
// zeroes, and holds that too.
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
				c.doubt(x, i) // the area grew: is the rest this reply's, or zero?
			}
		case whole:
			// Part of a page may be a read that leaves nothing in the page cache.
			x.leaving.Remove(i)
			reply := dst[at-off : has-off]
			switch hidden := c.hideLate(x, i, reply, 0); {
			case hidden:
				g := c.keep(x, i)
				clear(g.mem[copy(g.mem, reply):])
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
		at = end
	}
	return n
}

// Wrote takes a WRITE of the kernel, of any range of bytes that ends at or before
// the end of the area, into the working copy. It returns the pages [from, to)
// that the range lies in. The pages are here: fetched, or written as a whole. back says that it carries
// stores to mappings. If it is not known what those were made on top of, ok is false and the page is left as it is.
func (c *Cached) Wrote(k merge.Kernel, off int64, data []byte, back bool) (from, to dsm.PageIndex, ok bool) {
	ok = true
	from, to = pagesOf(off, int64(len(data)))
	for p := from; p < to; p++ {
		lo := max(off-int64(p)*dsm.PageSize, 0)
		n := min(dsm.PageSize-lo, int64(len(data)))
		ok = c.wrotePage(k, p, int(lo), data[:n], back) && ok
		data = data[n:]
	}
	return from, to, ok
}

// wrotePage takes the bytes data at offset lo of page p.
func (c *Cached) wrotePage(k merge.Kernel, p dsm.PageIndex, lo int, data []byte, back bool) bool {
	x, i := c.page(p)
	x.expected.Remove(i)
	x.given.Add(i)
	x.leaving.Remove(i)
	c.wroteLate(x, i, lo+len(data))
	c.wrotePunched(p, data, lo, back)
	if x.flying.Has(i) {
		x.regiven.Add(i)
	}
	g, ok := c.given[p]
	split := !back && c.isBack(x, i)
	if split {
		g, ok = c.beforeWrite(x, i, lo, data)
	}
	if !ok {
		if x.blind.Has(i) || x.storing.Has(i) {
			c.doubt(x, i) // a writer that nobody announced
		}
		if back && x.doubtful.Has(i) {
			return false
		}
		c.overwrite(x, i, lo, data)
		return true
	}
	// The three-way merge with g as the base, what the kernel holds now as the
	// local stores, and the working copy as what comes in.
	w := c.area.Working(p)
	var base, merged [dsm.PageSize]byte
	copy(base[:], g.mem)
	copy(merged[:], g.mem)
	copy(merged[lo:], data)
	if !back {
		if x.doubtful.Has(i) { // it is no change of bytes that are void
			clear(base[min(max(c.cut-int64(p)*dsm.PageSize, 0), dsm.PageSize):])
			copy(merged[:lo], base[:lo])
			copy(merged[lo+len(data):], base[lo+len(data):])
		}
		k.Overwriting(p, base[:], merged[:], lo, lo+len(data))
	} else {
		for _, o := range c.others[p] {
			k.Either(p, base[:], o.mem, merged[:])
		}
	}
	if c.shared {
		k.StoreShared(p, base[:], w, merged[:])
	} else {
		k.Merge(p, base[:], merged[:], w, nil)
		copy(w, merged[:])
	}
	copy(g.mem[lo:], data)
	if !split { // whatever it held before, that is what it holds
		for _, o := range c.others[p] {
			copy(o.mem[lo:], data)
		}
	}
	switch {
	case c.forced(x, i) || !c.current(p, g):
		c.want(x, i) // if an invalidation is in flight, this may be after the drop
	case c.shared:
		c.settle(x, i)
	default:
		c.forget(x, i)
		c.settle(x, i)
	}
	return true
}

// BeforeMerge is called before an update from elsewhere changes working page p.
// It keeps what the page cache was given, and makes a notice pending.
func (c *Cached) BeforeMerge(p dsm.PageIndex) {
	e, i := p.Extent()
	x := c.extents[e]
	if x == nil || !x.given.Has(i) {
		return
	}
	if x.storing.Has(i) {
		c.want(x, i)
		return
	}
	switch _, ok := c.given[p]; {
	case x.blind.Has(i) || x.doubtful.Has(i) && !ok:
		return // pending, or about to be dropped by the invalidation in flight
	case ok && !c.shared:
		return // the same
	case ok:
	case c.writers || c.shared:
		c.snapshot(c.keep(x, i).mem, p)
		c.remove(&x.bare, i, &c.unready)
	default:
		c.add(&x.blind, i, &c.unready)
	}
	c.want(x, i)
}
