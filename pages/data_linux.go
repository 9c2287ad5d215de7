package pages

import (
	"errors"
	"os"
)

// DataRanges calls f for the parts of [off, off+n) of the working copy that take memory. The rest
// was never touched, or was freed, and is zero. It does not touch any page.
func (a *Area) DataRanges(off, n int64, f func(off, n int64)) error {
	if err := a.working.data(off, n, f); err != nil {
		return a.fail("seek", err)
	}
	return nil
}

// data calls f for the parts of [off, off+n) that take memory. It does not touch any page.
func (c *areaCopy) data(off, n int64, f func(off, n int64)) error {
	end := min(off+n, c.len)
	if c.fd < 0 {
		c.anonymousData(off, end, f)
		return nil
	}
	return c.fileData(off, end, f)
}

// OpenWorking opens the memfd of the working copy again for a program of this node, with a file
// offset of its own and, unless write, read-only. The caller closes it. A working copy that was not
// a memfd becomes one; then page slices that were returned before are invalid. With write it is Sealed
// from now on: no program can change its length.
func (a *Area) OpenWorking(write bool) (*os.File, error) {
	f, err := a.working.open(write)
	if err == nil && a.demand != nil {
		if err = a.demand.reserve(a.working.fd, a.working.len); err != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, a.fail("open", err)
	}
	return f, nil
}

// Sealed reports whether programs have, or have had, descriptors of the working copy for writing. Then its
// file is longer than the area.
func (a *Area) Sealed() bool { return a.working.sealed }

// Unshare gives a working copy that is Sealed memory of its own. It is called when no program has it. Page
// slices that were returned before are invalid. The area is not one on demand.
func (a *Area) Unshare() error {
	if !a.working.sealed || a.demand != nil || a.outlives() { // no file of a held mount is direct
		return nil
	}
	return a.failed("unshare", a.working.unshare())
}

// DropPast returns what frees the memory that programs have past the last page of the area, where it had more before, or where they have stored. Until that is over, Resize to
// more than the size of now may be errs.Busy. nil: nothing is to be done.
func (a *Area) DropPast() Drop { return a.working.droppingPast() }

// DropPast is Area.DropPast for the draft.
func (d *Draft) DropPast() Drop { return d.memory.droppingPast() }
