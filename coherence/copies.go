package coherence

import (
	"maps"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// copies is what a home keeps of the copies that backups of its slots have: what it has merged, and they have not acked. Publishes
// go to a backup as they came; all else as pages, with the bytes that they have when the message is made.
type copies struct {
	to      map[dsm.NodeID]*backup
	lastID  uint64
	index   uint64 // of the last change, whatever backup it is for
	waits   int    // changes that somebody has not acked, and that outputs wait for
	outputs []output
	told    dsm.Version // backups have heard of no version after it
	watch   *time.Timer // if not nil, it will look at how long outputs have waited
}

// backup is what is under way to one backup.
type backup struct {
	id      dsm.NodeID
	log     []*update
	covered map[dsm.ExtentIndex]uint64 // while it is being filled: the extents that it is told of, with the number of the fill
	marks   []mark
}

// update is what a backup is told in one message, and has not acked.
type update struct {
	id, index uint64
	extent    dsm.ExtentIndex
	waits     bool // outputs wait for it
	sent      bool
	credit    int
	made      time.Time // or when outputs began to wait for it

	publish *wire.Replicate // a publish, with its payload; nil: the pages that have changed since base
	payload *wire.Shared
	base    dsm.Version
	// Of a versioned area: the pages are those of a version that is pinned in a history.
	history *pages.History
	version dsm.Version
	writers []wire.WriterSeq
	begin   bool
	record  *VersionInfo // it says only that a version is whole, or exists
}

// mark is a call to be made when all changes up to an index are acked.
type mark struct {
	index uint64
	done  func()
}

// copiesLocked returns what this node keeps as a home with backups, and makes it at the first call.
func (a *Area) copiesLocked() *copies {
	if a.mu.copies == nil {
		a.mu.copies = &copies{}
	}
	return a.mu.copies
}

// neededLocked returns the index of the first change that outputs wait for; 0: there is none.
func (c *copies) neededLocked() (need uint64) {
	if c.waits == 0 {
		return 0
	}
	for _, b := range c.to {
		for _, x := range b.log {
			if x.waits && (need == 0 || x.index < need) {
				need = x.index
			}
		}
	}
	return need
}

// lookForBackupsLocked records whether some slot of the area whose home this node is has a backup.
func (a *Area) lookForBackupsLocked() {
	a.mu.backed = false
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		if row := a.rowLocked(e); a.isSelf(row.Primary) && hasBackups(row) {
			a.mu.backed = true
			return
		}
	}
}

func hasBackups(row *dsm.SlotHome) bool { return row.Backups != [dsm.MostBackups]dsm.Backup{} }

// apartLocked reports whether the replica on this node must keep a base of its own while the home merges a publish to an extent: it hears of
// the merge later, like other nodes.
func (a *Area) apartLocked(e dsm.ExtentIndex) bool {
	return hasBackups(a.rowLocked(e)) || a.holdsBackLocked()
}

// backupLocked returns what is under way to a backup, or nil.
func (a *Area) backupLocked(id dsm.NodeID) *backup {
	if a.mu.copies == nil {
		return nil
	}
	return a.mu.copies.to[id]
}

// backup is backupLocked, and makes it at the first call.
func (c *copies) backup(id dsm.NodeID) *backup {
	b := c.to[id]
	if b == nil {
		if c.to == nil {
			c.to = make(map[dsm.NodeID]*backup)
		}
		b = &backup{id: id, covered: make(map[dsm.ExtentIndex]uint64)}
		c.to[id] = b
	}
	return b
}

// standingLocked says whether a backup is told of the changes of an extent, and whether outputs wait for it.
func (a *Area) standingLocked(b dsm.Backup, e dsm.ExtentIndex) (told, waits bool) {
	if b.InSync {
		return true, true
	}
	phase, fill := a.node.fills.standing(a.slotLocked(e), b.Node)
	switch {
	case phase >= joined:
		return true, true
	case phase == filling:
		to := a.backupLocked(b.Node)
		return to != nil && to.covered[e] == fill, false
	}
	return false, false
}

