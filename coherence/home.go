package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// home is what this node knows as the home of extents of one area: their versions, whose publishes they
// contain, and who is subscribed. The bytes themselves are the home copy, which package pages keeps.
type home struct {
	extents map[dsm.ExtentIndex]*homeExtent // extents that were ever published to
	below   dsm.ExtentIndex                 // all of them, and of those that subscribers have something of, are below it
	pages   int                             // pages of them that were ever published to
	data    int                             // pages of them with data: bytes that are not all zero
	subs    map[dsm.NodeID]*subscriber
	untils  map[dsm.NodeID]*wire.Inquire // the Inquire of each node that waits for a version
	rounds  homeRounds
	pushed  *keptPushes // nil: none are kept

	lone lone // who publishes: see migrate.go

	lastPush uint64 // ID of the last push; IDs are not used twice, so a late ack matches no newer push
}

// homeExtent is the directory entry of an extent.
type homeExtent struct {
	version dsm.Version                  // of the newest publish
	pages   []dsm.Version                // of the newest publish to each page; 0, or past the end: none
	data    dsm.PageSet                  // pages whose bytes are not all zero
	writers map[dsm.NodeID]dsm.Seq       // the newest publish that was merged, for each publisher
	parts   map[dsm.NodeID]dsm.Seq       // likewise, the newest part of a round
	kept    map[dsm.NodeID]*pages.Merged // these for the next daemon; nil: nothing
}

func (h *home) init() {
	h.pages, h.data = 0, 0
	h.extents = make(map[dsm.ExtentIndex]*homeExtent)
	h.subs = make(map[dsm.NodeID]*subscriber)
	h.pushed = nil
	h.untils = make(map[dsm.NodeID]*wire.Inquire)
	h.rounds = homeRounds{open: make(map[dsm.RoundID]*homeRound), ended: make(map[dsm.AreaID]dsm.RoundID)}
}

// setVersion records the version of page i. Version 0 means that the page is all zero.
func (h *home) setVersion(x *homeExtent, i int, v dsm.Version) {
	was := dsm.Version(0)
	if i < len(x.pages) {
		was = x.pages[i]
	} else if v != 0 {
		x.grow(i)
	}
	switch {
	case was == 0 && v != 0:
		h.pages++
	case was != 0 && v == 0:
		h.pages--
	}
	if i < len(x.pages) {
		x.pages[i] = v
	}
	if v == 0 {
		h.setData(x, i, false)
	}
}

// grow makes room for the version of page i. Small files have few pages, and there may be many such files.
func (x *homeExtent) grow(i int) {
	n := 1
	for n <= i {
		n *= 4
	}
	pages := make([]dsm.Version, n)
	copy(pages, x.pages)
	x.pages = pages
}

// setData records whether page i has bytes other than zero.
func (h *home) setData(x *homeExtent, i int, data bool) {
	switch was := x.data.Has(i); {
	case data && !was:
		x.data.Add(i)
		h.data++
	case !data && was:
		x.data.Remove(i)
		h.data--
	}
}

// lookAtHomeLocked records whether page i has data. If it has none, its memory is given back.
func (a *Area) lookAtHomeLocked(e dsm.ExtentIndex, x *homeExtent, i int) {
	zero := a.mu.mem.HomeZero(page(e, i))
	a.mu.home.setData(x, i, !zero)
	if zero {
		a.mu.mem.FreeHome(page(e, i))
	}
}

// newer returns the pages that changed after v.
func (x *homeExtent) newer(v dsm.Version) (s dsm.PageSet) {
	if x == nil || x.version <= v {
		return s
	}
	for i, pv := range x.pages {
		if pv > v {
			s.Add(i)
		}
	}
	return s
}

// homeExtentLocked returns the directory entry of e, and makes it at the first publish. The caller has made the memory of the
// area.
func (a *Area) homeExtentLocked(e dsm.ExtentIndex) *homeExtent {
	x := a.mu.home.extents[e]
	if x == nil {
		x = newHomeExtent(0)
		a.mu.home.extents[e] = x
		a.keepExtentLocked(e, x)
		a.mu.home.below = max(a.mu.home.below, e+1)
		// The base copy of the extent, still all zero, becomes the home copy.
		if !a.mu.mem.Homed(e) {
			a.mu.mem.BecomeHome(e)
		}
	}
	return x
}

