package coherence

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// forgetAllBut gives back the base bytes of pages that are not here, of an extent that this
// node is the home of no more.
func (a *Area) forgetAllBut(e dsm.ExtentIndex) {
	var keep dsm.PageSet
	if r := &a.mu.replica; int(e) < len(r.extents) {
		keep = r.extents[e].have
	}
	if err := a.mu.mem.KeepBase(e, keep); err != nil {
		a.node.cfg.Log.Error("memory is not given back", "area", a.id, "extent", e, "err", err)
	}
}

// eviction is what became of pages that were to go. Of the others something is in use.
type eviction struct {
	gone    dsm.PageSet
	leaving dsm.PageSet // follow when the kernel's page cache has dropped them, as most of them do
	dirty   dsm.PageSet // have something to publish first
}

// evict gives up those pages of a set that nothing needs. hard takes pages too that would better stay.
func (a *Area) evict(e dsm.ExtentIndex, set dsm.PageSet, hard bool) (v eviction) {
	var free dsm.PageSet
	if free, v.dirty = a.evictable(e, set, hard); free.Empty() {
		return v
	}
	now := a.mu.cached.Drop(e, free)
	v.leaving = free.Minus(now)
	v.gone = a.giveUp(e, now)
	return v
}

// evictable splits pages that are here into those that may go, and those with something
// to publish first.
func (a *Area) evictable(e dsm.ExtentIndex, set dsm.PageSet, hard bool) (free, dirty dsm.PageSet) {
	r := &a.mu.replica
	if !r.demand || !r.subscribed || a.node.keeps.Load() || int(e) >= len(r.extents) {
		return free, dirty
	}
	x := r.extents[e]
	free = set.And(x.have).And(a.within(e))
	dirty = free.And(x.dirty)
	if x.pub != nil {
		dirty = dirty.Or(free.And(x.pub.sent))
	}
	free = free.Minus(dirty)
	if a.holding() && !hard {
		free = free.Minus(x.behind)
	}
	return free, dirty
}

// giveUp gives up clean pages that the kernel does not hold, and returns them. A page
// that a program has stored to at the last moment stays.
func (a *Area) giveUp(e dsm.ExtentIndex, p dsm.PageSet) (gone dsm.PageSet) {
	if p.Empty() {
		return p
	}
	r := &a.mu.replica
	x := r.extents[e]
	stored, err := a.mu.mem.Evict(a.mu.kernel, e, p, a.shared())
	switch {
	case err == nil:
	case !errs.Is(err, errs.Busy):
		a.node.cfg.Log.Error("evict pages", "area", a.id, "extent", e, "err", err)
	case !r.stuck:
		r.stuck = true
		a.node.cfg.Log.Warn("pages cannot be evicted as long as programs have the area attached", "area", a.id, "extent", e, "err", err)
	}
	gone = p.Minus(stored)
	a.dirtyLocked(e, x, stored)
	x.have, x.behind = x.have.Minus(gone), x.behind.Minus(gone)
	r.units -= gone.Len()
	if !gone.Empty() {
		a.send(a.row(e).Primary, &wire.Release{Stamp: a.stamp(), Extent: e, Pages: gone})
		a.node.room.forget(a.id, e, gone)
		a.node.stats.pagesEvicted.Add(uint64(gone.Len()))
	}
	return gone
}

// dropped gives up pages that the kernel has dropped for that.
func (a *Area) dropped(e dsm.ExtentIndex, out dsm.PageSet) {
	if !a.mu.replica.demand {
		return
	}
	a.mu.cleaner = true // also if they stay, because somebody used them: others have to go
	free, _ := a.evictable(e, out, true)
	a.giveUp(e, free)
}