// copyLocked tells the backups of an extent of a change that has just been made. base is the version before it; 0: it is the first. The
// function makes the change.
func (a *Area) copyLocked(e dsm.ExtentIndex, base dsm.Version, make func() update) {
	row := a.rowLocked(e)
	if !hasBackups(row) {
		return
	}
	c := a.copiesLocked()
	c.index++
	if a.coveringLocked() == 1 {
		c.told = max(c.told, a.mu.newest)
	}
	for _, b := range row.Backups {
		if b.Node == 0 || a.isSelf(b.Node) {
			continue
		}
		if phase, fill := a.node.fills.standing(a.slotLocked(e), b.Node); base == 0 && phase == filling {
			c.backup(b.Node).covered[e] = fill // it knows all that there is
		}
		if told, waits := a.standingLocked(b, e); told {
			x := make()
			x.extent, x.index, x.waits = e, c.index, waits
			a.logLocked(b.Node, &x)
		}
	}
}

// logLocked adds a change to those under way to a backup.
func (a *Area) logLocked(to dsm.NodeID, x *update) {
	c := a.mu.copies
	b := c.backup(to)
	c.lastID++
	x.id, x.made = c.lastID, a.now()
	if x.publish != nil {
		m := *x.publish
		m.ID = x.id
		x.publish = &m
	}
	if x.waits {
		c.waits++
		a.watchBackupsLocked()
	}
	b.log = append(b.log, x)
	a.pumpCopiesLocked(to)
}

// copyPublishLocked tells the backups of a publish that was merged. f has its payload.
func (a *Area) copyPublishLocked(from dsm.NodeID, base dsm.Version, f *forwarding) {
	m := f.publish
	a.copyLocked(m.Extent, base, func() update {
		return update{payload: f.share(), publish: &wire.Replicate{Stamp: a.stampLocked(), Extent: m.Extent, From: from, Seq: m.Seq,
			Base: base, Version: a.mu.home.extents[m.Extent].version, Pages: m.Pages, Index: m.Index}}
	})
}

// copyPagesLocked tells the backups of pages that have changed since the version base, in a way that is no publish.
func (a *Area) copyPagesLocked(e dsm.ExtentIndex, base dsm.Version) {
	a.copyLocked(e, base, func() update { return update{base: base} })
}

// copyVersionLocked tells the backups of a version of a versioned area. bases has the extents that have changed, with their versions before.
func (a *Area) copyVersionLocked(bases map[dsm.ExtentIndex]dsm.Version) {
	if !hasBackups(a.rowLocked(0)) {
		return
	}
	for _, e := range slices.Sorted(maps.Keys(bases)) {
		a.copyLocked(e, bases[e], func() update { return a.versionChangeLocked(e, bases[e]) })
	}
	a.copyNewestLocked()
}

// versionChangeLocked returns the change that tells of an extent in the newest version. The version is pinned until the change is forgotten.
func (a *Area) versionChangeLocked(e dsm.ExtentIndex, base dsm.Version) update {
	h := a.historyLocked()
	return update{extent: e, base: base, history: h, version: h.Pin(), writers: a.mu.home.extents[e].writersLocked()}
}

// copyNewestLocked tells the backups which versions exist, and of a versioned area which is the newest that is whole.
func (a *Area) copyNewestLocked() {
	c := a.copiesLocked()
	c.index++
	c.told = a.mu.newest
	newest, _ := a.newestLocked()
	synced := a.syncedLocked()
	for _, id := range slices.Sorted(maps.Keys(synced)) {
		a.logLocked(id, &update{extent: synced[id], record: &newest, index: c.index, waits: true})
	}
	if !a.versionedLocked() {
		return
	}
	for _, b := range a.rowLocked(0).Backups { // those that are being filled
		if told, waits := a.standingLocked(b, 0); b.Node != 0 && told && !waits && !a.isSelf(b.Node) {
			a.logLocked(b.Node, &update{record: &newest, index: c.index})
		}
	}
}

