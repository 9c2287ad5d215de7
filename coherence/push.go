package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// pushWindow bounds the bytes pushed to one subscriber of one area and not yet acked. It is enough
// to keep the link busy (at 2 GB/s and 1 ms of scheduling delay 2 MB are under way), and bounds
// what a slow subscriber costs.
const pushWindow = 4 << 20

// homeSubscribeLocked starts, or restarts, the stream of updates for the extents and for the slots.
func (a *Area) homeSubscribeLocked(from dsm.NodeID, m *wire.Subscribe) {
	s := a.mu.home.subs[from]
	if s == nil || s.partial != m.Partial { // another kind of replica knows nothing of what the last one had
		s.endLocked()
		s = newSubscriber(a, from)
		a.mu.home.subs[from] = s
	}
	s.onRequest, s.partial = m.OnRequest, m.Partial
	r := &wire.Subscribed{Stamp: a.stampLocked(), Round: m.Round}
	if a.versionedLocked() {
		a.subscribeBatchesLocked(s, m, r)
		return
	}
	var sums *pages.Sums
	for _, x := range m.Extents {
		if a.serveLocked(m.Epoch, x.Extent) != serve {
			continue
		}
		lacks := a.mu.home.extents[x.Extent].newer(x.Version)
		l := s.makeLocked(x.Extent)
		l.group = m.Group
		l.has, l.asked, l.fetched = dsm.PageSet{}, dsm.PageSet{}, dsm.PageSet{}
		if s.partial {
			l.has = x.Has
		}
		s.requeueLocked(x.Extent) // it subscribed before, and what it has not acked may not have arrived
		lacks = lacks.Or(l.lacks)
		switch {
		case s.partial:
			lacks = lacks.And(l.has)
		case x.Sums != nil && !lacks.Empty() && m.Gen == a.mu.ino.Gen: // else it is about to follow a shrink, or other rules
			if sums == nil {
				sums = pages.NewSums(m.Seed)
			}
			lacks = lacks.Minus(a.sameLocked(&x, lacks, sums))
		}
		if s.partial || x.Sums != nil {
			l.lacks = lacks
			s.settle(l)
		}
		s.lackLocked(x.Extent, lacks)
		r.Full = append(r.Full, x.Extent)
		if !lacks.Empty() {
			r.Lacks = append(r.Lacks, wire.ExtentPages{Extent: x.Extent, Pages: lacks})
		}
	}
	for _, slot := range m.Slots {
		if a.serveSlotLocked(m.Epoch, slot) == serve {
			r.Slots = append(r.Slots, slot)
		}
	}
	if len(r.Slots) > 0 {
		r.Lacks = append(r.Lacks, a.subscribeSlotsLocked(s, r.Slots, m.Group)...)
	}
	if m.Round != 0 {
		a.sendSubscribedLocked(from, r)
	}
	a.pumpLocked(from, s)
}

// subscribeSlotsLocked begins to send the subscriber the extents in the slots of which it has nothing. It has named the others in its messages of the same
// group. subscribeSlotsLocked returns the pages that it lacks.
func (a *Area) subscribeSlotsLocked(s *subscriber, list []dsm.Slot, group uint64) (lacks []wire.ExtentPages) {
	in := a.slotSetLocked(slices.Values(list))
	for _, slot := range list {
		s.slots.put(slotIndex(slot), true)
	}
	for _, e := range inSlotsLocked(a, s.extents, a.mu.home.below, &in) {
		if s.extents[e].group != group {
			s.forgetLocked(e)
		}
	}
	if s.partial {
		return nil // it has nothing of them
	}
	has := inSlotsLocked(a, a.mu.home.extents, a.mu.home.below, &in)
	if a.isSelf(s.id) {
		a.mu.handled += uint16(min(len(has), publishBatch))
	}
	s.extents, lacks = roomFor(s.extents, len(has)), make([]wire.ExtentPages, 0, len(has))
	for _, e := range has {
		if s.extents[e] != nil || int(e) >= a.extentsLocked() {
			continue
		}
		if all := a.mu.home.extents[e].newer(0); !all.Empty() {
			s.lackLocked(e, all)
			lacks = append(lacks, wire.ExtentPages{Extent: e, Pages: all})
		}
	}
	return lacks
}

// sendSubscribedLocked sends an answer in parts.
func (a *Area) sendSubscribedLocked(to dsm.NodeID, r *wire.Subscribed) {
	for len(r.Lacks) > subscribePart {
		a.sendLocked(to, &wire.Subscribed{Stamp: r.Stamp, Round: r.Round, Lacks: r.Lacks[:subscribePart], More: true})
		r.Lacks = r.Lacks[subscribePart:]
	}
	a.sendLocked(to, r)
}

func (a *Area) homeUnsubscribeLocked(from dsm.NodeID) {
	a.forgetSubscriberLocked(from)
}

