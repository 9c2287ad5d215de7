package coherence

import (
	"maps"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// copies is what a home keeps of the copies that backups of its slots have: what it has merged, and they have not acked.
type copies struct {
	to      map[dsm.NodeID]*backup
	lastID  uint64
	index   uint64 // of the last change, whatever backup it is for
	outputs []output
	told    dsm.Version // backups have heard of no version after it
	watch   *time.Timer // if not nil, it will look at how long outputs have waited
}

// copiesLocked returns what this node keeps as a home with backups, and makes it at the first call.
func (a *Area) copiesLocked() *copies {
	if a.mu.copies == nil {
		a.mu.copies = &copies{lastID: a.node.cfg.First}
	}
	return a.mu.copies
}

// lookForBackupsLocked records whether some slot of the area whose home this node is has a backup, whether one is in sync with a former home, and whether
// one takes over if a home dies that hands the slot over to this node.
func (a *Area) lookForBackupsLocked() {
	a.mu.backed, a.mu.mute, a.mu.handed = false, false, false
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		if row := a.rowLocked(e); a.isSelf(row.Primary) && hasBackups(row) {
			a.mu.backed = true
			a.mu.mute = a.mu.mute || slices.ContainsFunc(row.Backups[:], func(b dsm.Backup) bool { return b.Former })
			a.mu.handed = a.mu.handed || row.Source != 0 && slices.ContainsFunc(row.Backups[:], func(b dsm.Backup) bool { return b.InSync && b.Node != row.Source })
		}
	}
}

func hasBackups(row *dsm.SlotHome) bool { return row.Backups != [dsm.MostBackups]dsm.Backup{} }

// apartLocked reports whether the replica on this node must keep a base of its own while the home merges a publish to an extent: it hears of
// the merge later, like other nodes.
func (a *Area) apartLocked(e dsm.ExtentIndex) bool {
	return hasBackups(a.rowLocked(e)) || a.withholdsLocked()
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
		b = &backup{id: id, sent: make(map[uint64]*update)}
		c.to[id] = b
	}
	return b
}

// standingLocked says whether a backup is told of the changes of an extent, and whether outputs wait for it. One that is being filled is told later: see pace.go.
func (a *Area) standingLocked(b dsm.Backup, e dsm.ExtentIndex) (told, waits bool) {
	if b.InSync {
		return !b.Former, !b.Former // nothing is said while there is one in sync with a former home
	}
	slot := a.slotLocked(e)
	phase, fill := a.node.fills.standing(slot, b.Node)
	switch {
	case phase >= joined:
		return true, true
	case phase == filling, phase == following:
		to := a.backupLocked(b.Node)
		return to != nil && to.covers(slot, e, fill), false
	}
	return false, false
}

// copyLocked tells the backups of an extent of a change that has just been made. base is the version before it; 0: it is the first. A publish is
// passed on to those that have what was there before it, if there is credit; else f is nil. The caller of a versioned area pumps.
func (a *Area) copyLocked(e dsm.ExtentIndex, base dsm.Version, f *forwarding, from dsm.NodeID) {
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
		if phase, fill := a.node.fills.standing(a.slotLocked(e), b.Node); base == 0 && (phase == filling || phase == following) {
			a.coverLocked(c.backup(b.Node), a.slotLocked(e), fill, e) // it knows all that there is
		}
		told, waits := a.standingLocked(b, e)
		if !told {
			continue
		}
		to, x := c.backup(b.Node), &update{index: c.index, extent: e, base: base, waits: waits}
		if f != nil && !a.fillsLocked(to, x) && a.copyAtOnceLocked(to, x, f, from) {
			continue
		}
		a.copyDueLocked(to, x)
		if !a.versionedLocked() {
			a.pumpCopiesLocked(b.Node)
		}
	}
}

// copyAtOnceLocked passes a publish on to a backup as it came. It returns false if there is no credit, or if the backup was not sent what was there before.
func (a *Area) copyAtOnceLocked(b *backup, x *update, f *forwarding, from dsm.NodeID) bool {
	m := f.publish
	n := len(m.Index) + len(f.payload)
	if b.due.of[x.extent] != nil || b.fill.of[x.extent] != nil || b.changed.of[x.extent] != nil || !a.node.copyLinks.take(b.id, a, n) {
		return false
	}
	x.credit = n
	a.beginChangeLocked(b, x)
	a.sentChangeLocked(b, x)
	a.sendSharedLocked(b.id, &wire.Replicate{Stamp: a.stampLocked(), ID: x.id, Extent: m.Extent, From: from, Seq: m.Seq,
		Base: x.base, Version: a.mu.home.extents[m.Extent].version, Pages: m.Pages, Index: m.Index}, f.share())
	return true
}

