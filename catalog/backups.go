package catalog

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

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

// bereave takes a member that is gone out of the rows. Where it was the home a backup takes over. If none can, the slot stays with it.
func bereave(v *dsm.View, gone dsm.NodeID) {
	for _, h := range v.Rows() {
		h.KeepBackups(func(b dsm.Backup) bool { return b.Node != gone })
		if h.Holder() == gone && !h.TakeOver(v) {
			h.Backups = [dsm.MostBackups]dsm.Backup{}
		}
	}
}

// A home's report on a backup of it. One on a row of which the home has not heard yet, or on a backup that has been put there, or taken out of
// sync, since, is stale and changes nothing. A backup that lags is filled anew, also if it was not in sync: a report that it is may be under way.
// Of a slot whose new home has died only its source decides, by a report on the handover: the new home may have served, so what the source has said
// of a backup before may not be true any more, and the backup may be the only one that has what the new home has acked.
func (o backupsOp) apply(s *state, st step) (dsm.Inode, error) {
	concerned := func(v *dsm.View, i dsm.Slot) *dsm.Backup {
		h := v.Row(i)
		if h == nil || o.Epoch < h.Epoch || st.node != h.Holder() && (o.InSync || st.node != h.Primary) {
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
	if h.Had > h.Epoch {
		return fail(errs.Corrupt, "slot %d: since when its holder has had all: %+v", slot, h)
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