// syncedLocked returns the backups of the area's slots here that outputs wait for, each with an extent that it has.
func (a *Area) syncedLocked() map[dsm.NodeID]dsm.ExtentIndex {
	list := make(map[dsm.NodeID]dsm.ExtentIndex)
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		row := a.rowLocked(e)
		if !a.isSelf(row.Primary) {
			continue
		}
		for _, b := range row.Backups {
			if b.Node == 0 || a.isSelf(b.Node) {
				continue
			}
			if _, waits := a.standingLocked(b, e); waits {
				list[b.Node] = e
			}
		}
	}
	return list
}

// tellNewestLocked is called before the home answers that a node has everything up to the newest version. A backup that takes over draws
// later ones, so it must have heard of that.
func (a *Area) tellNewestLocked() {
	if a.mu.backed && a.copiesLocked().told < a.mu.newest {
		a.copyNewestLocked()
	}
}

// pumpCopiesLocked sends a backup what it has not been sent, as far as there is credit.
func (a *Area) pumpCopiesLocked(to dsm.NodeID) {
	b := a.backupLocked(to)
	if b == nil {
		return
	}
	for _, x := range b.log {
		if !x.sent && !a.sendChangeLocked(to, x) {
			return
		}
	}
}

// sendChangeLocked sends one change. It returns false if there is no credit.
func (a *Area) sendChangeLocked(to dsm.NodeID, x *update) bool {
	switch {
	case x.publish != nil:
		n := len(x.publish.Index) + len(x.payload.Bytes)
		if !a.node.copyLinks.take(to, a, n) {
			return false
		}
		x.credit, x.sent = n, true
		a.sendSharedLocked(to, x.publish, x.payload.Retain())
		return true
	case x.record == nil && a.mu.home.extents[x.extent] == nil: // nothing is left to tell
		x.sent = true
		a.sendLocked(to, &wire.ReplicateVersion{Stamp: a.stampLocked(), ID: x.id})
		return true
	case x.record != nil:
		x.sent = true
		a.sendLocked(to, &wire.ReplicateVersion{Stamp: a.stampLocked(), ID: x.id, Whole: x.record.Version, Writer: x.record.Writer, Size: x.record.Size, Begin: x.begin})
		return true
	}
	m, bytes, payload := a.describeChangeLocked(x)
	if !a.node.copyLinks.take(to, a, bytes) {
		return false
	}
	x.credit, x.sent = bytes, true
	if bytes == 0 {
		a.sendLocked(to, m)
		return true
	}
	s := wire.Share(bytes)
	b := s.Bytes[:0]
	for _, p := range payload {
		b = append(b, p...)
	}
	a.sendSharedLocked(to, m, s)
	return true
}

// describeChangeLocked makes the message of a change that is told as pages. It tells of all that has changed since the base.
func (a *Area) describeChangeLocked(x *update) (m *wire.ReplicatePages, bytes int, payload [][]byte) {
	h := a.mu.home.extents[x.extent]
	m = &wire.ReplicatePages{Stamp: a.stampLocked(), ID: x.id, Extent: x.extent, Base: x.base, Version: h.version, Pages: h.newer(x.base), Begin: x.begin}
	m.Pages = m.Pages.And(a.withinLocked(x.extent))
	if m.Writers = x.writers; m.Writers == nil {
		m.Writers = h.writersLocked()
	}
	if x.version != 0 {
		m.Version = min(m.Version, x.version)
	}
	for i := range m.Pages.All() {
		m.Versions = append(m.Versions, min(h.pages[i], m.Version))
		b := a.mu.mem.Home(page(x.extent, i))
		if x.version != 0 {
			if old, inPlace := x.history.At(page(x.extent, i), x.version); !inPlace {
				b = old
			}
		}
		if isZero(b) {
			m.Zero.Add(i)
			continue
		}
		payload = append(payload, b)
		bytes += len(b)
	}
	return m, bytes, payload
}

// writersLocked returns whose publishes the extent contains.
func (x *homeExtent) writersLocked() []wire.WriterSeq { return writersOf(x.writers, x.parts) }

