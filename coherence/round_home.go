package coherence

import (
	"cmp"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// homeRounds are the rounds of an area as one of its homes knows them.
type homeRounds struct {
	open  map[dsm.RoundID]*homeRound
	parts int                        // of all of them
	bytes int64                      // that are kept for these parts
	ended map[dsm.AreaID]dsm.RoundID // the last round that each group has ended here, for all extents that are homed here
}

// homeRound is a round that has not ended. The parts are kept as they came: a node that turns out not to belong to the round has its parts
// taken out again, and the result does not depend on the order in which parts arrive, to the last bit.
type homeRound struct {
	parts   map[dsm.ExtentIndex][]stagedPart
	marked  map[dsm.NodeID]bool // nodes all of whose parts are here; true: there are none, as the node has taken them back
	finish  *wire.Finish        // who belongs to it, or nil
	waiting []finishing         // the Acquires that wait for the end
}

// finishing is an Acquire that waits for the end of a round. A node may have several: it has a Finish for each of its programs.
type finishing struct {
	from    dsm.NodeID
	acquire uint64
}

type stagedPart struct {
	from  dsm.NodeID
	seq   dsm.Seq
	delta merge.Delta
	data  *wire.Shared // what delta.Data is in
	bytes int64        // that are kept for it alone: of this node's own, data is that of its publication
}

// count counts a part that comes or goes.
func (h *homeRounds) count(p *stagedPart, by int) {
	h.parts += by
	h.bytes += int64(by) * p.bytes
}

func newHomeExtent(v dsm.Version) *homeExtent {
	return &homeExtent{version: v, writers: make(map[dsm.NodeID]dsm.Seq), parts: make(map[dsm.NodeID]dsm.Seq)}
}

func (h *homeRounds) round(id dsm.RoundID) *homeRound {
	hr := h.open[id]
	if hr == nil {
		hr = &homeRound{parts: make(map[dsm.ExtentIndex][]stagedPart), marked: make(map[dsm.NodeID]bool)}
		h.open[id] = hr
	}
	return hr
}

// over reports whether a round has ended here.
func (h *homeRounds) over(id dsm.RoundID) bool {
	last, ok := h.ended[id.Group]
	return ok && !last.Before(id)
}

// inOrder returns the rounds that have not ended in a fixed order.
func (h *homeRounds) inOrder() []dsm.RoundID {
	return slices.SortedFunc(maps.Keys(h.open), func(x, y dsm.RoundID) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Generation, y.Generation), cmp.Compare(x.Number, y.Number))
	})
}

// homePartLocked keeps a part until its round ends.
func (a *Area) homePartLocked(from dsm.NodeID, m *wire.Part, payload []byte) error {
	if a.leftLocked(from, 0) {
		return nil
	}
	h := &a.mu.home
	ack := &wire.PublishAck{Stamp: a.stampLocked(), Extent: m.Extent, Seq: m.Seq}
	if x := h.extents[m.Extent]; x != nil && m.Seq <= x.parts[from] {
		a.ackAgainLocked(from, ack, x, m.Pages)
		return nil
	}
	hr := h.rounds.open[m.Round]
	ousted := a.versionedLocked() && a.mu.own != 0 && !a.isSelf(from) // a version has one writer: see ownAgain
	if m.Gen < a.mu.ino.Gen || ousted || h.rounds.over(m.Round) || hr != nil && hr.excludes(from) {
		ack.Stale = true
		a.sendLocked(from, ack)
		return nil
	}
	p := stagedPart{from: from, seq: m.Seq, delta: merge.Delta{Extent: m.Extent, Pages: m.Pages, Index: m.Index, Data: payload}}
	if err := a.validateLocked(&p.delta); err != nil {
		return err
	}
	if _, err := a.memoryLocked(); err != nil {
		a.parkForMemoryLocked(from, m, payload)
		return nil
	}
	hr = h.rounds.round(m.Round)
	if !slices.ContainsFunc(hr.parts[m.Extent], func(o stagedPart) bool { return o.from == from && o.seq == m.Seq }) {
		if pub := a.ownPartLocked(from, m); pub != nil {
			p.data = pub.data.Retain()
		} else {
			p.data = a.keptLocked(payload)
			p.bytes = int64(cap(p.data.Bytes))
		}
		p.delta.Data = p.data.Bytes
		hr.parts[m.Extent] = append(hr.parts[m.Extent], p)
		h.rounds.count(&p, +1)
		if hr.marked[from] { // it takes part again, or sends again what it has taken back: its next Contributed says which
			delete(hr.marked, from)
			a.askMissingLocked(m.Round, hr)
		}
	}
	a.sendLocked(from, &wire.Staged{Stamp: a.stampLocked(), Extent: m.Extent, Seq: m.Seq})
	return nil
}

