package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Which slot an extent is in is up to the spec of the area, and to the view: it may give an area a slot of its own, in which those
// extents are that live together. It does so once, when nothing of the area is being handed over, and not
// while the area lives is the slot taken back: only then could a message from before pass for one from after.

// areaSlots is how many slots an area can have extents in: the shared ones, and one of its own.
const areaSlots = dsm.Slots + 1

// slotIndex returns the place of a slot in what an area keeps for each.
func slotIndex(s dsm.Slot) int { return min(int(s), dsm.Slots) }

// slotLocked returns the slot of an extent in the view that the area acts on.
func (a *Area) slotLocked(e dsm.ExtentIndex) dsm.Slot {
	if a.mu.own != 0 && a.mu.ino.Spec.Together(e) {
		return a.mu.own
	}
	return a.mu.ino.Spec.SlotOf(a.id, e)
}

// slotAtLocked is the inverse of slotIndex. It returns false for the area's own slot if it has none.
func (a *Area) slotAtLocked(i int) (dsm.Slot, bool) {
	if i == dsm.Slots {
		return a.mu.own, a.mu.own != 0
	}
	return dsm.Slot(i), true
}

// hasSlotLocked reports whether there is such a slot, and no other area has it to itself.
func (a *Area) hasSlotLocked(s dsm.Slot) bool { return int(s) < dsm.Slots || s == a.mu.own }

// coveringLocked returns how many of the first extents of the area have all its slots.
func (a *Area) coveringLocked() int { return a.mu.ino.Spec.CoveringExtents(a.mu.ino.Size) }

// placedLocked follows a view that gives the area a slot of its own; own is 0 if it has none. An extent without a state of its own takes over what the replica
// knew of the shared slot in which the extent was before.
func (a *Area) placedLocked(own dsm.Slot) {
	first := own != 0 && a.mu.own == 0
	a.mu.own = own
	a.oustedLocked()
	if !first {
		return
	}
	r, shared := &a.mu.replica, a.mu.ino.Spec.SlotOf(a.id, 0)
	r.slots.put(dsm.Slots, r.slots.at(int(shared)))
	if r.slots.asked.has(int(shared)) && !slices.Contains(a.slotsLocked(0), shared) {
		a.leaveSlotLocked(shared)
	}
}

// leaveSlotLocked ends the subscription to a slot in which the area has no extents, so that no open depends on its home. If the area grows
// into it, it is subscribed to anew. replicaViewChangedLocked follows.
func (a *Area) leaveSlotLocked(s dsm.Slot) {
	a.mu.replica.slots.put(slotIndex(s), slotState{})
	if home := a.mu.view.Row(s).Primary; !slices.Contains(a.subscribedHomesLocked(), home) { // an Unsubscribe ends all that the home has
		a.sendLocked(home, &wire.Unsubscribe{Stamp: a.stampLocked()})
	}
}

// movedLocked reports whether the slot has another home than in the view old, or the same one after
// others may have been its home in between.
func (a *Area) movedLocked(old *dsm.View, s dsm.Slot) bool {
	was, is := old.Row(s), a.mu.view.Row(s)
	if int(s) >= dsm.Slots && old.Placed(a.id) != s {
		return true
	}
	return was.Primary != is.Primary || was.Epoch != is.Epoch
}

// movedSlotsLocked returns the slots that movedLocked is about. The area's own slot counts as one if it has none.
func (a *Area) movedSlotsLocked(old *dsm.View) (in slotBits) {
	for i := range areaSlots {
		s, ok := a.slotAtLocked(i)
		in.put(i, !ok || a.movedLocked(old, s))
	}
	return in
}

// changedSlotsLocked returns the slots whose rows are not the same as in the view old; all of them if extents of the area are in others than before. Most
// views are about slots of others: then no extent of the area is concerned.
func (a *Area) changedSlotsLocked(old *dsm.View) (in slotBits) {
	placed := old.Placed(a.id) != a.mu.view.Placed(a.id)
	for i := range areaSlots {
		s, ok := a.slotAtLocked(i)
		in.put(i, placed || ok && *old.Row(s) != *a.mu.view.Row(s))
	}
	return in
}

// replaced reports whether extents of an area are in other slots than before, not only by a view.
func replaced(old, now dsm.Inode) bool {
	return now.Spec.Placement != old.Spec.Placement && !(old.Spec.OneHome(old.Size) && now.Spec.OneHome(now.Size))
}

// resignOthersLocked frees the home copies of extents that have another home now. Those of the area are empty then: only such an
// area can be placed anew but by a view. So are extents past the end, which detours are about.
func (a *Area) resignOthersLocked() {
	for e := range a.mu.home.extents {
		if row := a.rowLocked(e); !a.isSelf(row.Primary) && !a.isSelf(row.Source) {
			a.resignLocked(e)
		}
	}
}
