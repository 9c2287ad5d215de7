package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Handle handles a message of another node. Messages of one node must be handed over in the order
// in which they came. The payload is not kept. An error means that the message violates the
// protocol: the caller closes the connection.
func (n *Node) Handle(from dsm.NodeID, msg any, payload []byte) error {
	return n.handle(from, msg, payload, nil)
}

// HandleFrame is Handle for a frame, whose payload may be retained.
func (n *Node) HandleFrame(from dsm.NodeID, f *wire.Frame) error {
	return n.handle(from, f.Msg, f.Payload, f.Shared())
}

func (n *Node) handle(from dsm.NodeID, msg any, payload []byte, shared *wire.Shared) error {
	if err := versionProblem(msg); err != nil {
		return err
	}
	st := stampOf(msg)
	switch m := msg.(type) {
	case *wire.HandoverExtent:
		return n.handovers.extent(from, m, payload)
	case *wire.HandoverAck:
		n.handovers.acked(from, m)
		return nil
	case *wire.HandoverDone:
		return n.handovers.done(from, m)
	case *wire.Refill:
		return n.fills.refill(from, m)
	case *wire.Refilled:
		n.fills.refilled(from, m)
		return nil
	}
	if st == nil {
		return errUnexpected(from, msg)
	}
	if st.Newest > dsm.MaxVersion {
		return errs.E(errs.Corrupt, "receive", "%T after version %d", msg, st.Newest)
	}
	if err := n.waitApplied(from, st.Rev, st.Epoch); err != nil {
		return err
	}
	a, err := n.area(st.Area)
	if err != nil {
		return nil // removed meanwhile: the sender learns it from the catalog
	}
	var bad error
	a.steps(from, func() {
		a.mu.arriving = shared
		bad = a.takeMessageLocked(from, st, msg, payload)
		a.mu.arriving = nil
	})
	return bad
}

// takeMessageLocked handles a message of another node in a step.
func (a *Area) takeMessageLocked(from dsm.NodeID, st *wire.Stamp, msg any, payload []byte) error {
	a.heardLocked(st.Newest)
	a.heardFromLocked(from)
	if a.waitsForMemoryLocked(from, st, msg, payload) {
		return nil
	}
	return a.receiveLocked(from, msg, [][]byte{payload})
}

// HandleNow is Handle for a goroutine that must not wait for anything: a loop that serves many nodes. It returns false, and has done nothing,
// if Handle might have to wait or the step may take long: see Area.takesNowLocked. Then the caller has another goroutine call Handle.
func (n *Node) HandleNow(from dsm.NodeID, msg any, payload []byte) (handled bool, err error) {
	st := stampOf(msg)
	if st == nil || versionProblem(msg) != nil || st.Newest > dsm.MaxVersion || n.cfg.View.WaitApplied(ended, st.Rev, st.Epoch) != nil {
		return false, nil
	}
	a := n.known(st.Area)
	if a == nil {
		return false, nil
	}
	if !a.mu.TryLock() {
		return false, nil
	}
	switch {
	case a.smallLocked():
		a.catchUpLocked()
	case !a.takesNowLocked(from, msg):
		a.mu.Unlock()
		return false, nil
	}
	a.takeTriedStepLocked(from, func() {
		handled = true
		err = a.takeMessageLocked(from, st, msg, payload)
	})
	return handled, err
}

