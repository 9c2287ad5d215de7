package coherence

import (
	"context"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// replicates says whether homes replicate. As long as they do not, no row has backups.
const replicates = false

// withBackups has the catalog want so many copies of every slot. With inSync, backups are in sync from the start, as nothing was published yet.
// The view is one that nobody uses yet.
func (s *sim) withBackups(copies int, inSync bool) {
	s.copies = copies
	view := s.lastView()
	s.assign(view)
	for _, row := range view.Rows() {
		for i := range row.Backups {
			row.Backups[i].InSync = inSync && row.Backups[i].Node != 0
		}
	}
}

// assign does what the catalog does in each review: a row has as many backups as are wanted, none of them gone. It keeps those that are in sync.
func (s *sim) assign(v *dsm.View) {
	gone := deadOf(v)
	want := min(s.copies-1, len(v.Members)-len(gone)-1)
	for sl, row := range v.Rows() {
		list := slices.DeleteFunc(backups(row), func(b dsm.Backup) bool {
			return slices.Contains(gone, b.Node) || b.Node == row.Primary && row.Source == 0
		})
		slices.SortStableFunc(list, func(a, b dsm.Backup) int { return rank(a) - rank(b) })
		if len(list) > want && row.Source == 0 {
			list = list[:want]
		}
		for i := range s.nodes {
			id := s.nodes[(int(sl)+int(v.Epoch)+i)%len(s.nodes)].id
			if len(list) < want && id != row.Primary && id != row.Source && !slices.Contains(gone, id) && row.BackupOf(id) < 0 {
				list = append(list, dsm.Backup{Node: id})
			}
		}
		setBackups(row, list)
	}
}

// rank says which backups stay: those in sync do first.
func rank(b dsm.Backup) int {
	if b.InSync {
		return 0
	}
	return 1
}

// backups returns the backups of a row.
func backups(row *dsm.SlotHome) []dsm.Backup {
	return slices.DeleteFunc(slices.Clone(row.Backups[:]), func(b dsm.Backup) bool { return b.Node == 0 })
}

func setBackups(row *dsm.SlotHome, list []dsm.Backup) {
	row.Backups = [dsm.MostBackups]dsm.Backup{}
	copy(row.Backups[:], list)
}

// movedTo returns the row of what a node is to take over from the home in the given row. That one is among the backups meanwhile.
func (s *sim) movedTo(row dsm.SlotHome, to dsm.NodeID, e dsm.Epoch) dsm.SlotHome {
	next := dsm.SlotHome{Primary: to, Source: row.Primary, Epoch: e}
	list := slices.DeleteFunc(backups(&row), func(b dsm.Backup) bool { return b.Node == to })
	if row.Primary == to {
		next.Source = 0
	} else if s.copies > 1 {
		if len(list) == dsm.MostBackups && !list[1].InSync {
			list = list[:1]
		}
		if len(list) < dsm.MostBackups {
			list = append(list, dsm.Backup{Node: row.Primary, InSync: true})
		}
	}
	setBackups(&next, list)
	return next
}

// holder is the node that has the state of a row.
func holder(row *dsm.SlotHome) dsm.NodeID {
	if row.Source != 0 {
		return row.Source
	}
	return row.Primary
}

// takeOver has backups take the rows over whose state a node had that is gone in the view. Without one in sync a row stays with it.
func (s *sim) takeOver(v *dsm.View, dead dsm.NodeID) {
	for _, row := range v.Rows() {
		if holder(row) == dead {
			s.succeed(v, row)
		}
	}
	s.assign(v)
}

// succeed makes a backup in sync the home of a row, if there is one that is not gone. What the others have may differ by what was on its way.
func (s *sim) succeed(v *dsm.View, row *dsm.SlotHome) bool {
	for id := range row.InSync() {
		if isGone(v, id) {
			continue
		}
		list := slices.DeleteFunc(backups(row), func(b dsm.Backup) bool { return b.Node == id })
		for i := range list {
			list[i].InSync = false
		}
		*row = dsm.SlotHome{Primary: id, Epoch: v.Epoch}
		setBackups(row, list)
		return true
	}
	return false
}

// wish is what a node has asked the catalog for, and what that has not decided yet.
type wish struct {
	by     *simNode
	change func(v *dsm.View) bool
	done   chan struct{}
}

// asks asks the catalog for a change of the view, and waits for its answer.
func (n *simNode) asks(ctx context.Context, change func(v *dsm.View) bool) error {
	w := &wish{n, change, make(chan struct{})}
	n.sim.mu.Lock()
	n.sim.wishes = append(n.sim.wishes, w)
	n.sim.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decide has the catalog answer one of those who have asked it for something. It reports whether there was any.
func (s *sim) decide() bool {
	s.mu.Lock()
	if len(s.wishes) == 0 {
		s.mu.Unlock()
		return false
	}
	i := s.rng.IntN(len(s.wishes))
	w := s.wishes[i]
	s.wishes = slices.Delete(s.wishes, i, i+1)
	v := s.lastViewLocked().Clone()
	if v.Epoch++; !w.by.dead && w.change(v) {
		s.assign(v)
		s.log = append(s.log, entry{nil, v})
	}
	close(w.done)
	s.mu.Unlock()
	s.rest()
	return true
}

// BackupInSync says that a backup of slots of this node has all that anybody has seen of them.
func (n *simNode) BackupInSync(ctx context.Context, backup dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error {
	return n.asks(ctx, func(v *dsm.View) bool {
		return n.backupIs(v, backup, slots, true, func(row *dsm.SlotHome) bool { return row.Primary == n.id && row.Source == 0 && e >= row.Epoch })
	})
}

// BackupLags says that nobody waits for a backup any more.
func (n *simNode) BackupLags(ctx context.Context, backup dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error {
	return n.asks(ctx, func(v *dsm.View) bool {
		return n.backupIs(v, backup, slots, false, func(row *dsm.SlotHome) bool {
			return (row.Primary == n.id || row.Source == n.id) && e >= row.Epoch
		})
	})
}

// backupIs records for the slots that may say so whether a backup is in sync. It reports whether that changes anything.
func (n *simNode) backupIs(v *dsm.View, backup dsm.NodeID, slots []dsm.Slot, inSync bool, may func(row *dsm.SlotHome) bool) (changed bool) {
	for _, sl := range slots {
		row := v.Row(sl)
		if row == nil || !may(row) {
			continue
		}
		if i := row.BackupOf(backup); i >= 0 && row.Backups[i].InSync != inSync {
			row.Backups[i].InSync = inSync
			changed = true
		}
	}
	return changed
}

// MayServe reports whether the node is sure that it is still a member.
func (n *simNode) MayServe() bool { return true }

// replaceBackup has the catalog choose another backup for some row that loses none by that.
func (s *sim) replaceBackup() {
	if s.copies == 1 {
		return
	}
	v := s.lastView().Clone()
	v.Epoch++
	row := s.rowOf(v, dsm.ExtentIndex(s.rng.IntN(4)))
	list := backups(row)
	if i := s.rng.IntN(dsm.MostBackups); i < len(list) && row.Source == 0 {
		setBackups(row, slices.Delete(list, i, i+1))
		s.assign(v)
		s.commit(entry{nil, v})
	}
}

// wholeRows checks that every row has its backups again, all in sync.
func (s *sim) wholeRows() {
	v := s.lastView()
	want := min(s.copies-1, len(v.Members)-len(deadOf(v))-1)
	for e := range dsm.ExtentIndex(s.lastInode().Spec.CoveringExtents(s.lastInode().Size)) {
		row := s.rowOf(v, e)
		k := 0
		for range row.InSync() {
			k++
		}
		if row.Source == 0 && k != want && !isGone(v, row.Primary) {
			s.explain()
			s.t.Fatalf("extent %d: %d backups in sync, want %d: %+v", e, k, want, *row)
		}
	}
}
