package pages

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// demand is the part of an Area that only areas on demand have. Their pages come and go: a page that
// is not here is a hole in the working copy. A program that touches the hole waits for the page.
//
// This process must not touch a hole. If it did so through its own mapping, even by a load, the kernel
// would put a page of zeroes there, and programs would take that for the page. So a working page is
// loaded or stored to only if the caller names it, and the caller must know that it is here. For all
// other pages this package uses system calls on the file, which put no page there: cachestat, SEEK_DATA,
// PUNCH_HOLE, splice. In builds with the tag invariants, naming a page that is not here panics.
type demand struct {
	filler filler
	mapped int64 // length of the filler's mapping
	none   error // why there is no filler
	// bases has the pages that are here and whose base is kept: see Area.NeedsBase.
	bases  map[dsm.ExtentIndex]dsm.PageSet
	before *kernelHad // nil: nothing was taken over
}

// kernelHad is what the page cache may have of an area on demand that was TakeBoth.
type kernelHad struct {
	pages    map[dsm.ExtentIndex]dsm.PageSet
	from, to int64 // it may have any page of that: it lay past the end when it was read, or is not certain
}

// takeDemand makes the area one on demand, of an earlier daemon (see TakeBoth). A page that takes memory is here, and its base is kept. The page cache may also have pages of which there is a g (given): see Cached.Expect.
// It may have any page from the byte uncertain on: one that was truncated there may have neither memory nor a g.
func (a *Area) takeDemand(given []tagged, uncertain, kernelHas int64) {
	a.demand = &demand{none: missing(), before: &kernelHad{make(map[dsm.ExtentIndex]dsm.PageSet), min(a.size, uncertain), kernelHas}}
	a.working.holes = true
	had := a.demand.before.pages
	for e, set := range a.working.taken.from(0) {
		if !set.Empty() {
			had[e] = *set
			a.demand.keepBases(e, *set)
		}
	}
	for _, x := range given {
		e, i := dsm.PageIndex(x.arg).Extent()
		set := had[e]
		set.Add(i)
		had[e] = set
	}
}

// Here returns which pages of extent e are here of an area on demand that was TakeBoth.
func (a *Area) Here(e dsm.ExtentIndex) dsm.PageSet { return a.demand.bases[e] }

// keepBases notes that the bases of pages are kept from now on. release takes that back.
func (d *demand) keepBases(e dsm.ExtentIndex, set dsm.PageSet) {
	if d == nil || set.Empty() {
		return
	}
	if d.bases == nil {
		d.bases = make(map[dsm.ExtentIndex]dsm.PageSet)
	}
	d.bases[e] = d.bases[e].Or(set)
}

func (d *demand) release(e dsm.ExtentIndex, set dsm.PageSet) {
	if d == nil || d.bases == nil {
		return
	}
	left := d.bases[e]
	if left = left.Minus(set); left.Empty() {
		delete(d.bases, e)
		return
	}
	d.bases[e] = left
}

// filler puts pages where there are none, so that each appears as a whole. uffd.Filler implements it.
type filler interface {
	// Fill puts src, whole pages, at off, and returns how many bytes it has put there. It stops at a
	// page that is there already (errs.Exist), or at one that failed.
	Fill(off int64, src []byte) (n int, err error)
	Resize(length int64) error
	Close() error
}

// NewDemandArea returns the memory of an area on demand of size bytes, of which no page is here. Install
// brings pages, Evict removes them. Working, ReadWorking, Base and the area's Cached take only pages
// that are here. The base copy of a page that is not here is a hole as well, unless the extent is
// homed here.
func NewDemandArea(id dsm.AreaID, size int64) (*Area, error) {
	return newArea(id, size, &demand{none: missing()}, nil)
}

// missing returns why programs cannot be made to wait for pages on this kernel, or nil if they can.
func missing() error {
	if n := os.Getpagesize(); n != dsm.PageSize {
		return errs.E(errs.Unsupported, "demand paging", "this kernel's pages have %d bytes", n)
	}
	if f := uffd.Probe().Missing; !f.OK {
		return errs.E(errs.Unsupported, "demand paging", "%s", f.Reason)
	}
	return nil
}

// Attachable returns nil if programs may map the working copy. For an area on demand that needs
// userfaultfd. Without it programs can still use the area through the page cache.
func (a *Area) Attachable() error {
	if a.demand == nil {
		return nil
	}
	return a.demand.none
}