// stampOf returns the stamp of a message about an area, nil of another one.
func stampOf(msg any) (st *wire.Stamp) {
	switch m := msg.(type) {
	case *wire.Replicate:
		st = &m.Stamp
	case *wire.ReplicatePages:
		st = &m.Stamp
	case *wire.ReplicateVersion:
		st = &m.Stamp
	case *wire.Replicated:
		st = &m.Stamp
	case *wire.Check:
		st = &m.Stamp
	case *wire.Checked:
		st = &m.Stamp
	case *wire.Subscribe:
		st = &m.Stamp
	case *wire.Subscribed:
		st = &m.Stamp
	case *wire.Unsubscribe:
		st = &m.Stamp
	case *wire.Fetch:
		st = &m.Stamp
	case *wire.Release:
		st = &m.Stamp
	case *wire.Push:
		st = &m.Stamp
	case *wire.PushAck:
		st = &m.Stamp
	case *wire.Publish:
		st = &m.Stamp
	case *wire.PublishAck:
		st = &m.Stamp
	case *wire.Acquire:
		st = &m.Stamp
	case *wire.Acquired:
		st = &m.Stamp
	case *wire.Inquire:
		st = &m.Stamp
	case *wire.Inquired:
		st = &m.Stamp
	case *wire.Survey:
		st = &m.Stamp
	case *wire.Surveyed:
		st = &m.Stamp
	case *wire.Part:
		st = &m.Stamp
	case *wire.Staged:
		st = &m.Stamp
	case *wire.Contributed:
		st = &m.Stamp
	case *wire.Counted:
		st = &m.Stamp
	case *wire.Missing:
		st = &m.Stamp
	case *wire.Finish:
		st = &m.Stamp
	case *wire.Take:
		st = &m.Stamp
	case *wire.Taken:
		st = &m.Stamp
	}
	return st
}

// keptLocked returns the payload of a message that is handled in memory that stays, with a reference for the caller: the memory
// in which it came, if that may be retained, or a copy.
func (a *Area) keptLocked(payload []byte) *wire.Shared {
	if s := a.mu.arriving; s != nil && len(payload) > 0 && &s.Bytes[0] == &payload[0] {
		return s.Retain()
	}
	s := wire.Share(len(payload))
	copy(s.Bytes, payload)
	return s
}

// versionProblem checks the versions of which the receiver makes later ones: see dsm.MaxVersion.
func versionProblem(msg any) error {
	var newest dsm.Version
	switch m := msg.(type) {
	case *wire.Push:
		newest = max(m.Version, m.Upto)
	case *wire.PublishAck:
		newest = max(m.Version, m.Upto)
	case *wire.Acquired:
		newest = m.Upto
	case *wire.HandoverExtent:
		newest = max(m.Newest, m.Version, m.Whole)
	case *wire.HandoverDone:
		newest = m.Newest
	case *wire.Replicate:
		newest = m.Version
	case *wire.ReplicatePages:
		newest = m.Version
	case *wire.ReplicateVersion:
		newest = m.Whole
	}
	if newest > dsm.MaxVersion {
		return errs.E(errs.Corrupt, "receive", "%T of version %d", msg, newest)
	}
	return nil
}