// forgetSubscriberLocked ends the subscription of a node, if it has one.
func (a *Area) forgetSubscriberLocked(id dsm.NodeID) {
	a.mu.home.subs[id].endLocked()
	delete(a.mu.home.subs, id)
	a.endPushCopiesLocked()
}

// homeAcquireLocked pushes what the sender lacks, then answers. The answer does not wait for what is
// published meanwhile.
func (a *Area) homeAcquireLocked(from dsm.NodeID, m *wire.Acquire) {
	s := a.mu.home.subs[from]
	if s == nil {
		return // its Subscribe was made for an older view; it asks again in the new one
	}
	if a.versionedLocked() {
		a.acquireBatchesLocked(from, s, m)
		return
	}
	a.tellNewestLocked()
	w := &acquireWait{round: m.Round, until: s.lastTurn, left: int(s.lacking), upto: a.mu.newest}
	s.acquires = append(s.acquires, w)
	a.pumpLocked(from, s)
}

// homeFetchLocked pushes pages that a program waits for, even if the window is full or the subscriber wants pushes on request only.
func (a *Area) homeFetchLocked(from dsm.NodeID, m *wire.Fetch) {
	if s := a.mu.home.subs[from]; s != nil && !a.versionedLocked() && s.lagLocked(m.Extent) != nil {
		l := s.lagLocked(m.Extent)
		l.has, l.asked = l.has.Or(m.Pages), l.asked.Or(m.Pages)
		for i := range l.pushes { // acks of earlier pushes do not answer this Fetch
			l.pushes[i].answer = l.pushes[i].answer.Minus(m.Pages)
		}
		s.fetch(m.Extent, l, m.Pages)
		a.pumpLocked(from, s)
	}
}

// homeReleaseLocked records that a partial subscriber does not have the pages any more. It ignores those
// that are under way to it.
func (a *Area) homeReleaseLocked(from dsm.NodeID, m *wire.Release) {
	s := a.mu.home.subs[from]
	if s == nil || s.lagLocked(m.Extent) == nil {
		return
	}
	l := s.lagLocked(m.Extent)
	l.has, l.asked, l.fetched = l.has.Minus(m.Pages), l.asked.Minus(m.Pages), l.fetched.Minus(m.Pages)
	l.lacks, l.sent = l.lacks.Minus(m.Pages), l.sent.Minus(m.Pages)
	s.settle(l)
	a.pumpLocked(from, s) // an Acquire may have waited only for these
}

func (a *Area) homePushAckLocked(from dsm.NodeID, m *wire.PushAck) {
	if s := a.mu.home.subs[from]; s != nil {
		if s.batches != nil {
			a.batchAckedLocked(from, s, m)
			return
		}
		if !m.Declined.Empty() {
			// The subscriber defers updates; its Subscribe that says so is under way, or parked.
			// Pushing again before that arrives would be declined each time.
			s.onRequest = true
		}
		s.ackedLocked(m.Extent, m.ID, m.Declined)
		a.pumpLocked(from, s)
	}
}

// pumpLocked pushes what was fetched, and then, while the window is open, what the subscriber lacks: one
// push of an extent at a time, the longest waiting extent first. Then it answers the Acquires for
// which everything has been pushed.
func (a *Area) pumpLocked(to dsm.NodeID, s *subscriber) {
	if s == nil {
		return
	}
	if a.versionedLocked() {
		a.pumpBatchesLocked(to, s)
		return
	}
	if a.pumpFetchesLocked(to, s) {
		for s.inFlight < pushWindow {
			e, l := s.next()
			if l == nil || s.onRequest && !s.wanted(l) || a.restsLocked(to) || !a.pushLocked(to, s, e, l.lacks) {
				break
			}
		}
	}
	a.endPushCopiesLocked()
	waiting := s.acquires[:0]
	for _, w := range s.acquires {
		if w.left == 0 {
			a.sendLocked(to, &wire.Acquired{Stamp: a.stampLocked(), Round: w.round, Upto: max(w.upto, a.uptoLocked(s))})
			continue
		}
		waiting = append(waiting, w)
	}
	clear(s.acquires[len(waiting):])
	s.acquires = waiting
}

// pushCost is what a push to this node itself costs besides its pages, in pages.
const pushCost = 4

// restsLocked reports whether this step has done enough, and leaves what the home has to push to this node itself to a further one. Such pushes are acked at
// once, so no window bounds them.
func (a *Area) restsLocked(to dsm.NodeID) bool {
	rests := a.isSelf(to) && a.mu.handled >= publishBatch
	a.mu.again = a.mu.again || rests
	return rests
}

// pumpFetchesLocked pushes the pages that programs wait for. It returns false if there is no credit left.
func (a *Area) pumpFetchesLocked(to dsm.NodeID, s *subscriber) bool {
	for len(s.fetches) > 0 {
		e := s.fetches[0]
		if l := s.extents[e]; l != nil && !l.fetched.Empty() && !a.pushLocked(to, s, e, l.fetched) {
			return false
		}
		s.fetches = s.fetches[1:]
	}
	return true
}

