package pages

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Area is the memory of one area on this node: the working copy, which the
// node's programs see and store into, and the base copy, the bytes of the last
// version that this node published or received, which stores are compared with.
// Pages that were never touched take no memory, but touching
// includes asking for them by Working: a page that is known
// to be all zero, because it has no version, is better not looked at.
//
// The working copy is there from BeginReplica to EndReplica only. A node that is the home of an area and no more has
// the home's bytes and nothing else.
//
// In extents that are homed on this node the base copy is the home's copy, so
// that an area takes twice its size here and not three times; base.go has the rest.
type Area struct {
	id      dsm.AreaID
	size    int64
	working *areaCopy
	base    *areaCopy
	homed   map[dsm.ExtentIndex]struct{}
	twins   map[dsm.PageIndex]frame // only of pages of homed extents
	frames  frames                  // of twins and of ledger
	demand  *demand                 // of an area of demand kind; else nil
	ledger  *Cached                 // the newest one; nil before the first
	notices uint64                  // id of the last notice of any ledger
}

// NewArea returns the memory of an area of size bytes, all zero, without a working copy.
func NewArea(id dsm.AreaID, size int64) (*Area, error) { return newArea(id, size, nil) }

// newArea makes an area, of demand kind if d is not nil.
func newArea(id dsm.AreaID, size int64, d *demand) (*Area, error) {
	a := &Area{id: id, homed: map[dsm.ExtentIndex]struct{}{}, twins: map[dsm.PageIndex]frame{}, demand: d}
	a.working, a.base = newCopy(id, "w", true), newCopy(id, "b", d != nil)
	a.working.absent = true
	if err := a.Resize(size); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// BeginReplica makes the working copy, all zero. After an error there is none.
func (a *Area) BeginReplica() error {
	err := a.working.come()
	if err == nil && a.demand != nil {
		if err = a.demand.reserve(a.working.fd, a.working.len); err != nil {
			err = errors.Join(err, a.EndReplica())
		}
	}
	return a.failed("begin replica", err)
}

// EndReplica gives the working copy back. Programs that have it mapped keep what they have, and nobody looks at it.
func (a *Area) EndReplica() error {
	return a.failed("end replica", errors.Join(a.demand.close(), a.working.leave()))
}

func (a *Area) fail(op string, err error) error {
	kind := errs.Other
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC) {
		kind = errs.NoSpace
	}
	return &errs.Error{Op: "memory: " + op, Area: a.id, Kind: kind, Err: err}
}

// wholePages rounds a size up to a whole number of pages.
func wholePages(size int64) int64 { return (size + dsm.PageSize - 1) &^ (dsm.PageSize - 1) }

// Resize changes the size. Bytes past a smaller end are given back and read zero,
// in both copies and in every twin, should the area grow again; which extents are
// homed here does not change. All page slices that were handed out are invalid
// afterwards. After an error the size is the old one, and the caller tries again;
// bytes past the end asked for may be zero already.
//
// What programs have written past the end (see Extended) stays when the area grows, while
// it is shared.
func (a *Area) Resize(size int64) error {
	if size < 0 || size > dsm.MaxAreaSize {
		return errs.E(errs.TooLarge, "resize", "size of %d bytes", size)
	}
	end := wholePages(size)
	for _, c := range []*areaCopy{a.working, a.base} {
		if err := c.reserve(end); err != nil {
			return a.fail("resize", err)
		}
	}
	had, err := a.working.end()
	if err != nil {
		return a.fail("resize", err)
	}
	resize, length := a.working.resize, size
	if a.demand != nil {
		length = end // nobody has the file open to see its end
		if err := a.demand.reserve(a.working.fd, end); err != nil {
			return a.fail("resize", err)
		}
	}
	if size < a.size {
		// Only the last page is left with bytes past the end; ftruncate drops the others.
		for _, c := range []*areaCopy{a.working, a.base} {
			if err := c.zero(size, min(end, c.len)); err != nil {
				return a.fail("resize", err)
			}
		}
		a.truncateTwins(size)
	} else if a.demand != nil {
		if err := a.working.zero(a.size, a.working.len); err != nil {
			return a.fail("resize", err)
		}
	} else {
		if written := max(a.size, had); written < size {
			// Programs that have the working copy mapped can store past its end, in its last page.
			a.working.clearPast(written)
		}
		if a.ledger != nil && a.ledger.shared {
			resize = a.working.extend
		}
	}
	if err := resize(length); err != nil {
		return a.fail("resize", err)
	}
	if err := a.base.resize(length); err != nil {
		return a.fail("resize", err)
	}
	a.size = size
	return nil
}

// Extended returns the end of the working copy's file: more than Size after programs that
// have it open (FUSE passthrough) have written past the end by write(2), which tells
// nobody. Resize to it makes what they wrote part of the area, Trim cuts it off.
func (a *Area) Extended() (int64, error) {
	if a.demand != nil {
		return a.size, nil
	}
	end, err := a.working.end()
	if err != nil {
		return 0, a.fail("fstat", err)
	}
	return end, nil
}

// Trim cuts off what programs have written past the end.
func (a *Area) Trim() error {
	if a.demand != nil {
		return nil
	}
	if err := a.working.resize(a.size); err != nil {
		return a.fail("trim", err)
	}
	return nil
}

// Size returns the size in bytes.
func (a *Area) Size() int64 { return a.size }

// Close gives all memory back. The Area and its Cached are of no use afterwards.
func (a *Area) Close() error {
	clear(a.twins)
	a.frames.close()
	if err := errors.Join(a.demand.close(), a.working.close(), a.base.close()); err != nil {
		return a.fail("close", err)
	}
	return nil
}

// Working returns page p as the node's programs see it. Bytes past the end of the
// area, in its last page, must stay zero; what attached programs store there is
// not part of the area, and becomes zero when it grows. In a demand area the page is
// here: see NewDemandArea.
func (a *Area) Working(p dsm.PageIndex) []byte {
	a.checkHere(p, p+1)
	return a.working.page(p)
}

// ReadWorking copies bytes of the working copy from off on and returns how many:
// fewer than len(dst) at the end of the area, none past it. In a demand area the
// pages are here: see NewDemandArea.
func (a *Area) ReadWorking(dst []byte, off int64) int {
	if off < 0 || off >= a.size {
		return 0
	}
	end := min(off+int64(len(dst)), a.size)
	a.checkHere(dsm.PageIndex(off/dsm.PageSize), dsm.PageIndex(wholePages(end)/dsm.PageSize))
	return copy(dst, a.working.mem[off:end])
}

// ResidentBytes returns the memory that both copies, the twins and the copies of
// the ledger take now.
func (a *Area) ResidentBytes() (int64, error) {
	w, err := a.working.resident()
	if err != nil {
		return 0, a.fail("resident", err)
	}
	b, err := a.base.resident()
	if err != nil {
		return 0, a.fail("resident", err)
	}
	return w + b + a.frames.bytes(), nil
}

// String names the area in logs.
func (a *Area) String() string { return fmt.Sprintf("area %d (%d bytes)", a.id, a.size) }