// receiveLocked handles one message in a step. It drops messages about extents of which this node is not,
// or was not yet, the home: the sender will see the same view and send them again to the right
// node. It parks messages about slots that are still being handed over to this node.
func (a *Area) receiveLocked(from dsm.NodeID, msg any, payload [][]byte) error {
	one := func() []byte { return flat(payload) }
	if a.parkedFromLocked(from, msg) {
		a.parkLocked(from, msg, one())
		return nil
	}
	if a.aheadOfStandbyLocked(from, msg) {
		a.parkLocked(from, msg, one())
		return nil
	}
	if a.fencedLocked(msg) {
		a.parkForMemoryLocked(from, msg, one())
		return nil
	}
	if a.doubtfulLocked(from, msg) {
		a.parkLocked(from, msg, one())
		a.retryLocked(leaseRetry)
		return nil
	}
	switch msg.(type) {
	case *wire.Acquire, *wire.Inquire, *wire.Survey, *wire.Finish: // they ask for all of the area
		if a.sourceDiedInAreaLocked() {
			return nil
		}
	}
	switch m := msg.(type) {
	case *wire.Subscribe:
		switch a.serveAllLocked(m) {
		case park:
			a.parkLocked(from, msg, nil)
		case serve:
			a.homeSubscribeLocked(from, m)
		}
	case *wire.Acquire:
		if a.awaitingLocked() {
			a.parkLocked(from, msg, nil)
		} else {
			a.homeAcquireLocked(from, m)
		}
	case *wire.Inquire:
		if a.awaitingLocked() {
			a.parkLocked(from, msg, nil)
		} else {
			a.homeInquireLocked(from, m)
		}
	case *wire.Survey:
		if a.awaitingLocked() {
			a.parkLocked(from, msg, nil)
		} else {
			a.homeSurveyLocked(from, m)
		}
	case *wire.Unsubscribe:
		a.homeUnsubscribeLocked(from)
	case *wire.Fetch:
		switch a.serveLocked(m.Epoch, m.Extent) {
		case park:
			a.parkLocked(from, msg, nil)
		case serve:
			a.homeFetchLocked(from, m)
		}
	case *wire.Release:
		switch a.serveLocked(m.Epoch, m.Extent) {
		case park:
			a.parkLocked(from, msg, nil)
		case serve:
			a.homeReleaseLocked(from, m)
		}
	case *wire.Publish:
		switch a.serveLocked(m.Epoch, m.Extent) {
		case park:
			a.parkLocked(from, msg, one())
		case serve:
			return a.homePublishLocked(from, m, one())
		}
	case *wire.PushAck:
		a.homePushAckLocked(from, m)
	case *wire.Push:
		if a.fromHomeLocked(from, m.Epoch, m.Extent) && !a.strangerLocked(from, &m.Stamp) {
			return a.replicaPushLocked(from, m, payload)
		}
	case *wire.PublishAck:
		if a.fromHomeLocked(from, m.Epoch, m.Extent) {
			if !a.isSelf(from) {
				m.Rode = dsm.PageSet{} // the base is no home's
			}
			a.replicaPublishAckLocked(m)
		}
	case *wire.Subscribed:
		a.replicaSubscribedLocked(from, m)
	case *wire.Acquired:
		a.replicaAcquiredLocked(from, m)
	case *wire.Inquired:
		a.replicaInquiredLocked(from, m)
	case *wire.Surveyed:
		a.replicaSurveyedLocked(from, m)
	case *wire.Replicate, *wire.ReplicatePages, *wire.ReplicateVersion:
		return a.receiveAsBackupLocked(from, msg, one())
	case *wire.Replicated:
		a.replicatedLocked(from, m)
	case *wire.Check:
		a.checkAsBackupLocked(from, m)
	case *wire.Checked:
		a.checkedLocked(from, m)
	case *wire.Take:
		a.homeTakeLocked(from, m)
	case *wire.Taken:
		a.takenLocked(from, m)
	default:
		return a.receiveOfRoundLocked(from, msg, one)
	}
	return nil
}

// fencedLocked reports whether a request must wait: it asks what was published until now, and a backup may have taken over from this node. That can also be so
// while this node has a lease: until the catalog has heard that a slot is here, a backup takes over if the home dies that has handed it over, and this node may hear of that late.
func (a *Area) fencedLocked(msg any) bool {
	if !a.mu.backed {
		return false
	}
	switch msg.(type) {
	case *wire.Subscribe, *wire.Acquire, *wire.Finish:
		return a.mu.handed || !a.node.cfg.View.MayServe()
	}
	return false
}

func flat(payload [][]byte) []byte {
	if len(payload) == 1 {
		return payload[0]
	}
	var b []byte
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

type verdict uint8

const (
	drop verdict = iota
	park
	serve
)

// serveLocked says whether this node answers for the extent.
func (a *Area) serveLocked(epoch dsm.Epoch, e dsm.ExtentIndex) verdict {
	if int(e) >= a.extentsLocked() {
		return drop // truncated, or never there
	}
	return a.serveSlotLocked(epoch, a.slotLocked(e))
}

// serveSlotLocked says whether this node answers for the slot.
func (a *Area) serveSlotLocked(epoch dsm.Epoch, s dsm.Slot) verdict {
	if !a.hasSlotLocked(s) {
		return drop
	}
	row := a.mu.view.Row(s)
	switch {
	case !a.isSelf(row.Primary) || epoch < row.Epoch || a.sourceDiedLocked(s):
		return drop
	case !a.node.slotReady(s, row) || a.dueLocked():
		return park
	}
	return serve
}

// serveAllLocked is serve for several extents: if one of them is still to come, the message is parked;
// those of other homes are ignored.
func (a *Area) serveAllLocked(m *wire.Subscribe) verdict {
	for _, x := range m.Extents {
		if a.serveLocked(m.Epoch, x.Extent) == park {
			return park
		}
	}
	for _, s := range m.Slots {
		if a.serveSlotLocked(m.Epoch, s) == park {
			return park
		}
	}
	return serve
}

// awaitingLocked reports whether an extent of the area is still being handed over to this node.
func (a *Area) awaitingLocked() bool {
	if a.dueLocked() {
		return true
	}
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		if row := a.rowLocked(e); row.Source != 0 && a.isSelf(row.Primary) && !a.node.slotReady(a.slotLocked(e), row) {
			return true
		}
	}
	return false
}

