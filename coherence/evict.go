package coherence

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// forgetAllButLocked frees base bytes of pages that are not here, for an extent whose home this node is
// not any more. They may be bytes that no other node has: if they come as zeroes, or this node becomes the home again, they must be zero.
func (a *Area) forgetAllButLocked(e dsm.ExtentIndex) {
	var keep dsm.PageSet
	if r := &a.mu.replica; int(e) < r.n {
		keep = a.extentLocked(e).have
	}
	if err := a.mu.mem.KeepBase(e, keep); err != nil {
		a.node.cfg.Log.Error("memory is not given back", "area", a.id, "extent", e, "err", err)
	}
}

// eviction is the outcome of trying to evict pages. Pages in none of its sets are in use.
type eviction struct {
	gone    dsm.PageSet
	leaving dsm.PageSet // they leave when the kernel's page cache has dropped them, which it nearly always does
	dirty   dsm.PageSet // something must be published first, and no publication of it is under way
}

// evictLocked evicts those pages of a set that nothing needs. hard also evicts pages that should rather
// stay.
func (a *Area) evictLocked(e dsm.ExtentIndex, set dsm.PageSet, hard bool) (v eviction) {
	var free dsm.PageSet
	if free, v.dirty = a.evictableLocked(e, set, hard); free.Empty() {
		return v
	}
	now := a.mu.cached.Drop(e, free)
	v.leaving = free.Minus(now)
	v.gone = a.giveUpLocked(e, now)
	return v
}

// evictableLocked returns the pages that may leave, and those that a publication would make clean. All must be here.
func (a *Area) evictableLocked(e dsm.ExtentIndex, set dsm.PageSet, hard bool) (free, dirty dsm.PageSet) {
	r := &a.mu.replica
	if !r.demand || !r.subscribed || a.node.keeps.Load() || int(e) >= r.n {
		return free, dirty
	}
	x := a.extentLocked(e)
	free = set.And(x.have).And(a.withinLocked(e))
	dirty = free.And(x.dirty)
	free = free.Minus(dirty)
	if x.pub != nil { // its ack has callers that wait for room look again
		free = free.Minus(x.pub.sent)
	}
	for _, pub := range x.parts { // likewise
		free = free.Minus(pub.pages)
	}
	for _, s := range r.staying {
		if s.off < (int64(e)+1)*dsm.ExtentSize && s.off+int64(s.n) > int64(e)*dsm.ExtentSize {
			free = free.Minus(pagesOf(e, s.off, s.n))
		}
	}
	if a.defersLocked() && !hard {
		free = free.Minus(x.outdated)
	}
	return free, dirty
}

// giveUpLocked evicts clean pages that the page cache does not have, and returns them. A page to which a
// program has stored at the last moment stays.
func (a *Area) giveUpLocked(e dsm.ExtentIndex, p dsm.PageSet) (gone dsm.PageSet) {
	if p.Empty() {
		return p
	}
	r := &a.mu.replica
	x := a.extentLocked(e)
	stored, err := a.mu.mem.Evict(a.mu.kernel, e, p, a.sharedLocked())
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
	x.have = x.have.Minus(gone)
	a.mu.replica.setOutdated(x, x.outdated.Minus(gone))
	r.units -= gone.Len()
	if !gone.Empty() {
		a.sendLocked(a.rowLocked(e).Primary, &wire.Release{Stamp: a.stampLocked(), Extent: e, Pages: gone})
		a.node.room.forget(a.id, e, gone)
		a.node.stats.pagesEvicted.Add(uint64(gone.Len()))
	}
	return gone
}

// droppedLocked evicts pages that the kernel has dropped for this purpose.
func (a *Area) droppedLocked(e dsm.ExtentIndex, out dsm.PageSet) {
	if !a.mu.replica.demand {
		return
	}
	a.mu.cleaner = true // even if they stay because somebody used them: then others must leave
	free, _ := a.evictableLocked(e, out, true)
	a.giveUpLocked(e, free)
}
