package pages

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Area is the memory of one area on this node. The node's programs see the working copy and store
// into it. The base copy has the bytes of the last version that this node published or received, and
// stores are compared with it. Pages that were never touched take no memory, and asking
// for one by Working counts as touching it. So do not ask for a page that is known to be all zero,
// because it has no version.
//
// The working copy exists only from BeginReplica to EndReplica. A node that is only the home of
// extents of an area has just the home's bytes.
//
// In extents that are homed on this node the base copy is the home's copy, so that an area takes
// twice its size here and not three times; base.go explains this.
type Area struct {
	id      dsm.AreaID
	size    int64
	working *areaCopy
	base    *areaCopy
	homed   map[dsm.ExtentIndex]struct{}
	twins   map[dsm.PageIndex]frame    // only of pages in homed extents
	frames  frames                     // the memory of twins, and of the ledger's copies
	demand  *demand                    // nil unless the area is on demand
	ledger  *Cached                    // the newest one; nil before the first
	drops   *Drops                     // of the file; never nil
	kept    *keeping                   // nil unless it has a record in a Keep: see Outlives
	ends    bool                       // see EndsWithDaemon
	note    []frame                    // see BeginMerge
	undo    undo                       // see BeginAdding
	stays   func(dsm.ExtentIndex) bool // in TakeBoth: Left.Homed
	sent    int                        // how many Sents there are
	left    map[frameKind][]tagged     // until ResumeCached
	drafts  []*Draft                   // until LeftDrafts

	compared map[dsm.ExtentIndex]frame // see IsCompared
}

// NewArea returns the memory of an area of size bytes, all zero, without a working copy.
func NewArea(id dsm.AreaID, size int64) (*Area, error) { return newArea(id, size, nil, nil) }

// newArea makes an area, one on demand if d is not nil, one in a Keep if k is not nil.
func newArea(id dsm.AreaID, size int64, d *demand, k *keeping) (*Area, error) {
	a := &Area{id: id, homed: map[dsm.ExtentIndex]struct{}{}, twins: map[dsm.PageIndex]frame{}, demand: d, drops: &Drops{}, kept: k}
	a.frames.kept = k
	a.working, a.base = newCopy(id, "w", false), newCopy(id, "b", false)
	a.placeCopies()
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

// EndReplica frees the working copy, and needs no base any more. Programs that have it mapped keep it.
// Nobody else may look at it afterwards.
func (a *Area) EndReplica() error { return a.EndReplicaLater()() }

// EndReplicaLater is EndReplica, but returns what frees the memory, which takes a while if there is much. Any goroutine may call it, at any time.
func (a *Area) EndReplicaLater() (free func() error) {
	if a.kept != nil {
		a.kept.record.Newest.Store(0)
	}
	for p := range a.twins {
		a.dropTwin(p)
	}
	a.dropNote()
	for e := range a.compared {
		a.WasCompared(e)
	}
	if a.demand != nil {
		a.demand.bases = nil
		return a.all("end replica", a.demand.closeLater(), a.working.leaveLater())
	}
	err := a.base.leaveFile()
	return a.all("end replica", func() error { return err }, a.working.leaveLater())
}

// all returns a function that calls all of some.
func (a *Area) all(op string, list ...func() error) func() error {
	return func() error {
		var all []error
		for _, f := range list {
			all = append(all, f())
		}
		return a.failed(op, errors.Join(all...))
	}
}

func (a *Area) fail(op string, err error) error {
	kind := errs.Other
	switch {
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC):
		kind = errs.NoSpace
	case errs.Is(err, errs.Busy):
		kind = errs.Busy
	}
	return &errs.Error{Op: "memory: " + op, Area: a.id, Kind: kind, Err: err}
}

// failed is fail if err is not nil.
func (a *Area) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return a.fail(op, err)
}

// wholePages rounds a size up to a whole number of pages.
func wholePages(size int64) int64 { return (size + dsm.PageSize - 1) &^ (dsm.PageSize - 1) }

// Resize changes the size. Bytes past a smaller end are freed in both copies and in every twin, and
// read zero if the area grows again. Which extents are homed here does not change. All page slices
// that were returned before become invalid. After an error the size is the old one and the caller
// must try again; bytes past the requested end may already be zero.
//
// What programs have written past the end of a file of a mount (see Extended) stays when the area grows.
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
	resize, length := a.working.resize, size
	if a.demand != nil {
		length = end // no program reads such a memfd as a file (access=direct), so its end need not be exact
		if err := a.demand.reserve(a.working.fd, end); err != nil {
			return a.fail("resize", err)
		}
	}
	if size < a.size {
		// Only the last page still has bytes past the end; resize drops the other pages.
		for _, c := range []*areaCopy{a.working, a.base} {
			if err := c.zero(size, min(end, c.len)); err != nil {
				return a.fail("resize", err)
			}
		}
		a.truncateTwins(size)
		a.truncateBases(size)
	} else if a.demand != nil {
		if err := a.working.zero(a.size, a.working.len); err != nil {
			return a.fail("resize", err)
		}
	} else if !a.working.sealed {
		had, err := a.working.end()
		if err != nil {
			return a.fail("resize", err)
		}
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
	if a.kept != nil {
		a.kept.record.Size.Store(max(a.kept.record.Size.Load(), uint64(size)))
	}
	return nil
}

// Extended returns the end of the working copy's file. It is more than Size if programs that have
// the file open (FUSE passthrough) have written past the end by write(2), which nobody reports. A
// Resize to it makes these bytes part of the area, Trim removes them.
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

// Trim removes what programs have written past the end.
func (a *Area) Trim() error {
	if a.demand != nil || a.working.sealed {
		return nil
	}
	if err := a.working.resize(a.size); err != nil {
		return a.fail("trim", err)
	}
	return nil
}

// Size returns the size in bytes.
func (a *Area) Size() int64 { return a.size }

// Close frees all memory. The Area and its Cached must not be used afterwards.
func (a *Area) Close() error { return a.CloseLater()() }

// CloseLater is Close as EndReplicaLater is EndReplica.
func (a *Area) CloseLater() (free func() error) {
	clear(a.twins)
	a.frames.close()
	a.kept.forget()
	defer a.kept.end()
	return a.all("close", a.demand.closeLater(), a.working.closeLater(), a.base.closeLater())
}

// Working returns page p as the node's programs see it. Bytes past the end of the area, in its last
// page, must stay zero. What attached programs store there is not part of the area, and becomes
// zero when the area grows. In an area on demand the page must be here: see NewDemandArea.
func (a *Area) Working(p dsm.PageIndex) []byte {
	a.checkHere(p, p+1)
	return a.working.page(p)
}

// ReadWorking copies bytes of the working copy from off on and returns how many: fewer than
// len(dst) at the end of the area, none past it. In an area on demand the pages must be here: see
// NewDemandArea.
func (a *Area) ReadWorking(dst []byte, off int64) int {
	if off < 0 || off >= a.size {
		return 0
	}
	end := min(off+int64(len(dst)), a.size)
	a.checkHere(dsm.PageIndex(off/dsm.PageSize), dsm.PageIndex(wholePages(end)/dsm.PageSize))
	return copy(dst, a.working.mem[off:end])
}

// ResidentBytes returns the memory that both copies, the twins and the copies in the ledger take
// now.
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
