package catalog

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// The row of a slot whose areas are to have copies names backups: members that keep what its home has. The catalog says who, the home fills
// them and reports which are in sync (backupsOp), and only what the catalog says counts: when the home dies, the entry that says so also makes
// a backup in sync the home (goneOp). So a backup that lacks anything never takes over.
//
// While a slot is handed over its backups stay as they are. Those in sync have what the source has, and that is frozen. The new primary can be
// one of them until it has everything: it still has its copy, and takes over if the source dies.

// copiesOf returns how many copies there are to be of a slot.
func (s *state) copiesOf(v *dsm.View, slot dsm.Slot) int {
	if slot < dsm.Slots {
		return dsm.CopiesOf(slot)
	}
	if in := s.inodes[dsm.Ino(v.Own[slot-dsm.Slots].Area)]; in != nil {
		return in.Spec.Copies()
	}
	return 1
}

// move returns the row of a slot that is to be handed over.
func move(v *dsm.View, row dsm.SlotHome, copies int, to dsm.NodeID) dsm.SlotHome {
	next := dsm.SlotHome{Primary: to, Source: row.Primary, Epoch: v.Epoch, Had: row.Epoch}
	if copies == 1 {
		return next
	}
	var backups, last []dsm.Backup
	for _, b := range row.Backups {
		switch {
		case b.Node == 0 || b.Node == to && !b.InSync:
		case b.Node == to || !b.InSync:
			last = append(last, b)
		default:
			backups = append(backups, b)
		}
	}
	if i := row.BackupOf(to); stays(v, row.Primary) || i >= 0 && row.Backups[i].InSync { // or else there would be a copy less
		backups = append(backups, dsm.Backup{Node: row.Primary, InSync: true, Since: v.Epoch})
	}
	slices.SortStableFunc(last, syncedFirst)
	copy(next.Backups[:], append(backups, last...))
	return next
}

// syncedFirst orders backups.
func syncedFirst(a, b dsm.Backup) int { return trueFirst(a.InSync, b.InSync) }

// trueFirst compares two values of which true comes first.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// arrived ends the handover of a slot: its primary has everything, or has to do without.
func arrived(h *dsm.SlotHome) {
	h.Source, h.Had = 0, 0
	keep(h, func(b dsm.Backup) bool { return b.Node != h.Primary })
}

// takeOver makes the first backup in sync the primary. It returns false if no backup can take over.
func takeOver(v *dsm.View, h *dsm.SlotHome) bool {
	for n := range h.InSync() {
		if !isGone(v, n) {
			*h = restarted(v, *h, n)
			return true
		}
	}
	return false
}

// restarted returns the row with another primary, which has everything. What was under way to the backups when the old primary died has reached some of them
// and not others. So they are filled anew. A backup that was in sync still has all that anybody has seen. It can take over until the new primary has heard of
// this: so nothing is lost if the new primary has died as well.
func restarted(v *dsm.View, h dsm.SlotHome, primary dsm.NodeID) dsm.SlotHome {
	next := dsm.SlotHome{Primary: primary, Epoch: v.Epoch, Backups: h.Backups}
	keep(&next, func(b dsm.Backup) bool { return b.Node != primary && !isGone(v, b.Node) })
	for i := range next.Backups {
		if b := &next.Backups[i]; b.Node != 0 {
			b.Former, b.Since = b.InSync, v.Epoch
		}
	}
	return next
}

// keep drops the other backups of a row.
func keep(h *dsm.SlotHome, which func(dsm.Backup) bool) {
	var kept [dsm.MostBackups]dsm.Backup
	n := 0
	for _, b := range h.Backups {
		if b.Node != 0 && which(b) {
			kept[n] = b
			n++
		}
	}
	h.Backups = kept
}

// bereave takes a member that is gone out of the rows. Where it was the home a backup takes over. If none can, the slot stays with it.
func bereave(v *dsm.View, gone dsm.NodeID) {
	for _, h := range v.Rows() {
		keep(h, func(b dsm.Backup) bool { return b.Node != gone })
		if stateAt(*h) == gone && !takeOver(v, h) {
			h.Backups = [dsm.MostBackups]dsm.Backup{}
		}
	}
}

// stateAt returns the node that has the state of a slot.
func stateAt(h dsm.SlotHome) dsm.NodeID {
	if h.Source != 0 {
		return h.Source
	}
	return h.Primary
}

// A home's report on a backup of it. One on a row of which the home has not heard yet, or on a backup that has been put there, or taken out of
// sync, since, is stale and changes nothing. A backup that lags is filled anew, also if it was not in sync: a report that it is may be under way.
// Of a slot whose new home has died only its source decides, by a report on the handover: the new home may have served, so what the source has said
// of a backup before may not be true any more, and the backup may be the only one that has what the new home has acked.
func (o backupsOp) apply(s *state, st step) (dsm.Inode, error) {
	concerned := func(v *dsm.View, i dsm.Slot) *dsm.Backup {
		h := v.Row(i)
		if h == nil || o.Epoch < h.Epoch || st.node != stateAt(*h) && (o.InSync || st.node != h.Primary) {
			return nil
		}
		if h.Failed(v) {
			return nil
		}
		at := h.BackupOf(o.Node)
		if at < 0 || o.Epoch < h.Backups[at].Since || o.InSync && h.Backups[at].InSync {
			return nil
		}
		return &h.Backups[at]
	}
	slots := slices.DeleteFunc(slices.Clone(o.Slots), func(i dsm.Slot) bool { return concerned(s.view, i) == nil })
	if len(slots) == 0 {
		return dsm.Inode{}, nil
	}
	s.reviewed(func(v *dsm.View) {
		for _, i := range slots {
			if b := concerned(v, i); b != nil && o.InSync {
				b.InSync = true
			} else if b != nil {
				b.InSync, b.Former, b.Since = false, false, v.Epoch
			}
		}
	})
	return dsm.Inode{}, nil
}

// checkBackups returns what is wrong with the backups of a row, or nil. An area that was removed has its slot until the next view.
func (s *state) checkBackups(slot dsm.Slot, h dsm.SlotHome) error {
	if h.Source == 0 && h.Had != 0 || h.Had > h.Epoch {
		return fail(errs.Corrupt, "slot %d: when its source became its home: %+v", slot, h)
	}
	removed := slot >= dsm.Slots && s.inodes[dsm.Ino(s.view.Own[slot-dsm.Slots].Area)] == nil
	if !removed && h.Source == 0 && h.Backups[0].Node != 0 && s.copiesOf(s.view, slot) == 1 {
		return fail(errs.Corrupt, "slot %d is to have no copies: %+v", slot, h)
	}
	for i, b := range h.Backups {
		m, ok := s.view.Member(b.Node)
		switch {
		case b == dsm.Backup{} && (i == dsm.MostBackups-1 || h.Backups[i+1] == dsm.Backup{}):
		case !ok || m.Gone || h.BackupOf(b.Node) != i || b.Since > s.view.Epoch || b.Former && (!b.InSync || h.Source != 0) || b.Node == h.Primary && h.Source == 0:
			return fail(errs.Corrupt, "slot %d: backup %d of %+v", slot, i, h)
		}
	}
	return nil
}
