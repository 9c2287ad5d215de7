package coherence

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// wants are the extents that are to be published, by home, in the order in which that was
// requested. An extent that cannot be published yet, because a publication of it is under way or
// its stores wait for pages, is in no queue; it is queued again when that has changed.
type wants map[dsm.NodeID][]dsm.ExtentIndex

// queued returns which homes have extents in their queues: this node, or the others.
func (w wants) queued(self dsm.NodeID, here bool) (homes []dsm.NodeID) {
	for id := range w {
		if (id == self) == here {
			homes = append(homes, id)
		}
	}
	slices.Sort(homes)
	return homes
}

// drop removes the first extent, which is x, from a queue.
func (w wants) drop(home dsm.NodeID, x *replicaExtent) {
	if x != nil {
		x.queued = false
	}
	if w[home] = w[home][1:]; len(w[home]) == 0 {
		delete(w, home)
	}
}

// wantLocked queues an extent to be published.
func (a *Area) wantLocked(e dsm.ExtentIndex, x *replicaExtent) {
	x.wanted = true
	a.busyLocked(e, x)
	if x.queued || a.deadHomeLocked(a.slotLocked(e)) != 0 {
		return
	}
	x.queued = true
	home := a.rowLocked(e).Primary
	a.mu.replica.wants[home] = append(a.mu.replica.wants[home], e)
}

// nextWantedLocked returns the first extent in a queue that can be published, nil if there is none.
func (a *Area) nextWantedLocked(home dsm.NodeID) (dsm.ExtentIndex, *replicaExtent) {
	r := &a.mu.replica
	for len(r.wants[home]) > 0 {
		e := r.wants[home][0]
		if int(e) >= r.n {
			r.wants.drop(home, nil) // it was truncated
			continue
		}
		x := a.extentLocked(e)
		if x.wanted && x.pub == nil && !a.partsVoidLocked(x) && !a.mu.absence.has(e) && !(x.dirty.Empty() && len(x.stash) > 0) && a.deadHomeLocked(a.slotLocked(e)) == 0 {
			return e, x
		}
		r.wants.drop(home, x)
	}
	return 0, nil
}

// partsVoidLocked reports whether parts of an extent were made by earlier rules, and the home has not answered that it refuses them, or had merged
// them before. Nothing is published until it has: the ack of what is published by the rules of now does not say which of the two it is. For lack of
// credit the parts may be sent to another home after it.
func (a *Area) partsVoidLocked(x *replicaExtent) bool {
	return slices.ContainsFunc(x.parts, func(part *publication) bool { return part.stamp.Gen < a.mu.ino.Gen })
}

// wantsMovedLocked moves every extent to the queue of its home in the new view.
func (a *Area) wantsMovedLocked() {
	r := &a.mu.replica
	old := r.wants
	r.wants = make(wants)
	for _, home := range slices.Sorted(maps.Keys(old)) {
		for _, e := range old[home] {
			if int(e) < r.n && a.extentLocked(e).queued {
				a.extentLocked(e).queued = false
				a.wantLocked(e, a.extentLocked(e))
			}
		}
	}
}