// pushLocked sends pages of an extent with the bytes they have now. It returns false if there is no
// credit.
func (a *Area) pushLocked(to dsm.NodeID, s *subscriber, e dsm.ExtentIndex, set dsm.PageSet) bool {
	l := s.extents[e]
	m := &wire.Push{Stamp: a.stampLocked(), Extent: e, Pages: set, Answer: set.And(l.asked)}
	bytes := a.describeLocked(m, to)
	if !a.node.links.take(to, a, bytes) {
		return false
	}
	a.mu.home.lastPush++
	m.ID = a.mu.home.lastPush
	l.lacks, l.fetched = l.lacks.Minus(set), l.fetched.Minus(set)
	s.settle(l)
	l.sent = l.sent.Or(set)
	m.Complete = l.lacks.Empty() && len(l.pushes) == 0
	s.fly(e, l, pushed{m.ID, bytes, m.Answer})
	m.Upto = a.uptoLocked(s)
	if a.isSelf(to) {
		a.mu.handled += uint16(set.Len() + pushCost)
	}
	a.node.stats.pushes.Add(1)
	a.sendPagesLocked(to, m, bytes)
	return true
}

// forwarding is a publish that is passed on to the subscribers.
type forwarding struct {
	publish *wire.Publish
	payload []byte
	shared  *wire.Shared // a copy of payload, made for the first node that gets it
}

// forwardLocked pushes a publish that was just merged as it came, if that is less than the pages that it
// changed. The subscriber must have exactly what the home had before: it lacks nothing of the
// extent, and nothing of it is under way. If the push is dropped, the subscriber lacks these pages.
func (a *Area) forwardLocked(to dsm.NodeID, s *subscriber, f *forwarding) bool {
	m := f.publish
	l := s.lagLocked(m.Extent)
	switch {
	case s.onRequest || l == nil || s.inFlight >= pushWindow:
		return false
	case len(l.pushes) > 0 || !l.lacks.Empty():
		return false
	case s.partial && m.Pages.And(l.has) != m.Pages:
		return false
	case 2*(len(m.Index)+len(f.payload)) > m.Pages.Len()*dsm.PageSize:
		return false
	}
	bytes := len(m.Index) + len(f.payload)
	if !a.node.links.take(to, a, bytes) {
		return false
	}
	x := a.mu.home.extents[m.Extent]
	a.mu.home.lastPush++
	p := &wire.Push{Stamp: a.stampLocked(), Extent: m.Extent, ID: a.mu.home.lastPush, Version: x.version, Contains: x.writers[to],
		Parts: x.parts[to], Complete: true, Upto: a.uptoLocked(s), Pages: m.Pages, Index: m.Index}
	l.sent = m.Pages
	s.fly(m.Extent, l, pushed{p.ID, bytes, dsm.PageSet{}})
	a.node.stats.forwards.Add(1)
	if a.isSelf(to) {
		a.sendLocked(to, p, f.payload)
		return true
	}
	a.sendSharedLocked(to, p, f.share())
	return true
}

// share returns a copy of the payload, with a reference for the caller.
func (f *forwarding) share() *wire.Shared {
	if f.shared == nil {
		f.shared = wire.Share(len(f.payload))
		copy(f.shared.Bytes, f.payload)
	}
	return f.shared.Retain()
}

// end releases the copy.
func (f *forwarding) end() {
	if f.shared != nil {
		f.shared.Release()
	}
}

// describeLocked fills in what m says about the current bytes of its pages, and returns how many bytes
// are in pages that are not zero.
func (a *Area) describeLocked(m *wire.Push, to dsm.NodeID) (bytes int) {
	x := a.mu.home.extents[m.Extent]
	m.Zero = dsm.PageSet{}
	for i := range m.Pages.All() {
		if x == nil || !x.data.Has(i) {
			m.Zero.Add(i)
		} else {
			bytes += dsm.PageSize
		}
	}
	if x != nil {
		m.Version = x.version
		m.Contains, m.Parts = x.writers[to], x.parts[to]
	}
	return bytes
}

// homePagesLocked returns the pages of m that are not zero: the home copy's own bytes, with adjacent
// pages in one piece.
func (a *Area) homePagesLocked(m *wire.Push) (p [][]byte) {
	for from, to := range m.Pages.Minus(m.Zero).Runs() {
		p = append(p, a.mu.mem.HomeRun(page(m.Extent, from), to-from))
	}
	return p
}

// sendPagesLocked sends m with the bytes of its pages. It sends a copy, because the home copy will
// change. This node itself handles the push at once: it gets the pages as they lie.
func (a *Area) sendPagesLocked(to dsm.NodeID, m *wire.Push, bytes int) {
	if bytes == 0 {
		a.sendLocked(to, m)
		return
	}
	if a.isSelf(to) {
		a.sendLocked(to, m, a.homePagesLocked(m)...)
		return
	}
	a.sendSharedLocked(to, m, a.pushedBytesLocked(to, m, bytes))
}
