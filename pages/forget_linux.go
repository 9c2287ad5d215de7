package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// Forget gives back what the node has of extent e as a replica: its working bytes
// and its base, both of which read zero afterwards. The bytes of an extent that is homed here are the
// home's and stay.
func (a *Area) Forget(e dsm.ExtentIndex) error {
	from := int64(e) * dsm.ExtentSize
	to := min(from+dsm.ExtentSize, a.working.len)
	if err := a.working.zero(from, to); err != nil {
		return a.fail("forget", err)
	}
	if !a.Homed(e) {
		if err := a.base.zero(from, to); err != nil {
			return a.fail("forget", err)
		}
		return nil
	}
	for p := dsm.PageIndex(from / dsm.PageSize); int64(p)*dsm.PageSize < to && len(a.twins) > 0; p++ {
		a.dropTwin(p)
	}
	return nil
}
