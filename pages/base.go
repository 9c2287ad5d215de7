package pages

import (
	"fmt"
	"os"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// In an extent that is homed on this node, the pages of the base copy are the home's bytes: always its
// newest value, in place. The replica on this node needs the value that it has received last, as its base. Before the home overwrites a page, the value that
// the replica needs moves aside: the page gets a twin. The twin goes when the replica has received the new value. A third copy of every page would take half as
// much memory again, and a home receives from itself within moments.
//
//	extent homed elsewhere             base = base copy
//	extent homed here, no twin         base = home = base copy
//	extent homed here, with a twin     base = twin, home = base copy
//
// Neither side needs to know what the other is about to do.

// Base returns the bytes with which this node's stores to page p are compared. They must not be
// changed.
func (a *Area) Base(p dsm.PageIndex) []byte {
	if len(a.twins) > 0 {
		if t, ok := a.twins[p]; ok {
			return t.mem
		}
	}
	return a.base.look(p, 1)
}

// PrefetchNext makes the processor load the next page of set after page i of extent e into its
// caches, from both copies. It does nothing for an adjacent page, which the processor loads by itself.
//
// A page that a program stored to is in the cache of another processor, and its base copy in none. So
// its diff takes 1 us, of which only 0.2 us is work. The prefetch saves 0.2 us
// (BenchmarkAppendDeltaCold).
func (a *Area) PrefetchNext(e dsm.ExtentIndex, set *dsm.PageSet, i int) {
	n := set.Next(i + 1)
	if p := pageOfExtent(e, n); n > i+1 && n < dsm.ExtentPages && int64(p)*dsm.PageSize < a.size {
		if !a.working.absent {
			prefetch(a.working.look(p, 1))
		}
		prefetch(a.base.look(p, 1))
	}
}

// SetBase copies n, which may be Home(p), to the base of page p.
func (a *Area) SetBase(p dsm.PageIndex, n []byte) {
	e, _ := p.Extent()
	switch {
	case !a.Homed(e):
		copy(a.base.page(p), n)
	case string(n) == string(a.base.look(p, 1)):
		a.dropTwin(p)
	default:
		a.setTwin(p, n)
	}
}

// ZeroBase is SetBase with a page of zeroes. A base without memory gets none.
func (a *Area) ZeroBase(p dsm.PageIndex) {
	if !a.HasTwin(p) && !a.base.takes(p) {
		return
	}
	switch e, _ := p.Extent(); {
	case a.Homed(e):
		a.SetBase(p, zeroPage)
	case !allZero(a.base.look(p, 1)):
		clear(a.base.page(p))
	}
}

// FollowHome makes the home's bytes of page p its base.
func (a *Area) FollowHome(p dsm.PageIndex) {
	if e, _ := p.Extent(); !a.Homed(e) {
		panic(fmt.Sprintf("%v: extent %d is not homed here", a, e))
	}
	a.dropTwin(p)
}

// OwnBase returns the base of page p for changing it in place. The base must not be the home's bytes:
// the extent is homed elsewhere, or the page has a twin.
func (a *Area) OwnBase(p dsm.PageIndex) []byte {
	e, _ := p.Extent()
	if a.Homed(e) && !a.HasTwin(p) {
		panic(fmt.Sprintf("%v: the base of page %d is the home's", a, p))
	}
	if t, ok := a.twins[p]; ok {
		return t.mem
	}
	return a.base.page(p)
}

// HasTwin reports whether page p has a twin: its extent is homed here, and its base is not the home's
// bytes.
func (a *Area) HasTwin(p dsm.PageIndex) bool {
	if len(a.twins) == 0 {
		return false
	}
	_, ok := a.twins[p]
	return ok
}

// Homed reports whether extent e is homed here, since BecomeHome.
func (a *Area) Homed(e dsm.ExtentIndex) bool {
	_, ok := a.homed[e]
	return ok
}

// NeedsBase reports whether the replica needs the base of page p to stay what it is: all pages of an
// area with a working copy, but in one on demand only those whose base Install or KeepBases has kept.
func (a *Area) NeedsBase(p dsm.PageIndex) bool {
	if a.demand == nil {
		return !a.working.absent
	}
	e, i := p.Extent()
	set := a.demand.bases[e]
	return set.Has(i)
}

// Home returns the home's bytes of page p of an extent that is homed here. Call BeforeHomeWrite before
// you write to them.
func (a *Area) Home(p dsm.PageIndex) []byte { return a.HomeRun(p, 1) }

// HomeRun is Home for n pages of one extent, from p on.
func (a *Area) HomeRun(p dsm.PageIndex, n int) []byte {
	if e, _ := p.Extent(); !a.Homed(e) {
		panic(fmt.Sprintf("%v: extent %d is not homed here", a, e))
	}
	return a.base.pages(p, n)
}

// HomeZero reports whether the home's bytes of page p are all zero.
func (a *Area) HomeZero(p dsm.PageIndex) bool {
	if e, _ := p.Extent(); !a.Homed(e) {
		panic(fmt.Sprintf("%v: extent %d is not homed here", a, e))
	}
	return allZero(a.base.look(p, 1))
}

// FreeHome frees the memory of the home's bytes of page p, which must be all zero.
func (a *Area) FreeHome(p dsm.PageIndex) {
	off := int64(p) * dsm.PageSize
	_ = a.base.zero(off, off+dsm.PageSize) // if this fails, the page goes on taking memory
}

// HasTwins reports whether some base page of an extent that is homed here is not the home's.
func (a *Area) HasTwins() bool { return len(a.twins) > 0 }

// BeforeHomeWrite must be called before the home's bytes of page p change. If the replica needs them as
// its base, they move aside. own says that the home is about to merge what this node published: then
// the base may follow to the result, and rode says that it does. It does not if it was not the home's
// last value.
func (a *Area) BeforeHomeWrite(p dsm.PageIndex, own bool) (rode bool) {
	switch {
	case !a.NeedsBase(p):
		a.dropTwin(p)
	case a.HasTwin(p):
	case own:
		return true
	default:
		a.setTwin(p, a.Home(p))
	}
	return false
}

// BecomeHome makes this node the home of extent e. Its base bytes become the home's bytes, and
// InstallHome replaces those of the pages that the previous home sends. (A page that is not sent has
// no version, so it is all zero there, and here.)
func (a *Area) BecomeHome(e dsm.ExtentIndex) { a.homed[e] = struct{}{} }

// InstallHome makes n, received from the previous home, the home's bytes of page p. A page whose base
// equals n gets no twin, nor does one that is not here: a node that opens an area and becomes its home at
// the same time needs no third copy of all of it.
func (a *Area) InstallHome(p dsm.PageIndex, n []byte, here bool) {
	if !here || string(a.Base(p)) == string(n) {
		a.dropTwin(p)
	} else {
		a.BeforeHomeWrite(p, false)
	}
	copy(a.Home(p), n)
}

// ResignHome ends that this node is the home of extent e. Twins go back into the base copy. For pages without a
// twin, what were the home's bytes is the base.
func (a *Area) ResignHome(e dsm.ExtentIndex) {
	first := dsm.PageIndex(e) * dsm.ExtentPages
	for p := first; p < first+dsm.ExtentPages && len(a.twins) > 0; p++ {
		if t, ok := a.twins[p]; ok {
			copy(a.base.page(p), t.mem)
			a.dropTwin(p)
		}
	}
	delete(a.homed, e)
}

// setTwin copies n to the twin of page p, which it makes if there is none.
func (a *Area) setTwin(p dsm.PageIndex, n []byte) {
	t, ok := a.twins[p]
	if !ok {
		t = a.frames.take()
		a.twins[p] = t
	}
	copy(t.mem, n)
	if !ok {
		a.frames.tag(t, frameTwin, uint64(p), 0)
	}
}

func (a *Area) dropTwin(p dsm.PageIndex) {
	if len(a.twins) == 0 {
		return
	}
	if t, ok := a.twins[p]; ok {
		delete(a.twins, p)
		a.frames.put(t)
	}
}

// truncateTwins drops the twins of pages past size, and zeroes the bytes past size in that of the last
// page.
func (a *Area) truncateTwins(size int64) {
	for p, t := range a.twins {
		switch off := int64(p) * dsm.PageSize; {
		case off >= size:
			a.dropTwin(p)
		case off+dsm.PageSize > size:
			clear(t.mem[size-off:])
		}
	}
}

// truncateBases releases the bases of pages past size.
func (a *Area) truncateBases(size int64) {
	if a.demand == nil {
		return
	}
	for e := range a.demand.bases {
		in := min(max((size-int64(e)*dsm.ExtentSize+dsm.PageSize-1)/dsm.PageSize, 0), dsm.ExtentPages)
		a.demand.release(e, dsm.Range(int(in), dsm.ExtentPages))
	}
}

// OpenBase opens the base copy for a program that reads: what is published.
func (a *Area) OpenBase() (*os.File, error) {
	f, err := a.base.open(false)
	if err != nil {
		return nil, a.fail("open the base copy", err)
	}
	return f, nil
}