// sentChangeLocked gives a change the ID of the message that tells of it.
func (a *Area) sentChangeLocked(b *backup, x *update) {
	b.due.remove(x)
	b.fill.remove(x)
	a.passedOnLocked(b, x)
	if x.waits {
		b.unsent--
	}
	a.mu.copies.lastID++
	x.id = a.mu.copies.lastID
	b.sent[x.id] = x
}

// copyPublishLocked tells the backups of a publish that was merged. f has its payload.
func (a *Area) copyPublishLocked(from dsm.NodeID, base dsm.Version, f *forwarding) {
	a.copyLocked(f.publish.Extent, base, f, from)
}

// copyPagesLocked tells the backups of pages that have changed since the version base, in a way that is no publish.
func (a *Area) copyPagesLocked(e dsm.ExtentIndex, base dsm.Version) { a.copyLocked(e, base, nil, 0) }

// copyVersionLocked tells the backups of a version of a versioned area. bases has the extents that have changed, with their versions before.
func (a *Area) copyVersionLocked(bases map[dsm.ExtentIndex]dsm.Version) {
	if !hasBackups(a.rowLocked(0)) {
		return
	}
	for _, e := range slices.Sorted(maps.Keys(bases)) {
		a.copyPagesLocked(e, bases[e])
	}
	a.copyNewestLocked()
}