// reserve makes the filler ready for a working copy of n bytes, if that is a memfd. The filler's
// mapping is as long as that of the copy, so it is seldom changed.
func (d *demand) reserve(memfd int, n int64) error {
	c := capacityFor(n)
	if d.none != nil || memfd < 0 || c <= d.mapped {
		return nil
	}
	if d.filler != nil {
		if err := d.filler.Resize(c); err != nil {
			return err
		}
	} else {
		f, err := uffd.NewFiller(memfd, c)
		if err != nil {
			return err
		}
		d.filler = f
	}
	d.mapped = c
	return nil
}

func (d *demand) close() error { return d.closeLater()() }

// closeLater is close, but returns what frees the mapping.
func (d *demand) closeLater() (free func() error) {
	if d == nil || d.filler == nil {
		return func() error { return nil }
	}
	f := d.filler
	d.filler, d.mapped = nil, 0
	return f.Close
}

// Install brings pages that are not here. n has one or more pages of one extent, from page p on, and
// becomes their working bytes and their base. A page of zeroes takes memory like any other. Programs
// see each page appear as a whole. n may be the home's bytes.
//
// If there is a page in one of these places all the same, a program put it there against the rules: it
// mapped the memory without being tracked, or gave pages back and touched them. Its bytes are not
// lost. They count as stored on top of zeroes, and k merges n with them. Such pages are returned in
// stored if they differ from n.
//
// keep says that the base is kept. That is not needed while no program of the node can store: see
// KeepBases.
//
// here has the pages that are here now. After an error that may be fewer than n has.
func (a *Area) Install(k merge.Kernel, p dsm.PageIndex, n []byte, keep bool) (here, stored dsm.PageSet, err error) {
	e, i := p.Extent()
	if end := int64(p)*dsm.PageSize + int64(len(n)); len(n)%dsm.PageSize != 0 || i+len(n)/dsm.PageSize > dsm.ExtentPages || end > a.working.len {
		panic(fmt.Sprintf("%v: install of %d bytes from page %d on", a, len(n), p))
	}
	if a.Outlives() { // so no program has the memory
		return a.installWhole(p, n, keep), stored, nil
	}
	for len(n) > 0 {
		filled, err := a.fill(p, n)
		done := filled / dsm.PageSize
		if keep || a.Homed(e) {
			a.installBase(p, n[:filled])
		}
		if keep {
			a.demand.keepBases(e, dsm.Range(i, i+done))
		}
		if errs.Is(err, errs.Exist) {
			page := n[filled:][:dsm.PageSize]
			q := p + dsm.PageIndex(done)
			k.MergeShared(q, zeroPage, a.working.page(q), page)
			a.installBase(q, page)
			a.demand.keepBases(e, dsm.Range(i+done, i+done+1))
			if string(a.working.page(q)) != string(page) {
				stored.Add(i + done)
			}
			done, err = done+1, nil
		}
		here = here.Or(dsm.Range(i, i+done))
		if err != nil {
			return here, stored, a.fail("install", err)
		}
		p, i, n = p+dsm.PageIndex(done), i+done, n[done*dsm.PageSize:]
	}
	return here, stored, nil
}

// installWhole is Install where another daemon may follow, for which a page that takes memory is here. So the base comes first, and the working bytes of each page in one system call, in which
// the kernel ends no process between two bytes of a page: n was just looked at, so it need not be brought.
func (a *Area) installWhole(p dsm.PageIndex, n []byte, keep bool) (here dsm.PageSet) {
	e, i := p.Extent()
	here = dsm.Range(i, i+len(n)/dsm.PageSize)
	if keep || a.Homed(e) {
		a.installBase(p, n)
	}
	if keep {
		a.demand.keepBases(e, here)
	}
	a.working.write(p, n, 0)
	return here
}

var zeroPage = make([]byte, dsm.PageSize)

// InstallsAtOnce reports whether Install waits for no program. Without a filler it writes to the file, and waits while a program is in write(2) to that.
func (a *Area) InstallsAtOnce() bool {
	return a.working.fd < 0 || a.demand != nil && a.demand.filler != nil
}

// fill puts pages where there are none, and returns how many bytes it has put there.
func (a *Area) fill(p dsm.PageIndex, n []byte) (int, error) {
	off := int64(p) * dsm.PageSize
	if a.demand != nil && a.demand.filler != nil {
		return a.demand.filler.Fill(off, n)
	}
	n = n[:min(int64(len(n)), a.working.len-off)]
	a.working.write(p, n, 0) // no program waits for it
	return len(n), nil
}

