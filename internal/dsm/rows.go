package dsm

import "slices"

// How the row of a slot changes. It names backups: members that keep what its home has. The catalog says who, the home fills them and reports which are in sync,
// and only what the catalog says counts: when the home dies, the entry that says so also makes a backup in sync the home. So a backup that lacks anything never takes over.
//
// While a slot is handed over its backups stay as they are. Those in sync have what the source has, and that is frozen. The new primary can be one of them until it has
// everything: it still has its copy, and takes over if the source dies.

// Holder returns the node that has the state of the slot.
func (h *SlotHome) Holder() NodeID {
	if h.Source != 0 {
		return h.Source
	}
	return h.Primary
}

// MovedTo returns the row of a slot that is to be handed over, and to have so many copies.
func (h *SlotHome) MovedTo(v *View, copies int, to NodeID) SlotHome {
	next := SlotHome{Primary: to, Source: h.Primary, Epoch: v.Epoch, Had: h.Had}
	if copies == 1 {
		return next
	}
	var backups, last []Backup
	for _, b := range h.Backups {
		switch {
		case b.Node == 0 || b.Node == to && !b.InSync:
		case b.Node == to || !b.InSync:
			last = append(last, b)
		default:
			backups = append(backups, b)
		}
	}
	if i := h.BackupOf(to); v.Stays(h.Primary) || i >= 0 && h.Backups[i].InSync { // or else there would be a copy less
		backups = append(backups, Backup{Node: h.Primary, InSync: true, Since: v.Epoch})
	}
	for _, inSync := range []bool{true, false} {
		for _, b := range last {
			if b.InSync == inSync {
				backups = append(backups, b)
			}
		}
	}
	copy(next.Backups[:], backups)
	return next
}

// Arrived ends the handover of a slot, if there is one: its primary has everything, or has to do without.
func (h *SlotHome) Arrived() {
	if h.Source != 0 {
		h.Source, h.Had = 0, h.Epoch
	}
	h.KeepBackups(func(b Backup) bool { return b.Node != h.Primary })
}

// ArrivedEmpty is Arrived for a slot in which no file has bytes.
func (h *SlotHome) ArrivedEmpty() {
	h.Arrived()
	h.Had = 0
}

// TakeOver makes the first backup in sync the primary. It returns false if no backup can take over.
func (h *SlotHome) TakeOver(v *View) bool {
	for n := range h.InSync() {
		if !v.IsGone(n) {
			*h = h.takenOver(v, n)
			return true
		}
	}
	return false
}

// CameBack returns the row of a slot whose new home has died, and that its source has all of: nothing was offered to the new home, or the source is a backup in sync of it. In that case it has all since now.
func (h *SlotHome) CameBack(v *View) SlotHome {
	if i := h.BackupOf(h.Source); i >= 0 && h.Backups[i].InSync {
		return h.takenOver(v, h.Source)
	}
	return h.Restarted(v, h.Source)
}

// takenOver is Restarted for a backup. The new home, if it is that, may have served meanwhile.
func (h *SlotHome) takenOver(v *View, backup NodeID) SlotHome {
	next := h.Restarted(v, backup)
	if next.Had = v.Epoch; backup == h.Primary {
		next.Had = h.Epoch
	}
	return next
}

// Restarted returns the row with a primary that goes on with everything that it has had: the holder, or the new home. What was under way to the backups when the old primary died has reached some of them
// and not others. So they are filled anew. A backup that was in sync still has all that anybody has seen. It can take over until the new primary has heard of
// this: so nothing is lost if the new primary has died as well.
func (h *SlotHome) Restarted(v *View, primary NodeID) SlotHome {
	next := SlotHome{Primary: primary, Epoch: v.Epoch, Had: h.Had, Backups: h.Backups}
	if primary != h.Holder() {
		next.Had = h.Epoch
	}
	next.KeepBackups(func(b Backup) bool { return b.Node != primary && !v.IsGone(b.Node) })
	for i := range next.Backups {
		if b := &next.Backups[i]; b.Node != 0 {
			b.Former, b.Since = b.InSync, v.Epoch
		}
	}
	return next
}

// KeepBackups drops the other backups of a row.
func (h *SlotHome) KeepBackups(which func(Backup) bool) {
	var kept [MostBackups]Backup
	copy(kept[:], slices.DeleteFunc(slices.Clone(h.Backups[:]), func(b Backup) bool { return b.Node == 0 || !which(b) }))
	h.Backups = kept
}

// LeftOver is what a node has of a slot when its daemon was killed.
type LeftOver struct {
	Served  bool // the daemon had all of it, as its home
	Kept    bool // and that outlives the daemon
	Offered bool // it has sent all to the next home, which may have served it
}

// Withdraw takes a node out of a row whose daemon was killed: it has nothing of the slot any more but what left says. It returns false if it is not certain that somebody has everything.
//
// A slot that is on its way to the node goes back to its source unless the node may have served it: also if the source has offered it. One that is on its way from the node comes back, too, unless it was offered: then the next home has
// all, and may have served it.
func (h *SlotHome) Withdraw(v *View, n NodeID, left LeftOver) bool {
	h.KeepBackups(func(b Backup) bool { return b.Node != n })
	offered := h.Source == n && left.Kept && left.Offered
	switch {
	case h.Primary != n && h.Source != n, offered && !v.IsGone(h.Primary):
	case h.Primary == n && h.Source != 0 && !v.IsGone(h.Source) && !left.Served:
		*h = h.Restarted(v, h.Source)
	case left.Kept && !offered:
		*h = h.Restarted(v, n)
	case h.TakeOver(v):
	case offered: // the next home is gone, with what it had
		h.Arrived()
	case h.Primary == n && h.Source != 0 && !left.Served: // its source is gone, with what it has
	case h.Primary == n:
		*h = SlotHome{Primary: n, Epoch: v.Epoch}
		return false
	default:
		h.ArrivedEmpty()
		return false
	}
	return true
}