// ownPartLocked returns the publication that a part of this node is, or nil: it may have been taken back while the part waited, or the part may have
// values of a publish that is under way.
func (a *Area) ownPartLocked(from dsm.NodeID, m *wire.Part) *publication {
	if x := a.mu.replica.extents[m.Extent]; a.isSelf(from) && x != nil && x.publish() == nil {
		return x.publication(m.Seq)
	}
	return nil
}

// overtakePartsLocked is overtakeLocked at the home, for the parts of a node that were made before the publish.
func (a *Area) overtakePartsLocked(from dsm.NodeID, seq dsm.Seq, d *merge.Delta) {
	h := &a.mu.home.rounds
	for _, hr := range h.open {
		parts := hr.parts[d.Extent]
		for i := range parts {
			p := &parts[i]
			if p.from != from || p.seq > seq || !overtake(a.mu.kernel, &p.delta, &p.data, a.mu.kernel, d) {
				continue
			}
			h.count(p, -1)
			p.bytes = int64(cap(p.data.Bytes))
			h.count(p, +1)
		}
	}
}

// partsOf returns how many parts of a node are here.
func (hr *homeRound) partsOf(n dsm.NodeID) (k int) {
	for _, parts := range hr.parts {
		for i := range parts {
			if parts[i].from == n {
				k++
			}
		}
	}
	return k
}

// excludes reports whether it is known that a node does not belong to the round.
func (hr *homeRound) excludes(n dsm.NodeID) bool {
	return hr.finish != nil && !slices.Contains(hr.finish.Nodes, n)
}

// homeContributedLocked takes note that all parts of a node are here. One that was sent before this node got its last slot, or its rules,
// does not count: the node sends it again when it has heard of that.
func (a *Area) homeContributedLocked(from dsm.NodeID, m *wire.Contributed) {
	h := &a.mu.home
	switch {
	case a.leftLocked(from, 0):
		return
	case h.rounds.over(m.Round):
	case m.None:
		if hr := h.rounds.open[m.Round]; hr != nil {
			a.refusePartsLocked(hr, func(p *stagedPart) bool { return p.from == from })
			hr.marked[from] = true
			a.forgetAbandonedLocked(m.Round)
		}
	case m.Gen < a.mu.ino.Gen || m.Epoch < a.lastGainLocked():
		return
	default:
		hr := h.rounds.round(m.Round)
		if !hr.excludes(from) && hr.partsOf(from) < m.Parts {
			return // some were dropped with a session, and their node had not heard of that: it sends all again when it has
		}
		hr.marked[from] = false
	}
	a.sendLocked(from, &wire.Counted{Stamp: a.stampLocked(), Round: m.Round, Nonce: m.Nonce})
	a.endRoundLocked(m.Round)
}

// forgetAbandonedLocked forgets a round that perhaps nobody ends: it has no parts, and who ends it asks what lacks; or a node has given it
// up, and all others that have contributed are dead. The death of a member alone does not end a round.
func (a *Area) forgetAbandonedLocked(id dsm.RoundID) {
	hr, given := a.mu.home.rounds.open[id], false
	if hr.finish != nil {
		return
	}
	in := make(map[dsm.NodeID]struct{})
	for n, none := range hr.marked {
		if given = given || none; !none {
			in[n] = struct{}{}
		}
	}
	for _, parts := range hr.parts {
		for i := range parts {
			in[parts[i].from] = struct{}{}
		}
	}
	maps.DeleteFunc(in, func(n dsm.NodeID, _ struct{}) bool { return a.leftLocked(n, 0) || slices.Contains(a.mu.dead, n) })
	if len(hr.parts) == 0 || given && len(in) == 0 {
		delete(a.mu.home.rounds.open, id)
		a.refusePartsLocked(hr, func(*stagedPart) bool { return true })
	}
}