// slotReady reports whether this node, the primary of the slot, has all its state.
func (n *Node) slotReady(s dsm.Slot, row *dsm.SlotHome) bool {
	return row.Source == 0 || dsm.Epoch(n.received[s].Load()) == row.Epoch
}

// fromHomeLocked reports whether the sender is the home of the extent now.
func (a *Area) fromHomeLocked(from dsm.NodeID, epoch dsm.Epoch, e dsm.ExtentIndex) bool {
	row := a.rowLocked(e)
	return row.Primary == from && epoch >= row.Epoch && int(e) < a.extentsLocked()
}

// parkLocked keeps a message until a handover is over, or until there is memory. Senders have few
// messages under way, so what is parked is bounded by their windows; a publish that is sent again
// is kept only once.
func (a *Area) parkLocked(from dsm.NodeID, msg any, payload []byte) {
	if p, ok := publishOf(msg); ok && slices.ContainsFunc(a.mu.parked, func(m message) bool {
		q, ok := publishOf(m.msg)
		return ok && m.peer == from && q == p
	}) {
		return
	}
	m := message{peer: from, msg: msg}
	if payload != nil {
		m.payload = [][]byte{append([]byte(nil), payload...)}
	}
	a.mu.parked = append(a.mu.parked, m)
}

// publishName tells one publish, or part of a round, from the others of a node to an area.
type publishName struct {
	extent dsm.ExtentIndex
	seq    dsm.Seq
	epoch  dsm.Epoch
}

func publishOf(msg any) (publishName, bool) {
	switch m := msg.(type) {
	case *wire.Publish:
		return publishName{m.Extent, m.Seq, m.Epoch}, true
	case *wire.Part:
		return publishName{m.Extent, m.Seq, m.Epoch}, true
	}
	return publishName{}, false
}

// parkedFromLocked reports whether a request must be parked because an earlier one of the same node is:
// requests are served in order. So is what a home sends.
func (a *Area) parkedFromLocked(from dsm.NodeID, msg any) bool {
	switch msg.(type) {
	case *wire.Subscribe, *wire.Unsubscribe, *wire.Fetch, *wire.Release, *wire.Publish, *wire.Acquire, *wire.Inquire, *wire.Survey,
		*wire.Part, *wire.Contributed, *wire.Finish:
		return slices.ContainsFunc(a.mu.parked, func(m message) bool { return m.peer == from })
	}
	return fromHome(msg) && slices.ContainsFunc(a.mu.parked, func(m message) bool { return m.peer == from && fromHome(m.msg) })
}

// dropWaitingLocked drops what waits of a peer when a session with it has broken, as if it had not arrived: the peer hears of
// that, too, and sends again what it needs an answer to.
func (a *Area) dropWaitingLocked(peer dsm.NodeID) {
	of := func(m message) bool {
		if p, ok := m.msg.(*wire.Part); ok && m.peer == peer {
			if hr := a.mu.home.rounds.open[p.Round]; hr != nil {
				delete(hr.marked, peer) // the round must not end before the part comes again
			}
		}
		return m.peer == peer
	}
	a.mu.parked = slices.DeleteFunc(a.mu.parked, of)
	a.mu.short.waiting = slices.DeleteFunc(a.mu.short.waiting, of)
}

// unparkLocked handles the parked messages again.
func (a *Area) unparkLocked() {
	parked := a.mu.parked
	a.mu.parked = nil
	a.receiveAgainLocked(parked)
}

// receiveAgainLocked handles messages that have waited. Rounds end when all have been handled: parts may be among them.
func (a *Area) receiveAgainLocked(waited []message) {
	a.mu.receiving++
	for _, m := range waited {
		if err := a.receiveLocked(m.peer, m.msg, m.payload); err != nil {
			a.node.cfg.Log.Warn("bad message that waited", "area", a.id, "from", m.peer, "err", err)
		}
	}
	a.mu.receiving--
	a.endRoundsLocked()
}