// installBase makes n the base of pages from p on. A page of zeroes whose base has no memory gets none.
//
// Where the extent is homed elsewhere the base copy is written by write(2). Before a store to a hole
// the kernel would clear the page, which took a fifth of the time of a fetch.
func (a *Area) installBase(p dsm.PageIndex, n []byte) {
	e, _ := p.Extent()
	run := 0
	data := p // no page of the base copy from p up to here takes memory
	hole := func(q dsm.PageIndex) bool {
		if q >= data {
			data = a.base.nextData(q)
		}
		return q < data
	}
	for end := 0; end < len(n); end += dsm.PageSize {
		q, page := p+dsm.PageIndex(end/dsm.PageSize), n[end:][:dsm.PageSize]
		switch {
		case allZero(page) && hole(q):
			a.dropTwin(q)
		case a.Homed(e):
			a.SetBase(q, page)
		default:
			continue // the run grows
		}
		a.base.write(p, n[run:end], run)
		run = end + dsm.PageSize
	}
	a.base.write(p, n[run:], run)
}

// KeepBases makes the working bytes the base of pages of extent e that Install brought without keep, and
// returns how many of them had none. The pages must be here, and nobody may have stored to them.
func (a *Area) KeepBases(e dsm.ExtentIndex, set dsm.PageSet) int {
	set = set.Minus(a.demand.bases[e])
	a.demand.keepBases(e, set)
	for from, to := range set.Runs() {
		first, last := pageOfExtent(e, from), pageOfExtent(e, to)
		a.checkHere(first, last)
		if !a.Homed(e) {
			a.base.write(first, a.working.look(first, int(last-first)), 0)
			continue
		}
		for p := first; p < last; p++ {
			a.SetBase(p, a.working.page(p))
		}
	}
	return set.Len()
}

// write writes n at the byte offset at, counted from the beginning of page p.
func (c *areaCopy) write(p dsm.PageIndex, n []byte, at int) {
	off := int64(p)*dsm.PageSize + int64(at)
	if c.fd >= 0 {
		c.fileWrite(c.fd, n, off, off)
		return
	}
	if from, to := pagesOf(off, int64(len(n))); from < to {
		c.take(from, int(to-from))
	}
	if c.kept != nil {
		c.fileWrite(c.kept.store.mem.FD(), n, off, c.start()+off)
		return
	}
	copy(c.mem[off:c.len], n)
}

// start is where the bytes of a copy begin that is in a Keep.
func (c *areaCopy) start() int64 { return placeOf(c.piece, c.slot) &^ classMask }

// has reports whether all of the pages [from, to) take memory.
func (c *areaCopy) has(from, to dsm.PageIndex) bool {
	for p := from; p < to; p++ {
		if !c.takes(p) {
			return false
		}
	}
	return true
}

// takes reports whether page p takes memory. If the kernel cannot tell, it reports true.
func (c *areaCopy) takes(p dsm.PageIndex) bool {
	if c.fd < 0 {
		return c.taken.has(p.Extent())
	}
	if c.sealed {
		off := int64(p) * dsm.PageSize
		if n, err := uffd.CountPages(c.fd, off, off+dsm.PageSize); !uffd.CannotCount(err) {
			return n > 0 || err != nil
		}
	}
	return c.nextData(p) == p
}

// nextData returns the first page from p on that takes memory, of a sealed memfd before the end, or p if the kernel cannot tell. It
// never asks for the end of the data (SEEK_HOLE): the kernel would look at every page up to the next
// hole, 20 ms for each GiB.
func (c *areaCopy) nextData(p dsm.PageIndex) dsm.PageIndex {
	if c.fd < 0 {
		return c.nextTaken(p)
	}
	if c.sealed {
		if at, ok, err := uffd.NextData(c.fd, int64(p)*dsm.PageSize, c.len); !uffd.CannotCount(err) {
			switch {
			case err != nil:
				return p
			case !ok:
				return noPage
			}
			return dsm.PageIndex(at / dsm.PageSize)
		}
	}
	off, err := unix.Seek(c.fd, int64(p)*dsm.PageSize, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return noPage // there is none from here to the end
	case err != nil:
		return p
	}
	return dsm.PageIndex(off / dsm.PageSize)
}

// checkHere panics in an invariants build unless all of the pages [from, to) are here.
func (a *Area) checkHere(from, to dsm.PageIndex) {
	if invariants.Enabled && a.demand != nil {
		invariants.Check(a.working.has(from, to), "%v: pages [%d,%d) are named, and not all are here", a, from, to)
	}
}