// lastGainLocked returns the epoch at which this node last became the home of a slot of the area.
func (a *Area) lastGainLocked() (last dsm.Epoch) {
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		if row := a.rowLocked(e); a.isSelf(row.Primary) {
			last = max(last, row.Epoch)
		}
	}
	return last
}

// homeFinishLocked ends a round as soon as that is possible. Then, or if it has ended before, it goes on as homeAcquireLocked.
func (a *Area) homeFinishLocked(from dsm.NodeID, m *wire.Finish) {
	h := &a.mu.home
	if h.rounds.over(m.Round) {
		a.homeAcquireLocked(from, &wire.Acquire{Stamp: m.Stamp, Round: m.Acquire})
		return
	}
	if a.versionedLocked() && !slices.Equal(m.Nodes, []dsm.NodeID{from}) {
		return // a version has one writer, who ends it
	}
	if m.Epoch < a.lastGainLocked() {
		return // another home may have answered it since; who still waits sends it again in that view
	}
	hr := h.rounds.round(m.Round)
	if hr.finish == nil || hr.finish.Epoch <= m.Epoch {
		hr.finish = m
	}
	if w := (finishing{from, m.Acquire}); !slices.Contains(hr.waiting, w) { // it is sent again after a broken session
		hr.waiting = append(hr.waiting, w)
	}
	a.refusePartsLocked(hr, func(p *stagedPart) bool { return hr.excludes(p.from) })
	a.askMissingLocked(m.Round, hr)
	a.endRoundLocked(m.Round)
}

// askMissingLocked asks the nodes of a round that is to end for what lacks.
func (a *Area) askMissingLocked(id dsm.RoundID, hr *homeRound) {
	for _, n := range hr.lackingLocked(a) {
		a.sendLocked(n, &wire.Missing{Stamp: a.stampLocked(), Round: id})
	}
}

// lackingLocked returns the nodes whose parts may not all be here. Nobody waits for those of a node that has died: what is here of it counts.
func (hr *homeRound) lackingLocked(a *Area) (list []dsm.NodeID) {
	if hr.finish == nil {
		return nil
	}
	for _, n := range hr.finish.Nodes {
		_, marked := hr.marked[n]
		if (!marked || a.partWaitsLocked(n, hr.finish.Round)) && !a.leftLocked(n, 0) && !slices.Contains(a.mu.dead, n) {
			list = append(list, n)
		}
	}
	return list
}

// partWaitsLocked reports whether a part of a node is here that cannot be taken yet, for lack of memory. The Contributed behind it waits too,
// but there may have been an earlier one.
func (a *Area) partWaitsLocked(from dsm.NodeID, id dsm.RoundID) bool {
	is := func(m message) bool {
		p, ok := m.msg.(*wire.Part)
		return ok && m.peer == from && p.Round == id
	}
	return slices.ContainsFunc(a.mu.parked, is) || slices.ContainsFunc(a.mu.short.waiting, is)
}

// endRoundsLocked ends the rounds that nothing lacks any more.
func (a *Area) endRoundsLocked() {
	for _, id := range a.mu.home.rounds.inOrder() {
		a.endRoundLocked(id)
	}
}

// endRoundLocked ends a round if nothing lacks: it merges the parts, in one step, and goes on with the Acquires that wait for that.
func (a *Area) endRoundLocked(id dsm.RoundID) {
	h := &a.mu.home
	hr := h.rounds.open[id]
	if hr == nil || hr.finish == nil || a.mu.receiving > 0 || a.awaitingLocked() || len(hr.lackingLocked(a)) > 0 {
		return
	}
	delete(h.rounds.open, id)
	h.rounds.ended[id.Group] = id
	a.mergeRoundLocked(hr, hr.finish.Writers)
	for _, parts := range hr.parts {
		for i := range parts {
			h.rounds.count(&parts[i], -1)
		}
	}
	waiting := hr.waiting
	for _, old := range h.rounds.inOrder() {
		if hr := h.rounds.open[old]; old.Before(id) { // nobody will end it
			delete(h.rounds.open, old)
			a.refusePartsLocked(hr, func(*stagedPart) bool { return true })
			waiting = append(waiting, hr.waiting...)
		}
	}
	for _, w := range waiting {
		a.homeAcquireLocked(w.from, &wire.Acquire{Stamp: a.stampLocked(), Round: w.acquire})
	}
}

