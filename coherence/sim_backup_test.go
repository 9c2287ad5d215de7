package coherence

import (
	"context"
	"fmt"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

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

// assign does what the catalog does in each review: a row has as many backups as are wanted. Those in sync stay before others. Rows that are handed
// over, or whose home has died, are passed over.
func (s *sim) assign(v *dsm.View) {
	gone := deadOf(v)
	want := min(s.copies-1, len(v.Members)-len(gone)-1)
	for sl, row := range v.Rows() {
		if !row.Settled() || slices.Contains(gone, row.Primary) {
			continue
		}
		synced, filling := backups(row)
		for len(synced) > want {
			i := (int(sl) + int(v.Epoch)) % len(synced)
			synced = slices.Delete(synced, i, i+1)
		}
		if len(synced) < want {
			filling = filling[:min(len(filling), want-len(synced))]
		}
		setBackups(row, synced, filling)
		for i := range s.nodes {
			id := s.nodes[(int(sl)+int(v.Epoch)+i)%len(s.nodes)].id
			if len(synced)+len(filling) < want && id != row.Primary && !slices.Contains(gone, id) && row.BackupOf(id) < 0 {
				filling = append(filling, dsm.Backup{Node: id, Since: v.Epoch})
			}
		}
		setBackups(row, synced, filling)
	}
}

// backups returns the backups of a row.
func backups(row *dsm.SlotHome) (synced, filling []dsm.Backup) {
	for _, b := range row.Backups {
		switch {
		case b.InSync:
			synced = append(synced, b)
		case b.Node != 0:
			filling = append(filling, b)
		}
	}
	return synced, filling
}

// setBackups gives a row backups, as far as there is place.
func setBackups(row *dsm.SlotHome, kinds ...[]dsm.Backup) {
	row.Backups = [dsm.MostBackups]dsm.Backup{}
	copy(row.Backups[:], slices.Concat(kinds...))
}

// dropBackup takes a node out of a row.
func dropBackup(row *dsm.SlotHome, n dsm.NodeID) {
	setBackups(row, slices.DeleteFunc(slices.Clone(row.Backups[:]), func(b dsm.Backup) bool { return b.Node == n || b.Node == 0 }))
}

// movedTo returns the row of what a node is to have as the home; that may be so already.
func (s *sim) movedTo(v *dsm.View, row dsm.SlotHome, to dsm.NodeID) dsm.SlotHome {
	if row.Primary == to {
		row.Epoch = v.Epoch
		return row
	}
	return row.MovedTo(v, max(s.copies, 1), to)
}

// takeOver takes a node that is gone out of the rows. Where it had the state, a backup in sync takes over. Without one the row stays with it.
func (s *sim) takeOver(v *dsm.View, dead dsm.NodeID) {
	for _, row := range v.Rows() {
		dropBackup(row, dead)
		if row.Holder() == dead && !row.TakeOver(v) {
			setBackups(row)
		}
	}
	s.assign(v)
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
	var some []int
	for i, w := range s.wishes {
		if !w.by.away {
			some = append(some, i)
		}
	}
	s.mu.Unlock()
	if len(some) > 0 {
		s.grant(some[s.rng.IntN(len(some))])
	}
	return len(some) > 0
}

// grant has the catalog answer one of them.
func (s *sim) grant(i int) {
	s.mu.Lock()
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
}

// BackupInSync says that a backup of slots of this node has all that anybody has seen of them.
func (n *simNode) BackupInSync(ctx context.Context, backup dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error {
	return n.asks(ctx, func(v *dsm.View) (changed bool) {
		n.reportsOn(v, backup, slots, e, func(row *dsm.SlotHome, b *dsm.Backup) {
			if row.Holder() == n.id && !b.InSync {
				b.InSync, changed = true, true
			}
		})
		return changed
	})
}

// BackupLags says that nobody waits for a backup any more.
func (n *simNode) BackupLags(ctx context.Context, backup dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error {
	return n.asks(ctx, func(v *dsm.View) (changed bool) {
		n.reportsOn(v, backup, slots, e, func(row *dsm.SlotHome, b *dsm.Backup) {
			if row.Primary == n.id || row.Source == n.id {
				b.InSync, b.Former, b.Since, changed = false, false, v.Epoch, true
			}
		})
		return changed
	})
}

// reportsOn calls record for a backup of those slots of which a report that was made in the view of epoch e is not out of date.
func (n *simNode) reportsOn(v *dsm.View, backup dsm.NodeID, slots []dsm.Slot, e dsm.Epoch, record func(row *dsm.SlotHome, b *dsm.Backup)) {
	for _, sl := range slots {
		row := v.Row(sl)
		if row == nil || e < row.Epoch || row.Failed(v) {
			continue
		}
		if i := row.BackupOf(backup); i >= 0 && e >= row.Backups[i].Since {
			record(row, &row.Backups[i])
		}
	}
}

// MayServe reports whether the node is sure that it is still a member.
func (n *simNode) MayServe() bool { return !n.fenced.Load() }

// Promised is what files take that are not in memory.
func (n *simNode) Promised() int64 { return n.promised }

// replaceBackup has the catalog give some row another backup in place of one in sync. That stays until the other is in sync.
func (s *sim) replaceBackup() {
	v := s.lastView().Clone()
	v.Epoch++
	row, n := s.rowOf(v, dsm.ExtentIndex(s.rng.IntN(4))), s.aNode()
	synced, filling := backups(row)
	dead := slices.ContainsFunc(s.nodes, func(n *simNode) bool { return n.dead && !n.gone })
	if dead || s.copies == 1 || !row.Settled() || len(filling) > 0 || len(synced) < s.copies-1 || row.Primary == n.id || row.BackupOf(n.id) >= 0 || v.IsGone(row.Primary) || v.IsGone(n.id) {
		return
	}
	setBackups(row, synced, []dsm.Backup{{Node: n.id, Since: v.Epoch}})
	s.commit(entry{nil, v})
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
		if row.Source == 0 && (k != want || !row.Settled()) && !v.IsGone(row.Primary) {
			s.explain()
			s.t.Fatalf("extent %d: %d backups in sync, want %d: %+v", e, k, want, *row)
		}
	}
}

// explainRowsLocked logs the sizes and the rows that the area has had.
func (s *sim) explainRowsLocked() {
	if s.copies == 1 {
		return
	}
	last := ""
	for i, e := range s.log {
		if e.view == nil {
			s.t.Logf("entry %d: size %d", i, e.ino.Size)
			continue
		}
		rows := fmt.Sprint("gone ", deadOf(e.view))
		for x := range dsm.ExtentIndex(4) {
			sl := e.view.SlotOf(simArea, s.lastInodeLocked().Spec, x)
			rows += fmt.Sprintf("; extent %d in slot %d: %+v", x, sl, *e.view.Row(sl))
		}
		if rows != last {
			s.t.Logf("entry %d, epoch %d: %s", i, e.view.Epoch, rows)
		}
		last = rows
	}
	for _, n := range s.nodes {
		s.t.Logf("node %d: dead %v, gone %v", n.i, n.dead, n.gone)
	}
}
