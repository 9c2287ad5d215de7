package coherence

import (
	"errors"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// restoreLocked undoes what a program that has the memory did to its length: see pages.Area.Restore. It
// is called before each step of areas that programs have mapped, and takes a system call for each
// of their memories.
func (a *Area) restoreLocked() {
	if a.mu.replica.mapped == 0 || a.mu.mem == nil {
		return
	}
	r := &a.mu.replica
	var lost map[dsm.ExtentIndex]dsm.PageSet // mostly nothing is, and this runs in each step
	cut, err := a.mu.mem.Restore(func(p dsm.PageIndex) bool {
		e, i := p.Extent()
		if int(e) >= r.n || !a.extentLocked(e).have.Has(i) {
			return false
		}
		if r.bare && !a.mu.mem.Homed(e) { // it has no base
			if lost == nil {
				lost = make(map[dsm.ExtentIndex]dsm.PageSet)
			}
			set := lost[e]
			set.Add(i)
			lost[e] = set
			return false
		}
		return true
	})
	for _, e := range slices.Sorted(maps.Keys(lost)) {
		a.loseLocked(e, lost[e])
	}
	for _, d := range a.mu.drafts {
		c, e := d.mem.Restore()
		cut, err = cut || c, errors.Join(err, e)
	}
	if (cut || err != nil) && !a.mu.toldOfCut {
		a.mu.toldOfCut = true
		a.node.cfg.Log.Warn("a program has cut the memory of an area that it has attached; what it had not published of it is lost", "area", a.id, "err", err)
	}
}

// loseLocked takes note that pages on demand whose bytes nobody here has are not here any more: they come from their home again, when they are
// needed. What the kernel's page cache holds of them is good, but not known any more.
func (a *Area) loseLocked(e dsm.ExtentIndex, set dsm.PageSet) {
	r := &a.mu.replica
	x := a.extentLocked(e)
	for i := range set.All() {
		a.mu.cached.BeforeMerge(page(e, i))
	}
	a.mu.cached.Drop(e, set)
	x.have = x.have.Minus(set)
	a.mu.replica.setOutdated(x, x.outdated.Minus(set))
	r.units -= set.Len()
	a.sendLocked(a.rowLocked(e).Primary, &wire.Release{Stamp: a.stampLocked(), Extent: e, Pages: set})
	a.node.room.forget(a.id, e, set)
}
