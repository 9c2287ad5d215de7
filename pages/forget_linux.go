package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// Forget frees what the node has of extent e as a replica: its working bytes and its base, which
// then read zero. If the extent is homed here its base bytes are the home's, and stay.
func (a *Area) Forget(e dsm.ExtentIndex) error {
	a.demand.release(e, dsm.AllPages)
	from := int64(e) * dsm.ExtentSize
	to := min(from+dsm.ExtentSize, a.working.len)
	if err := a.working.free(from, to); err != nil {
		return a.fail("forget", err)
	}
	if !a.Homed(e) {
		if err := a.base.free(from, to); err != nil {
			return a.fail("forget", err)
		}
		return nil
	}
	for p := dsm.PageIndex(from / dsm.PageSize); int64(p)*dsm.PageSize < to && len(a.twins) > 0; p++ {
		a.dropTwin(p)
	}
	return nil
}

// FreeZeroed frees the memory of pages of extent e that are zero in the working copy and in the base, and read
// zero without it. The area is not one on demand, nor Sealed.
func (a *Area) FreeZeroed(e dsm.ExtentIndex, set dsm.PageSet) error {
	for first, end := range set.Runs() {
		from := int64(pageOfExtent(e, first)) * dsm.PageSize
		to := min(from+int64(end-first)*dsm.PageSize, a.working.len)
		if err := a.working.free(from, to); err != nil {
			return a.fail("free", err)
		}
		if !a.Homed(e) {
			if err := a.base.free(from, to); err != nil {
				return a.fail("free", err)
			}
		}
	}
	return nil
}
