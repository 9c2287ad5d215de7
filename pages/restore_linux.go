package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// A program that may write an area has a descriptor of its memory, and so can cut it with
// ftruncate. This process would then get SIGBUS. Restore is called before memory is touched; a cut
// while the memory is being touched is still fatal.

// Restore makes the working copy as long as the area again if a program has cut it, and reports
// whether one has. Pages for which here is true get the bytes of the base: stores that were not
// published are lost. In an area on demand the other pages have no memory afterwards.
func (a *Area) Restore(here func(p dsm.PageIndex) bool) (cut bool, err error) {
	had, err := a.working.end()
	if err != nil || had >= a.size {
		return false, a.failed("restore", err)
	}
	fill := func(off, n int64) {
		for p := dsm.PageIndex(off / dsm.PageSize); int64(p)*dsm.PageSize < off+n; p++ {
			if here(p) {
				kept := min(max(had-int64(p)*dsm.PageSize, 0), dsm.PageSize)
				copy(a.working.page(p)[kept:], a.Base(p)[kept:])
			}
		}
	}
	from := had &^ (dsm.PageSize - 1)
	if a.demand != nil {
		if err := a.working.resize(wholePages(a.size)); err != nil {
			return true, a.fail("restore", err)
		}
		fill(from, a.working.len-from)
		if p := dsm.PageIndex(from / dsm.PageSize); from < had && !here(p) { // cut in the middle
			e, i := p.Extent()
			_, err := a.working.punch(e, dsm.Range(i, i+1))
			return true, a.failed("restore", err)
		}
		return true, nil
	}
	if err := a.working.extend(a.size); err != nil {
		return true, a.fail("restore", err)
	}
	return true, a.failed("restore", a.base.data(from, a.base.len-from, fill))
}

// failed is fail if err is not nil.
func (a *Area) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return a.fail(op, err)
}

// Restore is Area.Restore for the draft.
func (d *Draft) Restore() (cut bool, err error) {
	had, err := d.memory.end()
	if err != nil || had >= d.size {
		return false, err
	}
	if err := d.memory.extend(d.size); err != nil {
		return true, err
	}
	from := had &^ (dsm.PageSize - 1)
	return true, d.base.data(from, d.base.len-from, func(off, n int64) {
		for p := dsm.PageIndex(off / dsm.PageSize); int64(p)*dsm.PageSize < off+n; p++ {
			kept := min(max(had-int64(p)*dsm.PageSize, 0), dsm.PageSize)
			copy(d.memory.page(p)[kept:], d.base.page(p)[kept:])
		}
	})
}
