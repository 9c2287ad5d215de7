package coherence

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// covered is the extents of a slot that a backup is told of while it is being filled.
type covered struct {
	fill    uint64
	extents map[dsm.ExtentIndex]struct{}
}

// covers reports whether the backup is told of an extent in a fill of its slot.
func (b *backup) covers(s dsm.Slot, e dsm.ExtentIndex, fill uint64) bool {
	c := b.covered[s]
	if c == nil || c.fill != fill {
		return false
	}
	_, ok := c.extents[e]
	return ok
}

// coverLocked has a backup be told of extents of a slot from now on, if the slot is being filled there. It returns false if it is not.
func (a *Area) coverLocked(b *backup, s dsm.Slot, fill uint64, extents ...dsm.ExtentIndex) bool {
	c := b.covered[s]
	if c == nil || c.fill != fill {
		if !a.node.fills.cover(copyOf{s, b.id}, fill, a) {
			return false
		}
		if b.covered == nil {
			b.covered = make(map[dsm.Slot]*covered)
		}
		c = &covered{fill, make(map[dsm.ExtentIndex]struct{})}
		b.covered[s] = c
	}
	for _, e := range extents {
		c.extents[e] = struct{}{}
	}
	return true
}

// dueSlotsLocked returns those slots of which the area has to tell something later, because it cannot yet take over what is due.
func (a *Area) dueSlotsLocked(in map[dsm.Slot]uint64) map[dsm.Slot]uint64 {
	if !a.dueLocked() {
		return nil
	}
	due := make(map[dsm.Slot]uint64)
	add := func(e dsm.ExtentIndex) {
		if s := a.slotLocked(e); in[s] != 0 {
			due[s] = in[s]
		}
	}
	for e := range a.mu.home.extents {
		add(e)
	}
	for e := range a.mu.standby.extents {
		add(e)
	}
	return due
}

// fillLocked tells a backup all that this node has of slots. What their fills wait for passes when it has acked that.
func (a *Area) fillLocked(to dsm.NodeID, in map[dsm.Slot]uint64) {
	has, set := make(map[dsm.Slot][]dsm.ExtentIndex), a.slotSetLocked(maps.Keys(in))
	for _, e := range inSlotsLocked(a, a.mu.home.extents, a.mu.home.below, &set) {
		has[a.slotLocked(e)] = append(has[a.slotLocked(e)], e)
	}
	first := a.slotLocked(0)
	if newest, _ := a.newestLocked(); a.versionedLocked() && newest.Version > 0 && in[first] != 0 {
		has[first] = append(has[first], 0)
	}
	if len(has) == 0 {
		return
	}
	c := a.copiesLocked()
	c.index++
	b := c.backup(to)
	for _, s := range slices.Sorted(maps.Keys(has)) {
		if !a.coverLocked(b, s, in[s], has[s]...) {
			continue
		}
		m := a.fillMarkLocked(to, s, in[s])
		if a.versionedLocked() {
			m.left++
			a.copyAllLocked(b, update{index: c.index, marks: []*mark{m}})
			continue
		}
		for _, e := range has[s] {
			m.left++
			a.copyDueLocked(b, a.firstLocked(b, &update{extent: e, index: c.index, marks: []*mark{m}}))
		}
	}
	a.pumpCopiesLocked(to)
}

// fillMarkLocked returns a mark of what the fill of a slot waits for.
func (a *Area) fillMarkLocked(to dsm.NodeID, s dsm.Slot, fill uint64) *mark {
	in, f := map[dsm.Slot]uint64{s: fill}, &a.node.fills
	f.postpone(to, in)
	return &mark{done: func() { f.pass(to, in) }}
}

// followedByLocked has what the fills of slots wait for pass when a backup has acked all that is under way to it.
func (a *Area) followedByLocked(to dsm.NodeID, in map[dsm.Slot]uint64) {
	if b := a.backupLocked(to); b != nil {
		a.markAllLocked(b, in, false)
		for x := range b.changed.all() {
			if in[a.slotLocked(x.extent)] != 0 {
				b.changed.remove(x)
				b.due.add(x)
			}
		}
		a.pumpCopiesLocked(to)
	}
}

// joinLocked has outputs wait for a backup of slots that has joined. What their fills wait for passes when it has acked all that is under way to it.
func (a *Area) joinLocked(to dsm.NodeID, in map[dsm.Slot]uint64) {
	b := a.backupLocked(to)
	if b == nil {
		return
	}
	a.markAllLocked(b, in, true)
	for s := range in {
		delete(b.covered, s)
	}
}

// markAllLocked has the fills of slots wait for all that is under way to a backup, and outputs too if they are to.
func (a *Area) markAllLocked(b *backup, in map[dsm.Slot]uint64, waits bool) {
	marks := make(map[dsm.Slot]*mark)
	for x := range b.all() {
		told, waited := a.backupForLocked(b.id, x.extent)
		if !told || waits && !waited || in[a.slotLocked(x.extent)] == 0 {
			continue
		}
		a.setWaitsLocked(b, x, x.waits || waits)
		m := marks[x.slot]
		if m == nil {
			m = a.fillMarkLocked(b.id, x.slot, in[x.slot])
			marks[x.slot] = m
		}
		m.left++
		x.marks = append(x.marks, m)
	}
}