// copyNewestLocked tells the backups which versions exist, and of a versioned area which is the newest that is whole.
func (a *Area) copyNewestLocked() {
	c := a.copiesLocked()
	c.index++
	c.told = a.mu.newest
	synced := a.syncedLocked()
	for _, id := range slices.Sorted(maps.Keys(synced)) {
		a.copyDueLocked(c.backup(id), &update{extent: synced[id], record: true, index: c.index, waits: true})
		a.pumpCopiesLocked(id)
	}
	if !a.versionedLocked() {
		return
	}
	for _, b := range a.rowLocked(0).Backups { // those that are being filled
		if told, waits := a.standingLocked(b, 0); b.Node != 0 && told && !waits && !a.isSelf(b.Node) {
			a.copyDueLocked(c.backup(b.Node), &update{record: true, index: c.index})
			a.pumpCopiesLocked(b.Node)
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
	if b == nil || a.mu.whole.halved { // no message says anything about half a version
		return
	}
	for {
		if b.due.empty() {
			a.nextBatchLocked(b)
		}
		x := b.due.first()
		if x == nil {
			break
		}
		if a.versionedLocked() && b.history != a.mu.whole.history {
			b.history = a.mu.whole.history
			if b.at, _ = a.newestLocked(); b.history != nil {
				b.at.Version = b.history.Pin()
			}
		}
		if !a.sendChangeLocked(b, x) {
			break
		}
	}
	for x := b.fill.first(); x != nil && a.sendChangeLocked(b, x); x = b.fill.first() {
	}
}

// nextBatchLocked goes on to what has changed since the version that a backup was sent.
func (a *Area) nextBatchLocked(b *backup) {
	if b.history != nil && b.history == a.mu.whole.history { // else it is closed
		b.history.Unpin(b.at.Version)
	}
	b.history, b.at = nil, VersionInfo{}
	b.due, b.later = b.later, batch{}
}

// changeCost is what a message of a change costs besides its bytes: without that there might be any number of them under way.
const changeCost = 256

// sendChangeLocked sends one change. It returns false if there is no credit.
func (a *Area) sendChangeLocked(b *backup, x *update) bool {
	if x.record || a.mu.home.extents[x.extent] == nil { // in that case nothing is left to tell
		if !a.takeCreditLocked(b, x, changeCost) {
			return false
		}
		a.sentChangeLocked(b, x)
		m := &wire.ReplicateVersion{Stamp: a.stampLocked(), ID: x.id}
		if x.record {
			if a.versionedLocked() {
				m.Whole, m.Writer, m.Size, m.Begin = b.at.Version, b.at.Writer, b.at.Size, x.begin
			}
		}
		a.sendLocked(b.id, m)
		return true
	}
	m, bytes, payload := a.describeChangeLocked(b, x)
	if !a.takeCreditLocked(b, x, changeCost+bytes) {
		return false
	}
	a.sentChangeLocked(b, x)
	m.ID = x.id
	if bytes == 0 {
		a.sendLocked(b.id, m)
		return true
	}
	s := wire.Share(bytes)
	all := s.Bytes[:0]
	for _, p := range payload {
		all = append(all, p...)
	}
	a.sendSharedLocked(b.id, m, s)
	return true
}

// describeChangeLocked makes the message of a change. It tells of all that has changed since the base.
func (a *Area) describeChangeLocked(b *backup, x *update) (m *wire.ReplicatePages, bytes int, payload [][]byte) {
	h := a.mu.home.extents[x.extent]
	m = &wire.ReplicatePages{Stamp: a.stampLocked(), Extent: x.extent, Base: x.base, Version: h.version, Pages: h.newer(x.base), Begin: x.begin}
	m.Pages = m.Pages.And(a.withinLocked(x.extent))
	if m.Writers = x.writers; m.Writers == nil {
		m.Writers = h.writersLocked()
	}
	if b.history != nil {
		m.Version = min(m.Version, b.at.Version)
	}
	for i := range m.Pages.All() {
		m.Versions = append(m.Versions, min(h.pages[i], m.Version))
		bs := a.mu.mem.Home(page(x.extent, i))
		if b.history != nil {
			if old, inPlace := b.history.At(page(x.extent, i), b.at.Version); !inPlace {
				bs = old
			}
		}
		if isZero(bs) {
			m.Zero.Add(i)
			continue
		}
		payload = append(payload, bs)
		bytes += len(bs)
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
	x := b.sent[m.ID]
	switch {
	case x == nil: // it was given up
	case m.Whole:
		a.copyAgainLocked(b, x)
	default:
		a.endChangeLocked(b, x)
	}
	a.pumpCopiesLocked(from)
	if b.idle() && len(b.covered) == 0 && b.history == nil { // there may be thousands of areas
		delete(a.mu.copies.to, from)
	}
	a.releaseLocked()
	a.mu.wake = true
}

// copyAgainLocked tells a backup all of an extent, or of a versioned area, in place of what is under way of it: the backup cannot take the
// change x. What waits for that waits for this.
func (a *Area) copyAgainLocked(b *backup, x *update) {
	if a.versionedLocked() {
		a.copyAllLocked(b, update{index: x.index})
		return
	}
	all := &update{extent: x.extent, index: x.index}
	for o := range b.all() {
		if o.extent == x.extent && !o.record {
			all.index, all.waits = min(all.index, o.index), all.waits || o.waits
			all.marks = append(all.marks, a.withdrawLocked(b, o)...)
		}
	}
	if a.mu.home.extents[x.extent] != nil {
		a.copyDueLocked(b, all)
		return
	}
	for _, m := range all.marks {
		m.passed()
	}
}

// copyAllLocked tells a backup all of a versioned area, in place of what is under way. as says from when on, whether outputs wait for it, and who waits
// for the ack.
func (a *Area) copyAllLocked(b *backup, as update) {
	if a.ownHomeLocked() {
		a.takeoverDoneLocked()
	}
	for o := range b.all() {
		as.index, as.waits = min(as.index, o.index), as.waits || o.waits
		as.marks = append(as.marks, a.withdrawLocked(b, o)...)
	}
	a.nextBatchLocked(b)
	as.begin = true
	for _, e := range slices.Sorted(maps.Keys(a.mu.home.extents)) {
		a.copyDueLocked(b, &update{extent: e, index: as.index, waits: as.waits, begin: as.begin})
		as.begin = false
	}
	as.record = true
	a.copyDueLocked(b, &as)
}

// copiesResetLocked follows a broken session: what is under way to the peer may not arrive.
func (a *Area) copiesResetLocked(peer dsm.NodeID) {
	a.dropOutputsLocked(func(m *message) bool { return m.peer == peer })
	b := a.backupLocked(peer)
	if b == nil {
		return
	}
	again := slices.Collect(b.all())
	waits := make([]bool, len(again))
	for i, x := range again {
		waits[i] = x.waits
		x.marks = a.withdrawLocked(b, x)
	}
	a.nextBatchLocked(b)
	for i, x := range again {
		if x.record || a.mu.home.extents[x.extent] != nil {
			a.copyDueLocked(b, &update{index: x.index, extent: x.extent, base: x.base, record: x.record, begin: x.begin, waits: waits[i], marks: x.marks, made: x.made})
			continue
		}
		for _, m := range x.marks { // nothing is left to tell
			m.passed()
		}
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
		a.dropTakenOverOutputsLocked(old)
	}
	for _, id := range slices.Sorted(maps.Keys(c.to)) {
		b := c.to[id]
		for x := range b.all() {
			if told, waits := a.backupForLocked(id, x.extent); told {
				a.setWaitsLocked(b, x, waits)
			} else {
				a.endChangeLocked(b, x)
			}
		}
		for s, c := range b.covered {
			if _, fill := a.node.fills.standing(s, id); fill != c.fill {
				delete(b.covered, s)
			}
		}
		if a.pumpCopiesLocked(id); b.idle() && !a.anyBackupLocked(id) {
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

// owesLocked reports whether backups have not acked all changes of the slots that outputs wait for.
func (a *Area) owesLocked(slots map[dsm.Slot]bool) bool {
	if a.mu.copies == nil {
		return false
	}
	for _, b := range a.mu.copies.to {
		for s := range b.owes {
			if slots[s] {
				return true
			}
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
		for x := range b.all() {
			a.endChangeLocked(b, x)
		}
		a.nextBatchLocked(b)
	}
	if t := a.mu.copies.watch; t != nil {
		t.Stop()
	}
	a.mu.copies = nil
	a.backedLocked()
}