func writersOf(writers, parts map[dsm.NodeID]dsm.Seq) (list []wire.WriterSeq) {
	merged := maps.Clone(writers)
	maps.Copy(merged, parts) // for their keys
	for _, n := range slices.Sorted(maps.Keys(merged)) {
		list = append(list, wire.WriterSeq{Node: n, Seq: writers[n], Part: parts[n]})
	}
	return list
}

// replicatedLocked handles the ack of a change.
func (a *Area) replicatedLocked(from dsm.NodeID, m *wire.Replicated) {
	b := a.backupLocked(from)
	if b == nil {
		return
	}
	i := slices.IndexFunc(b.log, func(x *update) bool { return x.id == m.ID })
	switch {
	case i < 0: // it was given up
	case m.Whole:
		a.copyAgainLocked(from, b, b.log[i])
	default:
		a.forgetChangesLocked(b, func(x *update) bool { return x.id == m.ID })
	}
	a.pumpCopiesLocked(from)
	a.releaseLocked()
	a.mu.wake = true
}

// copyAgainLocked tells a backup all of an extent, or of a versioned area, in place of what is under way of it: the backup cannot take the
// change x. What waits for that waits for this.
func (a *Area) copyAgainLocked(to dsm.NodeID, b *backup, x *update) {
	all := a.versionedLocked()
	index, waits := x.index, x.waits
	a.dropChangesLocked(b, func(o *update) bool {
		out := all || o.extent == x.extent && o.record == nil
		if out {
			index, waits = min(index, o.index), waits || o.waits
		}
		return out
	})
	switch {
	case all:
		a.copyAllLocked(to, index, waits)
	case a.mu.home.extents[x.extent] != nil:
		a.logLocked(to, &update{extent: x.extent, index: index, waits: waits})
	}
	a.meetMarksLocked(b)
}

// copyAllLocked tells a backup all of a versioned area.
func (a *Area) copyAllLocked(to dsm.NodeID, index uint64, waits bool) {
	if a.ownHomeLocked() {
		a.takeoverDoneLocked()
	}
	newest, _ := a.newestLocked()
	begin := true
	for _, e := range slices.Sorted(maps.Keys(a.mu.home.extents)) {
		x := a.versionChangeLocked(e, 0)
		x.index, x.waits, x.begin = index, waits, begin
		begin = false
		a.logLocked(to, &x)
	}
	a.logLocked(to, &update{record: &newest, index: index, waits: waits, begin: begin})
}

// forgetChangesLocked takes changes out of the log of a backup, and makes the calls that waited for that.
func (a *Area) forgetChangesLocked(b *backup, which func(x *update) bool) {
	a.dropChangesLocked(b, which)
	a.meetMarksLocked(b)
}

// dropChangesLocked takes changes out of the log of a backup. The caller puts others in their place before meetMarksLocked follows.
func (a *Area) dropChangesLocked(b *backup, which func(x *update) bool) {
	b.log = slices.DeleteFunc(b.log, func(x *update) bool {
		out := which(x)
		if out {
			a.node.copyLinks.give(b.id, a, x.credit)
			a.endChangeLocked(x)
		}
		return out
	})
}

// meetMarksLocked makes the calls that waited for changes which are not in the log of a backup any more.
func (a *Area) meetMarksLocked(b *backup) {
	if len(b.marks) == 0 {
		return
	}
	first := uint64(1 << 63)
	for _, x := range b.log {
		first = min(first, x.index)
	}
	b.marks = slices.DeleteFunc(b.marks, func(m mark) bool {
		if first <= m.index {
			return false
		}
		m.done()
		return true
	})
}

// endChangeLocked gives back what a change keeps.
func (a *Area) endChangeLocked(x *update) {
	if x.waits {
		a.mu.copies.waits--
	}
	if x.payload != nil {
		x.payload.Release()
	}
	if x.history != nil && x.history == a.mu.whole.history {
		x.history.Unpin(x.version)
	}
}

// copiesResetLocked follows a broken session: what is under way to the peer may be lost.
func (a *Area) copiesResetLocked(peer dsm.NodeID) {
	a.dropOutputsLocked(func(m *message) bool { return m.peer == peer })
	b := a.backupLocked(peer)
	if b == nil {
		return
	}
	for _, x := range b.log {
		a.node.copyLinks.give(peer, a, x.credit)
		x.credit, x.sent = 0, false
	}
	a.pumpCopiesLocked(peer)
}