// homePublishLocked merges a publish, and gives it its version. No other function makes versions of publishes.
func (a *Area) homePublishLocked(from dsm.NodeID, m *wire.Publish, payload []byte) error {
	if a.strangerLocked(from, &m.Stamp) {
		return nil
	}
	ack := &wire.PublishAck{Stamp: a.stampLocked(), Extent: m.Extent, Seq: m.Seq}
	if x := a.mu.home.extents[m.Extent]; x != nil && m.Seq <= x.writers[from] {
		a.ackAgainLocked(from, ack, x, m.Pages)
		return nil
	}
	if m.Gen < a.mu.ino.Gen {
		ack.Stale = true
		a.sendLocked(from, ack)
		return nil
	}
	delta := merge.Delta{Extent: m.Extent, Pages: m.Pages, Index: m.Index, Data: payload}
	if err := a.validateLocked(&delta); err != nil {
		return err
	}
	mem, err := a.memoryLocked()
	if err != nil {
		a.parkForMemoryLocked(from, m, payload)
		return nil
	}
	if a.versionedLocked() {
		return errs.E(errs.Corrupt, "publish", "area %d is versioned: a publish that is no part of a version", a.id)
	}
	x := a.homeExtentLocked(m.Extent)
	own, base := a.isSelf(from) && !a.hasPartsLocked(m.Extent) && !a.apartLocked(m.Extent) && a.ridesLocked(), x.version
	for i := range m.Pages.All() {
		if mem.BeforeHomeWrite(page(m.Extent, i), own) {
			ack.Rode.Add(i)
		}
	}
	adds := a.beginAddingLocked(m.Extent)
	a.overflowedLocked(a.mu.kernel.Apply(&delta, func(i int) []byte {
		mem.PrefetchNext(m.Extent, &m.Pages, i)
		if adds {
			mem.BeforeAdding(page(m.Extent, i))
		}
		return mem.Home(page(m.Extent, i))
	}))
	a.overtakePartsLocked(from, m.Seq, &delta)
	x.version = a.drawLocked()
	for i := range m.Pages.All() {
		a.mu.home.setVersion(x, i, x.version)
		a.lookAtHomeLocked(m.Extent, x, i)
	}
	x.writers[from] = m.Seq
	a.addedLocked(m.Extent, x, adds, from)
	a.publishedByLocked(from, m.Extent)
	a.node.stats.publishesMerged.Add(1)
	f := forwarding{publish: m, payload: payload}
	defer f.end()
	a.copyPublishLocked(from, base, &f)

	var dense *wire.Shared
	if a.isSelf(from) {
		dense = a.denseLocked(m) // before it is answered
	}
	ack.Version, ack.Data = x.version, x.data.Len()
	if sub := a.mu.home.subs[from]; sub != nil {
		// Pages that the publisher had up to date need not be pushed to it: its own bytes
		// are the result. It lacks those for which a push was due or under way.
		if l := sub.lagLocked(m.Extent); l != nil {
			sub.lackLocked(m.Extent, l.lacks.Or(l.sent).And(m.Pages))
			ack.Complete = l.lacks.Empty() && len(l.pushes) == 0
		}
		ack.Upto = a.uptoLocked(sub)
	}
	a.sendLocked(from, ack)
	ids := a.subscribersLocked()
	for _, id := range ids {
		if s := a.mu.home.subs[id]; id != from && !a.forwardLocked(id, s, &f) {
			s.lackLocked(m.Extent, m.Pages)
		}
	}
	if dense != nil {
		a.lendPublishLocked(m, dense)
	}
	for _, id := range ids {
		a.pumpLocked(id, a.mu.home.subs[id])
	}
	return nil
}

// ackAgainLocked answers a publish that was sent again, and has been merged already, perhaps by older rules.
func (a *Area) ackAgainLocked(from dsm.NodeID, ack *wire.PublishAck, x *homeExtent, pages dsm.PageSet) {
	ack.Version, ack.Data = x.version, x.data.Len()
	if sub := a.mu.home.subs[from]; sub != nil {
		sub.lackLocked(ack.Extent, pages)
	}
	a.sendLocked(from, ack)
	a.pumpLocked(from, a.mu.home.subs[from])
}

// validateLocked checks a delta that came from elsewhere.
func (a *Area) validateLocked(delta *merge.Delta) error {
	if a.mu.ruleErr != nil {
		return errs.E(errs.Corrupt, "publish", "an area without a merge rule: %w", a.mu.ruleErr)
	}
	for i := range delta.Pages.All() {
		if !a.inAreaLocked(delta.Extent, i) {
			return errs.E(errs.Corrupt, "publish", "page %d is past the end of area %d", page(delta.Extent, i), a.id)
		}
	}
	return delta.Validate(a.mu.kernel)
}

// subscribersLocked returns the subscribers in a fixed order. This node is the last, so that pushes to others leave
// before it spends time on its own copy.
func (a *Area) subscribersLocked() []dsm.NodeID {
	ids := make([]dsm.NodeID, 0, len(a.mu.home.subs))
	for id := range a.mu.home.subs {
		ids = append(ids, id)
	}
	self := a.node.cfg.Self
	slices.SortFunc(ids, func(x, y dsm.NodeID) int {
		switch {
		case x == y:
			return 0
		case x == self || (y != self && x > y):
			return 1
		}
		return -1
	})
	return ids
}

