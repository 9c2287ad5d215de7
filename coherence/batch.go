package coherence

import (
	"bytes"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// batches is what the home of a versioned area sends to a subscriber: one batch after the other, each all
// pages that differ between two versions. What is published while a batch is under way is for the next
// one. So a slow subscriber skips versions, and the writer waits for nobody. The batch has the bytes of
// its own version: the history keeps those that are overwritten meanwhile.
type batches struct {
	named   map[dsm.ExtentIndex]bool // in the Subscribe, until it has begun
	group   uint64                   // Subscribe.Group: pushes with an earlier one mean nothing to the subscriber
	begun   bool                     // the whole Subscribe is here
	greeted bool                     // a first batch was sent, which says what the version is
	owed    map[dsm.ExtentIndex]dsm.PageSet
	waits   []batchWait

	waiting bool // for room to begin the next batch
	sending bool // a batch is under way
	version VersionInfo
	left    []dsm.ExtentIndex // of the batch, in order
	pages   map[dsm.ExtentIndex]dsm.PageSet
	merged  map[dsm.ExtentIndex]dsm.Seq // the newest part of the subscriber that the version has of an extent
	part    uint32
	unacked map[uint64]int // bytes of pushes by id
	flying  []flyingBatch  // sent, and not known to be in place
}

// flyingBatch is a batch of which all parts are sent. The ack of the last part says that it is in place.
type flyingBatch struct {
	last  uint64 // ID of the last part
	pages map[dsm.ExtentIndex]dsm.PageSet
}

// batchWait is an Acquire. It is answered when the subscriber has been sent all up to version.
type batchWait struct {
	round   uint64
	version dsm.Version
}

// subscribeBatchesLocked begins to send a subscriber batches, or takes in a further part of its Subscribe, and answers.
func (a *Area) subscribeBatchesLocked(s *subscriber, m *wire.Subscribe, r *wire.Subscribed) {
	if m.Round == 0 {
		return // it only says how it wants its pushes
	}
	for _, slot := range m.Slots {
		if a.serveSlotLocked(m.Epoch, slot) == serve {
			r.Slots = append(r.Slots, slot)
		}
	}
	empty := a.extentsLocked() == 0 && len(r.Slots) > 0 // it gets what is published next
	if !empty && a.serveLocked(m.Epoch, 0) != serve {   // a slot in which the area has no extent any more
		a.sendSubscribedLocked(s.id, r)
		return
	}
	a.takeoverDoneLocked()
	if s.batches == nil || s.batches.group != m.Group || s.batches.begun {
		a.endBatchesLocked(s)
		s.batches = &batches{group: m.Group, named: make(map[dsm.ExtentIndex]bool), owed: make(map[dsm.ExtentIndex]dsm.PageSet), unacked: make(map[uint64]int)}
	}
	t := s.batches
	lacks := func(e dsm.ExtentIndex, p dsm.PageSet) {
		if !p.Empty() {
			t.changed(e, p)
			r.Lacks = append(r.Lacks, wire.ExtentPages{Extent: e, Pages: p})
		}
	}
	for _, x := range m.Extents {
		if a.serveLocked(m.Epoch, x.Extent) == serve {
			t.named[x.Extent] = true
			r.Full = append(r.Full, x.Extent)
			lacks(x.Extent, a.mu.home.extents[x.Extent].newer(x.Version))
		}
	}
	if len(m.Slots) > 0 {
		for _, e := range slices.Sorted(maps.Keys(a.mu.home.extents)) {
			if !t.named[e] && int(e) < a.extentsLocked() {
				lacks(e, a.mu.home.extents[e].newer(0))
			}
		}
		t.begun, t.named = true, nil
	}
	a.sendSubscribedLocked(s.id, r)
	a.pumpLocked(s.id, s)
}

// acquireBatchesLocked answers an Acquire when the subscriber has been sent all that is complete now.
func (a *Area) acquireBatchesLocked(from dsm.NodeID, s *subscriber, m *wire.Acquire) {
	if s.batches == nil {
		return // it subscribes again, and then repeats this
	}
	s.batches.waits = append(s.batches.waits, batchWait{round: m.Round, version: a.inPlaceVersionLocked()})
	a.pumpLocked(from, s)
}

// publishedLocked makes a version of what was just merged for a publisher. It calls complete when the version is, before anybody is told of it.
func (a *Area) publishedLocked(from dsm.NodeID, v dsm.Version, changed map[dsm.ExtentIndex]dsm.PageSet, complete func()) {
	w := &a.mu.whole
	if a.newestIsHereLocked(from) {
		w.replica = v
	}
	a.madeLocked(VersionInfo{Version: v, Size: a.mu.ino.Size, Writer: from})
	complete()
	a.toldOfNewestLocked()
	for _, id := range a.subscribersLocked() {
		s := a.mu.home.subs[id]
		if s.batches == nil {
			continue
		}
		if id != from || !a.isSelf(from) { // what this node has published, it has; another one may since have been sent an older version
			for e, p := range changed {
				s.batches.changed(e, p)
			}
		}
		a.pumpLocked(id, s)
	}
}

// newestIsHereLocked reports whether a publisher is this node, and its replica has all of the newest version that is complete.
func (a *Area) newestIsHereLocked(from dsm.NodeID) bool {
	s := a.mu.home.subs[from]
	return a.isSelf(from) && s != nil && s.batches != nil && s.batches.greeted && !s.batches.sending && a.mu.whole.replica == a.inPlaceVersionLocked()
}

// takesPageLocked is called before a page of a former home is put in place. Until takeoverDoneLocked the newest version is the one before.
func (a *Area) takesPageLocked(p dsm.PageIndex) {
	w, h := &a.mu.whole, a.historyLocked()
	a.changingLocked()
	if !w.taking {
		a.keepNewestLocked()
		w.taking, w.was = true, h.Pin()
	}
	h.Before(p, a.mu.mem.Home(p))
}

// comingLocked takes in what a former home says of the newest version.
func (a *Area) comingLocked(m *wire.HandoverExtent) {
	if w := &a.mu.whole; a.versionedLocked() && m.Whole > 0 {
		a.heardLocked(m.Whole)
		w.coming, w.shrunk = VersionInfo{Version: m.Whole, Writer: m.Writer, Size: m.Size}, w.shrunk || m.Shrunk
	}
}

// newestHereLocked returns the newest version that the home has whole: also one that a former home has handed over, if nobody has asked for it since.
func (a *Area) newestHereLocked() VersionInfo {
	newest, _ := a.newestLocked()
	if c := a.mu.whole.coming; a.versionedLocked() && c.Version > newest.Version {
		return c
	}
	return newest
}

// takeoverDoneLocked makes the newest version that a former home has handed over complete. The slot of the area is ready.
func (a *Area) takeoverDoneLocked() {
	w := &a.mu.whole
	v := w.coming
	for _, x := range a.mu.home.extents {
		v.Version = max(v.Version, x.version)
	}
	switch {
	case v.Version == 0:
		w.shrunk = false
	case w.halved && w.coming.Version == 0:
	case w.shrunk:
		a.heardLocked(v.Version)
		a.versionOfShrinkLocked(v.Writer)
	case w.history == nil || v.Version > w.history.Newest():
		if !w.taking {
			a.keepNewestLocked()
		}
		a.tookOverLocked(v)
	}
	w.coming = VersionInfo{}
	if w.taking {
		w.taking, w.changing = false, true
		w.history.Advance(w.was) // if the former home had nothing newer, all is in place all the same
		w.history.Unpin(w.was)
	}
}

// versionShrunkLocked follows a shrink. What it has left becomes a version of its own: other nodes may have truncated what lies past the end before they
// had the version before, and some after that, so it is not the same everywhere.
func (a *Area) versionShrunkLocked() {
	w := &a.mu.whole
	w.shrunk = w.shrunk || w.history != nil || a.ownHomeLocked() || w.coming.Version > 0
	if row := a.rowLocked(0); !a.isSelf(row.Primary) || !a.node.slotReady(a.slotLocked(0), row) {
		return // the next home makes it
	}
	if newest, ok := a.newestLocked(); ok && w.coming == (VersionInfo{}) {
		w.coming = newest
	}
	a.takeoverDoneLocked()
}

// versionOfShrinkLocked makes the version. The caller pumps.
func (a *Area) versionOfShrinkLocked(writer dsm.NodeID) {
	a.madeLocked(VersionInfo{Version: a.drawLocked(), Size: a.mu.ino.Size, Writer: writer})
	if a.mu.backed {
		a.copyNewestLocked()
	}
	a.toldOfNewestLocked()
	for _, s := range a.mu.home.subs {
		if s.batches != nil {
			s.batches.greeted = false
		}
	}
}

// endBatchesLocked gives up what is under way to a subscriber.
func (a *Area) endBatchesLocked(s *subscriber) {
	t := s.batches
	if t == nil {
		return
	}
	a.dropBatchLocked(s)
	s.batches = nil
}

// dropBatchLocked ends the pin of the batch that is being sent, and gives back the credit of what is not acked.
func (a *Area) dropBatchLocked(s *subscriber) {
	t := s.batches
	if t.sending {
		a.batchEndedLocked(t)
	}
	for _, n := range t.unacked {
		s.landedLocked(n)
	}
	clear(t.unacked)
}

// changed says that the newest version has changed pages of an extent.
func (t *batches) changed(e dsm.ExtentIndex, p dsm.PageSet) { t.owed[e] = t.owed[e].Or(p) }

// pumpBatchesLocked sends as much as the window and the link allow, and answers Acquires.
func (a *Area) pumpBatchesLocked(to dsm.NodeID, s *subscriber) {
	t := s.batches
	if t == nil || !t.begun || a.extentsLocked() == 0 || a.mu.whole.halved && !a.isSelf(to) { // no message says anything about an area with no extent
		return
	}
	for t.sending || !t.greeted || len(t.owed) > 0 {
		if !t.sending {
			if _, err := a.memoryLocked(); err != nil {
				a.retryMemoryLocked()
				return
			}
			if t.waiting = a.batchWaitsLocked(to); t.waiting {
				a.mu.whole.waiting = true
				return // batchEndedLocked tries again
			}
			t.version, t.sending, t.part = VersionInfo{Version: a.historyLocked().Pin(), Size: a.mu.ino.Size}, true, 0
			if k := a.mu.whole.kept; len(k) > 0 {
				t.version = k[len(k)-1].VersionInfo
			}
			t.pages, t.owed = t.owed, make(map[dsm.ExtentIndex]dsm.PageSet)
			maps.DeleteFunc(t.pages, func(e dsm.ExtentIndex, _ dsm.PageSet) bool { return int(e) >= a.extentsLocked() }) // truncated
			if len(t.pages) == 0 {
				t.pages[0] = dsm.PageSet{}
			}
			t.left, t.merged = slices.Sorted(maps.Keys(t.pages)), nil
			for _, e := range t.left {
				if x := a.mu.home.extents[e]; x != nil && x.parts[to] > 0 {
					if t.merged == nil {
						t.merged = make(map[dsm.ExtentIndex]dsm.Seq)
					}
					t.merged[e] = x.parts[to]
				}
			}
		}
		for len(t.left) > 0 {
			if s.inFlight >= pushWindow || !a.pushPartLocked(to, s) {
				return
			}
		}
		a.batchEndedLocked(t)
		t.sending, t.greeted = false, true
		t.flying = append(t.flying, flyingBatch{a.mu.home.lastPush, t.pages})
		t.pages = nil
		a.answerWaitsLocked(to, t, t.version.Version) // the owner may publish faster than the link takes it
	}
	a.answerWaitsLocked(to, t, a.inPlaceVersionLocked())
}

// batchWaitsLocked reports whether a batch to a node must wait for others that are under way. Each keeps what is published over the bytes of its
// version, so it may cost as much memory as the area, and there may be many slow subscribers. While memory is short no two batches of different versions are
// begun. Those that have waited begin together, with the same version, so that none waits for ever; the replica on this node waits for nobody.
func (a *Area) batchWaitsLocked(to dsm.NodeID) bool {
	if a.isSelf(to) || !a.lacksRoomLocked(a.pagesBytesLocked()) {
		return false
	}
	older := false
	for id, s := range a.mu.home.subs {
		if s.batches == nil || !s.batches.sending || a.isSelf(id) {
			continue
		}
		if s.batches.version.Version == a.inPlaceVersionLocked() {
			return false // one more costs nothing
		}
		older = true
	}
	return older
}

// batchEndedLocked ends the pin of a batch. Others may wait for that.
func (a *Area) batchEndedLocked(t *batches) {
	a.mu.whole.history.Unpin(t.version.Version)
	a.mu.whole.roomier = a.mu.whole.waiting // most end without anybody waiting
}

// pumpWaitingLocked begins the batches that have waited for the end of others, and reports whether there were any.
func (a *Area) pumpWaitingLocked() (more bool) {
	if !a.mu.whole.roomier {
		return false
	}
	a.mu.whole.waiting, a.mu.whole.roomier = false, false
	for _, id := range a.subscribersLocked() {
		if s := a.mu.home.subs[id]; s != nil && s.batches != nil && s.batches.waiting {
			more = true
			a.pumpLocked(id, s)
		}
	}
	return more
}

// answerWaitsLocked answers the Acquires that waited for a version which has been sent.
func (a *Area) answerWaitsLocked(to dsm.NodeID, t *batches, sent dsm.Version) {
	t.waits = slices.DeleteFunc(t.waits, func(w batchWait) bool {
		if w.version > sent {
			return false
		}
		a.sendLocked(to, &wire.Acquired{Stamp: a.stampLocked(), Round: w.round})
		return true
	})
}

// pushPartLocked sends the next part of a batch. It returns false if there is no credit.
func (a *Area) pushPartLocked(to dsm.NodeID, s *subscriber) bool {
	t := s.batches
	e := t.left[0]
	m := &wire.Push{Stamp: a.stampLocked(), Extent: e, Version: t.version.Version, Complete: true, Pages: t.pages[e].And(a.withinLocked(e)),
		Group: t.group, Part: t.part, Last: len(t.left) == 1}
	if x := a.mu.home.extents[e]; x != nil {
		m.Contains, m.Parts = x.writers[to], t.merged[e]
	}
	m.Writer, m.Size = t.version.Writer, t.version.Size
	var payload [][]byte
	for i := range m.Pages.All() {
		b, inPlace := a.mu.whole.history.At(page(e, i), t.version.Version)
		if inPlace {
			b = a.mu.mem.Home(page(e, i))
		}
		if isZero(b) {
			m.Zero.Add(i)
		} else {
			payload = append(payload, b)
		}
	}
	n := len(payload) * dsm.PageSize
	if !a.node.links.take(to, a, n) {
		return false
	}
	a.mu.home.lastPush++
	m.ID = a.mu.home.lastPush
	t.left = t.left[1:]
	t.part++
	t.unacked[m.ID] = n
	s.inFlight += n
	a.node.stats.pushes.Add(1)
	if a.isSelf(to) || n == 0 {
		a.sendLocked(to, m, payload...)
		return true
	}
	shared := wire.Share(n)
	b := shared.Bytes[:0]
	for _, p := range payload {
		b = append(b, p...)
	}
	a.sendSharedLocked(to, m, shared)
	return true
}

// batchAckedLocked handles a PushAck of a part.
func (a *Area) batchAckedLocked(from dsm.NodeID, s *subscriber, m *wire.PushAck) {
	if n, ok := s.batches.unacked[m.ID]; ok {
		delete(s.batches.unacked, m.ID)
		s.landedLocked(n)
		if f := s.batches.flying; len(f) > 0 && f[0].last == m.ID {
			s.batches.flying = f[1:]
		}
		a.pumpLocked(from, s)
	}
}

// againLocked sends again what may not have arrived, or was refused: all pages of batches that are not known to be in place, with the bytes that
// they have now.
func (a *Area) againLocked(s *subscriber) {
	t := s.batches
	if t == nil {
		return
	}
	a.dropBatchLocked(s)
	if t.sending {
		t.flying = append(t.flying, flyingBatch{pages: t.pages})
	}
	for _, f := range t.flying {
		for e, p := range f.pages {
			t.changed(e, p)
		}
	}
	t.sending, t.greeted, t.left, t.pages, t.flying = false, false, nil, nil, nil
}

// stage is what a replica has received of a batch that is not complete.
type stage struct {
	group uint64 // of its last Subscribe
	parts []message
	bytes int64
}

// stagePushLocked takes in a part of a batch. With the last one, all are put in place. A part that does not follow the one before is of a
// batch of which a part was refused, or of an earlier Subscribe: the home begins anew when it has the Subscribe.
func (a *Area) stagePushLocked(from dsm.NodeID, m *wire.Push, payload [][]byte) error {
	st := &a.mu.whole.stage
	before := st.parts
	if m.Part == 0 {
		before = nil
	}
	if m.Group != st.group || int(m.Part) != len(before) {
		return nil
	}
	if err := a.partProblem(m, payload, before); err != nil { // all of a batch is put in place, or nothing
		return err
	}
	if m.Part == 0 {
		st.parts, st.bytes = nil, 0
	}
	if !m.Last {
		b := bytes.Clone(flat(payload))
		st.parts, st.bytes = append(st.parts, message{peer: from, msg: m, payload: [][]byte{b}}), st.bytes+int64(len(b))
		a.sendLocked(from, &wire.PushAck{Stamp: a.stampLocked(), Extent: m.Extent, ID: m.ID})
		return nil
	}
	if a.ownHomeLocked() && !a.isSelf(from) { // the next home has all: the bytes here are those of a replica from now on
		if row := a.rowLocked(0); row.BackupOf(a.node.cfg.Self) >= 0 {
			a.stepDownLocked(a.slotLocked(0))
		}
		for _, e := range slices.Sorted(maps.Keys(a.mu.home.extents)) {
			a.resignLocked(e)
		}
	}
	parts := append(st.parts, message{peer: from, msg: m, payload: payload})
	st.parts, st.bytes = nil, 0
	a.fenceLocked(parts)
	a.changingLocked()
	for i, p := range parts {
		push := p.msg.(*wire.Push)
		x := a.extentLocked(push.Extent)
		if !a.ownHomeLocked() && m.Version > a.historyLocked().Newest() { // else it is sent again, and changes nothing
			had := push.Pages.And(x.have)
			for i := range had.All() {
				a.historyLocked().Before(page(push.Extent, i), a.mu.mem.Base(page(push.Extent, i)))
			}
		}
		if err := a.takePushLocked(from, push, p.payload, i == len(parts)-1); err != nil {
			return err
		}
	}
	a.heardLocked(m.Version)
	r := &a.mu.replica
	r.version = max(r.version, m.Version)
	a.mu.whole.replica = max(a.mu.whole.replica, m.Version)
	if a.isSelf(from) {
		a.mu.owning.ousted, a.mu.owning.storing = false, false
	}
	if !a.ownHomeLocked() {
		a.completedLocked(VersionInfo{Version: m.Version, Size: m.Size, Writer: m.Writer})
	}
	return nil
}

// partProblem checks a part of a batch that came from elsewhere, behind those before it.
func (a *Area) partProblem(m *wire.Push, payload [][]byte, before []message) error {
	if len(m.Index) != 0 || len(before) > 0 && before[0].msg.(*wire.Push).Version != m.Version {
		return errs.E(errs.Corrupt, "push", "part %d of version %d of area %d does not fit the parts before it", m.Part, m.Version, a.id)
	}
	return wholePages(m, payload)
}
