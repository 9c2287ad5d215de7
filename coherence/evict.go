package coherence

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// forgetAllBut frees base bytes of pages that are not here, for an extent whose home this node is
// not any more.
func (a *Area) forgetAllBut(e dsm.ExtentIndex) {
	var keep dsm.PageSet
	if r := &a.mu.replica; int(e) < r.n {
		keep = a.extent(e).have
	}
	if err := a.mu.mem.KeepBase(e, keep); err != nil {
		a.node.cfg.Log.Error("memory is not given back", "area", a.id, "extent", e, "err", err)
	}
}

// eviction is the outcome of trying to evict pages. Pages in none of its sets are in use.
type eviction struct {
	gone    dsm.PageSet
	leaving dsm.PageSet // they leave when the kernel's page cache has dropped them, which it nearly always does
	dirty   dsm.PageSet // something must be published first
}

// evict evicts those pages of a set that nothing needs. hard also evicts pages that should rather
// stay.
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

// evictable returns the pages that may leave, and those with something to publish first. All must
// be here.
func (a *Area) evictable(e dsm.ExtentIndex, set dsm.PageSet, hard bool) (free, dirty dsm.PageSet) {
	r := &a.mu.replica
	if !r.demand || !r.subscribed || a.node.keeps.Load() || int(e) >= r.n {
		return free, dirty
	}
	x := a.extent(e)
	free = set.And(x.have).And(a.within(e))
	dirty = free.And(x.dirty)
	if x.pub != nil {
		dirty = dirty.Or(free.And(x.pub.sent))
	}
	free = free.Minus(dirty)
	for _, s := range r.staying {
		if s.off < (int64(e)+1)*dsm.ExtentSize && s.off+int64(s.n) > int64(e)*dsm.ExtentSize {
			free = free.Minus(pagesOf(e, s.off, s.n))
		}
	}
	if a.holding() && !hard {
		free = free.Minus(x.behind)
	}
	return free, dirty
}

// giveUp evicts clean pages that the page cache does not have, and returns them. A page to which a
// program has stored at the last moment stays.
func (a *Area) giveUp(e dsm.ExtentIndex, p dsm.PageSet) (gone dsm.PageSet) {
	if p.Empty() {
		return p
	}
	r := &a.mu.replica
	x := a.extent(e)
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

// dropped evicts pages that the kernel has dropped for this purpose.
func (a *Area) dropped(e dsm.ExtentIndex, out dsm.PageSet) {
	if !a.mu.replica.demand {
		return
	}
	a.mu.cleaner = true // even if they stay because somebody used them: then others must leave
	free, _ := a.evictable(e, out, true)
	a.giveUp(e, free)
}