// mergeRoundLocked merges the parts of a round, in the order of their nodes, as one version.
func (a *Area) mergeRoundLocked(hr *homeRound, writers int) {
	if len(hr.parts) == 0 {
		if a.mu.whole.halved { // what it was to have has been stored back
			a.versionOfShrinkLocked(hr.finish.Nodes[0])
		}
		return
	}
	h, mem := &a.mu.home, a.mu.mem
	var changed map[dsm.ExtentIndex]dsm.PageSet // of a versioned area; else nil
	if a.versionedLocked() {
		changed = make(map[dsm.ExtentIndex]dsm.PageSet)
		a.takeoverDoneLocked()
		a.keepReadableLocked()
		a.changingLocked()
	}
	v := a.drawLocked()
	var sum merge.Staged
	rodes := make(map[dsm.ExtentIndex]dsm.PageSet)
	order := slices.Sorted(maps.Keys(hr.parts))
	bases := make(map[dsm.ExtentIndex]dsm.Version, len(order)) // the versions before
	for _, e := range order {
		parts := hr.parts[e]
		slices.SortFunc(parts, func(p, q stagedPart) int { return cmp.Or(cmp.Compare(p.from, q.from), cmp.Compare(p.seq, q.seq)) })
		x := a.homeExtentLocked(e)
		var all dsm.PageSet
		for i := range parts {
			p := &parts[i]
			all = all.Or(p.delta.Pages)
			x.parts[p.from] = max(x.parts[p.from], p.seq)
		}
		bases[e], x.version = x.version, v
		alone := len(parts) == 1 && a.mu.kernel.Last() // then there is nothing to add up
		var rode dsm.PageSet                           // pages whose base follows
		adds := a.beginAddingLocked(e)
		rides := alone && changed != nil && a.ridesAloneLocked(e, &parts[0])
		for i := range all.All() {
			if changed != nil {
				a.historyLocked().Before(page(e, i), mem.Home(page(e, i)))
			}
			if mem.BeforeHomeWrite(page(e, i), rides) {
				rode.Add(i)
			}
			if adds {
				mem.BeforeAdding(page(e, i))
			}
			if alone {
				a.mu.kernel.Overlay(&parts[0].delta, i, mem.Home(page(e, i)))
			} else {
				sum.Reset()
				for j := range parts {
					a.mu.kernel.Fold(&sum, &parts[j].delta, page(e, i))
				}
				a.mu.kernel.ApplyStaged(&sum, page(e, i), writers, mem.Home(page(e, i)))
				a.overflowedLocked(a.mu.kernel.NotFinite(page(e, i), mem.Home(page(e, i))))
			}
			h.setVersion(x, i, v)
			a.lookAtHomeLocked(e, x, i)
		}
		var from []dsm.NodeID
		for i := range parts {
			parts[i].data.Release()
			if i == 0 || parts[i].from != parts[i-1].from {
				from = append(from, parts[i].from)
			}
		}
		a.addedLocked(e, x, adds, from...)
		a.node.stats.publishesMerged.Add(uint64(len(parts)))
		if changed != nil {
			changed[e], rodes[e] = all, rode
			continue
		}
		a.copyPagesLocked(e, bases[e])
		a.ackPartsLocked(e, v, parts, dsm.PageSet{})
		for _, id := range a.subscribersLocked() {
			h.subs[id].lackLocked(e, all)
		}
	}
	if changed != nil {
		a.publishedLocked(hr.finish.Nodes[0], v, changed, func() {
			a.copyVersionLocked(bases)
			for _, e := range order {
				a.ackPartsLocked(e, v, hr.parts[e], rodes[e])
			}
		})
		return
	}
	for _, id := range a.subscribersLocked() {
		a.pumpLocked(id, h.subs[id])
	}
}

