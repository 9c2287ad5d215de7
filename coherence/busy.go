package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// busy lists the few extents of a replica in which something is going on, so that no call needs to
// look at all extents. An extent is added when stores, a Fetch or a publication begin in it, and
// removed when a walk over the list finds it idle.
type busy struct {
	extents map[dsm.ExtentIndex]struct{}
	full    []dsm.ExtentIndex // extents that became dirty from end to end
	untold  []dsm.ExtentIndex // extents with pages that the ledger was not told of
}

// dirtyLocked records stores to pages of an extent.
func (a *Area) dirtyLocked(e dsm.ExtentIndex, x *replicaExtent, p dsm.PageSet) {
	if p.Empty() {
		return
	}
	was := x.dirty
	x.dirty = x.dirty.Or(p)
	a.busyLocked(e, x)
	if x.dirty == dsm.AllPages && was != x.dirty {
		a.mu.replica.busy.full = append(a.mu.replica.busy.full, e)
	}
}

// busyLocked adds an extent to the list.
func (a *Area) busyLocked(e dsm.ExtentIndex, x *replicaExtent) {
	if x.busy {
		return
	}
	b := &a.mu.replica.busy
	if b.extents == nil {
		b.extents = make(map[dsm.ExtentIndex]struct{})
	}
	x.busy = true
	b.extents[e] = struct{}{}
}

// idle reports whether nothing is going on in an extent.
func (x *replicaExtent) idle() bool {
	return x.dirty.Empty() && x.asked.Empty() && len(x.stash) == 0 && x.pub == nil && len(x.parts) == 0 && !x.wanted
}

// busyExtentsLocked returns the extents in which something is going on, in order.
func (a *Area) busyExtentsLocked() []dsm.ExtentIndex {
	r := &a.mu.replica
	list := make([]dsm.ExtentIndex, 0, len(r.busy.extents))
	for e := range r.busy.extents {
		switch {
		case r.extents[e] == nil: // it was truncated
			delete(r.busy.extents, e)
		case r.extents[e].idle():
			r.extents[e].busy = false
			delete(r.busy.extents, e)
		default:
			list = append(list, e)
		}
	}
	slices.Sort(list)
	return list
}
