package pages

import (
	"fmt"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// In an extent that is homed on this node, the pages of the base copy are the
// home's bytes. The node is a replica of the extent as well, and its base falls
// behind when the home merges what others published before the node received
// that. Only then is there a second copy of the page, the twin: what the base
// was. Keeping a third copy of every page would be simpler and cost half as much
// memory again for nothing, since a home receives from itself within moments.
//
//	extent homed elsewhere   base = base copy
//	extent homed here        home = base copy, base = twin, or the home's bytes without one

// Base returns the bytes that this node's stores to page p are compared with.
// They are not for writing.
func (a *Area) Base(p dsm.PageIndex) []byte {
	if len(a.twins) > 0 {
		if t, ok := a.twins[p]; ok {
			return t.mem
		}
	}
	return a.base.look(p, 1)
}

// PrefetchNext has the processor begin to get the page of set that follows page i of extent e, of both
// copies, into its caches. A page that a program has stored to is in no cache of this processor, and its base copy
// in none at all: its diff takes 1 us, of which 0.2 is work, and this spares 0.2 (BenchmarkAppendDeltaCold). An adjacent page
// the processor gets by itself.
func (a *Area) PrefetchNext(e dsm.ExtentIndex, set *dsm.PageSet, i int) {
	n := set.Next(i + 1)
	if p := pageOfExtent(e, n); n > i+1 && n < dsm.ExtentPages && int64(p)*dsm.PageSize < a.size {
		if !a.working.absent {
			prefetch(a.working.look(p, 1))
		}
		prefetch(a.base.look(p, 1))
	}
}

// SetBase makes n, which may be Home(p), the base of page p.
func (a *Area) SetBase(p dsm.PageIndex, n []byte) {
	e, _ := p.Extent()
	switch {
	case !a.Homed(e):
		copy(a.base.page(p), n)
	case string(n) == string(a.base.look(p, 1)):
		a.dropTwin(p)
	default:
		copy(a.twin(p), n)
	}
}

// OwnBase returns the base of page p for changing it in place; it must not be the
// home's bytes, that is, the extent is not homed here or the page has a twin.
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

// HasTwin reports whether the base of page p is not the home's bytes though its
// extent is homed here.
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

// Home returns the home's bytes of page p of an extent that is homed here. They
// are written only after BeforeHomeWrite.
func (a *Area) Home(p dsm.PageIndex) []byte { return a.HomeRun(p, 1) }

// HomeRun returns the home's bytes of n pages of one extent, from p on, as Home does of one.
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

// FreeHome gives the memory back that the home's bytes of page p take, which are all zero.
func (a *Area) FreeHome(p dsm.PageIndex) {
	off := int64(p) * dsm.PageSize
	_ = a.base.zero(off, off+dsm.PageSize) // or it goes on taking memory
}

// BeforeHomeWrite is called before the home's bytes of page p change. keepTwin
// says that this node has the page as a replica too, so that its base must stay
// what it is. Without keepTwin the base follows the home's bytes.
func (a *Area) BeforeHomeWrite(p dsm.PageIndex, keepTwin bool) {
	if !keepTwin {
		a.dropTwin(p)
		return
	}
	if _, ok := a.twins[p]; !ok {
		home := a.Home(p)
		copy(a.twin(p), home)
	}
}

// BecomeHome makes this node the home of extent e. The home's bytes are the base
// bytes of this node, until InstallHome replaces those of the pages that the
// previous home sends. (A page that it does not send has no version: it is all
// zero there, and here.)
func (a *Area) BecomeHome(e dsm.ExtentIndex) { a.homed[e] = struct{}{} }

// InstallHome makes n the home's bytes of page p, as received from the previous
// home. keepTwin is that of BeforeHomeWrite; no twin is left where the base is n.
func (a *Area) InstallHome(p dsm.PageIndex, n []byte, keepTwin bool) {
	if keepTwin && string(a.Base(p)) == string(n) {
		keepTwin = false
	}
	a.BeforeHomeWrite(p, keepTwin)
	copy(a.Home(p), n)
}

// ResignHome ends the homing of extent e here. Twins go back into the base copy;
// the base of a page without one is what the home's bytes were.
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

// twin returns the twin of page p, making one with undefined bytes if need be.
func (a *Area) twin(p dsm.PageIndex) []byte {
	t, ok := a.twins[p]
	if !ok {
		t = a.frames.take()
		a.twins[p] = t
	}
	return t.mem
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

// truncateTwins drops the twins past size and zeroes the rest of the last page's.
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