// ridesAloneLocked reports whether the base copy of an extent may follow the home while that merges the part p of a version. So it is if p is all that is under way of the extent,
// and the replica on this node has the version before.
func (a *Area) ridesAloneLocked(e dsm.ExtentIndex, p *stagedPart) bool {
	x := a.mu.replica.extents[e]
	return x != nil && len(x.parts) == 1 && x.pub == nil && x.parts[0].seq == p.seq && a.newestIsHereLocked(p.from) && !a.apartLocked(e)
}

// ackPartsLocked says that parts are merged. The base copy of this node has followed already of the pages that rode.
func (a *Area) ackPartsLocked(e dsm.ExtentIndex, v dsm.Version, parts []stagedPart, rode dsm.PageSet) {
	for i := range parts {
		a.sendLocked(parts[i].from, &wire.PublishAck{Stamp: a.stampLocked(), Extent: e, Seq: parts[i].seq, Version: v, Data: a.mu.home.extents[e].data.Len(), Rode: rode})
	}
}

// refusePartsLocked gives parts back to those that have sent them.
func (a *Area) refusePartsLocked(hr *homeRound, which func(p *stagedPart) bool) {
	for _, e := range slices.Sorted(maps.Keys(hr.parts)) {
		a.dropPartsLocked(hr, e, func(p *stagedPart) bool {
			if !which(p) {
				return false
			}
			a.sendLocked(p.from, &wire.PublishAck{Stamp: a.stampLocked(), Extent: e, Seq: p.seq, Stale: true})
			return true
		})
	}
	a.freeIfUnusedLocked()
}

// dropPartsLocked forgets parts of an extent. freeIfUnusedLocked follows.
func (a *Area) dropPartsLocked(hr *homeRound, e dsm.ExtentIndex, which func(p *stagedPart) bool) {
	hr.parts[e] = slices.DeleteFunc(hr.parts[e], func(p stagedPart) bool {
		out := which(&p)
		if out {
			a.mu.home.rounds.count(&p, -1)
			p.data.Release()
		}
		return out
	})
	if len(hr.parts[e]) == 0 {
		delete(hr.parts, e)
	}
}

// roundsViewChangedLocked forgets parts of extents that have moved: their nodes send them again. A home that has got slots does not know
// which parts of them there are.
func (a *Area) roundsViewChangedLocked(old *dsm.View) {
	gained := false
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		gained = gained || a.movedLocked(old, a.slotLocked(e)) && a.isSelf(a.rowLocked(e).Primary)
	}
	if gained { // their last home may not have ended the rounds that have ended here
		clear(a.mu.home.rounds.ended)
	}
	for _, id := range a.mu.home.rounds.inOrder() {
		hr := a.mu.home.rounds.open[id]
		for _, e := range slices.Sorted(maps.Keys(hr.parts)) {
			moved := a.movedLocked(old, a.slotLocked(e))
			a.dropPartsLocked(hr, e, func(p *stagedPart) bool { return moved || a.leftLocked(p.from, 0) })
		}
		if gained {
			clear(hr.marked)
			if hr.finish != nil && hr.finish.Epoch < a.lastGainLocked() { // see homeFinishLocked
				hr.finish, hr.waiting = nil, nil
			}
			a.askMissingLocked(id, hr)
		}
		a.forgetAbandonedLocked(id)
	}
	a.freeIfUnusedLocked()
}

// roundsGenChangedLocked refuses the parts that were made by earlier rules, or for a larger area.
func (a *Area) roundsGenChangedLocked() {
	for _, id := range a.mu.home.rounds.inOrder() {
		hr := a.mu.home.rounds.open[id]
		a.refusePartsLocked(hr, func(*stagedPart) bool { return true })
		clear(hr.marked)
		a.askMissingLocked(id, hr)
	}
}

// roundsResetLocked follows a broken session: the peer may not have got a Missing.
func (a *Area) roundsResetLocked(peer dsm.NodeID) {
	for _, id := range a.mu.home.rounds.inOrder() {
		hr := a.mu.home.rounds.open[id]
		if slices.Contains(hr.lackingLocked(a), peer) {
			a.sendLocked(peer, &wire.Missing{Stamp: a.stampLocked(), Round: id})
		}
	}
}