// homeViewChangedLocked forgets subscribers that have left. For the others it forgets what they lack in slots that
// moved: they subscribe to these slots again, at the new home. So it does if this node is the new home.
//
// handovers sends the slots that went to other homes. Their home copies are freed by a later view, which says that
// the new homes have them.
func (a *Area) homeViewChangedLocked(old *dsm.View) {
	if own := a.mu.own; own != 0 && a.movedLocked(old, own) {
		a.mu.home.lone.reset(a.mu.view.OwnOf(a.id).Patience)
	}
	moved := a.movedSlotsLocked(old)
	for _, id := range a.subscribersLocked() {
		s := a.mu.home.subs[id]
		if _, ok := a.mu.view.Member(id); !ok {
			a.forgetSubscriberLocked(id)
			continue
		}
		if a.versionedLocked() && a.movedLocked(old, a.slotLocked(0)) {
			a.endBatchesLocked(s)
		}
		s.slots = s.slots.minus(&moved)
		for _, e := range inSlotsLocked(a, s.extents, a.mu.home.below, &moved) {
			s.forgetLocked(e)
		}
	}
	for id := range a.mu.home.untils {
		if a.leftLocked(id, 0) {
			delete(a.mu.home.untils, id)
		}
	}
	changed := a.changedSlotsLocked(old)
	for _, e := range inSlotsLocked(a, a.mu.home.extents, a.mu.home.below, &changed) {
		if a.othersHaveLocked(old, a.slotLocked(e)) {
			a.resignLocked(e)
		}
	}
	for _, n := range a.forgottenLocked(old) {
		for _, x := range a.mu.home.extents {
			x.forgetWriter(n)
		}
	}
	a.roundsViewChangedLocked(old)
}

// forgottenLocked returns the nodes that have left the cluster for good since a view.
func (a *Area) forgottenLocked(old *dsm.View) (list []dsm.NodeID) {
	for _, m := range old.Members {
		if a.leftLocked(m.ID, 0) {
			list = append(list, m.ID)
		}
	}
	for _, f := range old.Former {
		if a.leftLocked(f.ID, 0) {
			list = append(list, f.ID)
		}
	}
	return list
}

// othersHaveLocked reports whether home copies of a slot are of no use here any more: others are its home, or this node is to become it once
// more, and the source has newer ones.
func (a *Area) othersHaveLocked(old *dsm.View, s dsm.Slot) bool {
	row := a.mu.view.Row(s)
	if !a.isSelf(row.Primary) {
		return !a.isSelf(row.Source)
	}
	return row.Source != 0 && a.movedLocked(old, s) && !a.node.slotReady(s, row)
}

// leftLocked reports whether a publisher has left the cluster for good. From then on nothing of it is merged: the home has forgotten which of its publishes
// were merged, so one that arrives again after a handover would count twice. A node that was evicted may join again, and send again what it had under way.
func (a *Area) leftLocked(n dsm.NodeID, _ dsm.Seq) bool {
	return !a.mu.view.Knows(n)
}

// resignLocked frees the home copy of an extent. The new home has received it, or has something else.
func (a *Area) resignLocked(e dsm.ExtentIndex) {
	h := &a.mu.home
	a.resignVersionsLocked()
	for i := range h.extents[e].pages {
		h.setVersion(h.extents[e], i, 0)
	}
	h.extents[e].forgetWriters()
	delete(h.extents, e)
	if a.mu.mem != nil {
		a.mu.mem.ResignHome(e)
		if a.mu.replica.subscribed {
			a.forgetAllButLocked(e)
		} else {
			a.forgetLocked(e)
		}
	}
	a.freeIfUnusedLocked()
}

// homeGenChangedLocked follows a shrink or a change of rules. Replicas that know of it drop pushes that were sent
// before. So all pushes under way count as dropped. The area had extents up to end.
func (a *Area) homeGenChangedLocked(end dsm.ExtentIndex) {
	first := dsm.ExtentIndex(a.mu.ino.Size / dsm.ExtentSize) // of those of which pages are past the end
	for _, id := range a.subscribersLocked() {
		s := a.mu.home.subs[id]
		a.againLocked(s)
		s.requeueAllLocked()
		for _, w := range s.acquires { // what they waited for may have been pushed, and refused
			w.until, w.left = s.lastTurn, int(s.lacking)
		}
		for _, e := range keysFrom(s.extents, first, end) { // requeueAllLocked looks only at extents with pushes under way
			l, in := s.extents[e], a.withinLocked(e)
			l.lacks, l.has, l.asked, l.fetched = l.lacks.And(in), l.has.And(in), l.asked.And(in), l.fetched.And(in)
			s.settle(l)
		}
	}
	last := dsm.PageIndex((a.mu.ino.Size + dsm.PageSize - 1) / dsm.PageSize)
	for _, e := range keysFrom(a.mu.home.extents, first, end) {
		x := a.mu.home.extents[e]
		for i := range x.pages {
			if page(e, i) >= last {
				a.mu.home.setVersion(x, i, 0)
			}
		}
	}
	for _, id := range a.subscribersLocked() {
		a.pumpLocked(id, a.mu.home.subs[id])
	}
	a.roundsGenChangedLocked()
}

// homeResetLocked follows a broken session: pushes under way may not arrive.
func (a *Area) homeResetLocked(peer dsm.NodeID) {
	delete(a.mu.home.untils, peer) // it asks again
	a.roundsResetLocked(peer)
	if s := a.mu.home.subs[peer]; s != nil {
		a.againLocked(s)
		s.requeueAllLocked()
		a.pumpLocked(peer, s)
	}
}
