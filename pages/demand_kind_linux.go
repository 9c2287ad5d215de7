package pages

import (
	"errors"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Demand reports whether the area is on demand.
func (a *Area) Demand() bool { return a.demand != nil }

// SetDemand makes an empty area one on demand, or one of which every page is here. No program may have
// mapped it.
func (a *Area) SetDemand(on bool) error {
	if a.size > 0 {
		panic("the kind of an area with bytes does not change")
	}
	if on == a.Demand() {
		return nil
	}
	err := a.demand.close()
	if a.kept != nil { // what comes is in the Keep, or is not any more
		a.kept.record.Newest.Store(0)
		err = errors.Join(err, a.working.close(), a.base.close())
	}
	if a.demand = nil; on {
		a.demand = &demand{none: missing()}
	}
	a.placeCopies()
	return err
}

// placeCopies says where the copies have what memory they take from now on.
func (a *Area) placeCopies() {
	a.working.filed, a.base.filed = !a.Outlives(), a.demand != nil && !a.Outlives()
	a.working.holes = a.demand != nil
	a.working.kept, a.working.at, a.base.kept, a.base.at = nil, nil, nil, nil
	if a.Outlives() {
		a.working.kept, a.working.at = a.kept, &a.kept.record.Working
		a.base.kept, a.base.at = a.kept, &a.kept.record.Base
	}
}

// Hole reports whether page p is a hole of the working copy.
func (a *Area) Hole(p dsm.PageIndex) bool { return !a.working.has(p, p+1) }

// isHere reports whether page p may be looked at. Only in an area on demand a page may be missing.
func (a *Area) isHere(p dsm.PageIndex) bool { return a.demand == nil || a.working.takes(p) }

// Refill puts a page of zeroes where a program has made page p, which was here, a hole. Making a hole
// counts as storing zeroes.
func (a *Area) Refill(p dsm.PageIndex) error {
	if _, err := a.fill(p, zeroPage); err != nil && !errs.Is(err, errs.Exist) {
		return a.fail("refill", err)
	}
	return nil
}