// copiesViewChangedLocked follows a view in which slots have other homes, or other backups.
func (a *Area) copiesViewChangedLocked(old *dsm.View) {
	c := a.mu.copies
	if c == nil {
		return
	}
	if len(c.outputs) > 0 {
		a.dropLostOutputsLocked(old)
	}
	for _, id := range slices.Sorted(maps.Keys(c.to)) {
		b := c.to[id]
		a.forgetChangesLocked(b, func(x *update) bool {
			told, _ := a.backupForLocked(id, x.extent)
			return !told
		})
		a.recountLocked(id)
		if len(b.log) == 0 && len(b.marks) == 0 && !a.anyBackupLocked(id) {
			delete(c.to, id)
		}
	}
}

// backupForLocked is standingLocked for a node that may be no backup of the extent.
func (a *Area) backupForLocked(id dsm.NodeID, e dsm.ExtentIndex) (told, waits bool) {
	row := a.rowLocked(e)
	i := row.BackupOf(id)
	if i < 0 || !a.isSelf(row.Primary) && !a.isSelf(row.Source) {
		return false, false
	}
	return a.standingLocked(row.Backups[i], e)
}

// anyBackupLocked reports whether a node is a backup of a slot of the area here.
func (a *Area) anyBackupLocked(id dsm.NodeID) bool {
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		if row := a.rowLocked(e); a.isSelf(row.Primary) && row.BackupOf(id) >= 0 {
			return true
		}
	}
	return false
}

// recountLocked records which changes under way to a backup outputs wait for now.
func (a *Area) recountLocked(id dsm.NodeID) {
	for _, x := range a.mu.copies.to[id].log {
		_, waits := a.backupForLocked(id, x.extent)
		if waits && !x.waits {
			a.mu.copies.waits++
			x.made = a.now() // it counts from when somebody waits for it
			a.watchBackupsLocked()
		} else if !waits && x.waits {
			a.mu.copies.waits--
		}
		x.waits = waits
	}
}

// owesLocked reports whether backups have not acked all changes of the slots that outputs wait for.
func (a *Area) owesLocked(slots map[dsm.Slot]bool) bool {
	if a.mu.copies == nil {
		return false
	}
	for _, b := range a.mu.copies.to {
		if slices.ContainsFunc(b.log, func(x *update) bool { return x.waits && slots[a.slotLocked(x.extent)] }) {
			return true
		}
	}
	return false
}

// endCopiesLocked forgets all that is under way to backups.
func (a *Area) endCopiesLocked() {
	if a.mu.copies == nil {
		return
	}
	a.dropOutputsLocked(func(*message) bool { return true })
	for _, b := range a.mu.copies.to {
		a.forgetChangesLocked(b, func(*update) bool { return true })
	}
	if t := a.mu.copies.watch; t != nil {
		t.Stop()
	}
	a.mu.copies = nil
}

// backupPatience is how long outputs wait for a backup until the catalog hears that it does not follow.
const backupPatience = time.Second

// watchBackupsLocked has the area look later whether a backup that outputs, or a handover, wait for has not acked for too long.
func (a *Area) watchBackupsLocked() {
	if a.mu.copies.watch == nil {
		a.mu.copies.watch = time.AfterFunc(backupPatience, func() { a.step(a.lookAtBackupsLocked) })
	}
}

func (a *Area) lookAtBackupsLocked() {
	c := a.mu.copies
	if c == nil {
		return // the timer had fired before it was stopped
	}
	if c.watch = nil; c.waits == 0 {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(c.to)) {
		if slices.ContainsFunc(c.to[id].log, func(x *update) bool { return x.waits && a.now().Sub(x.made) >= backupPatience }) {
			a.mu.arrived = append(a.mu.arrived, func() { a.node.fills.lags(id) })
		}
	}
	a.watchBackupsLocked()
}
