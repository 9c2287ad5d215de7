package coherence

import (
	"bytes"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// A home merges at once. What it then says waits until every backup that counts has what the home had merged by then: so nobody has ever
// seen anything that a backup lacks, and a backup that takes over undoes nothing. (Output commit: Cully et al., "Remus: High Availability
// via Asynchronous Virtual Machine Replication", NSDI 2008.) It waits on the way to the home's own node, too.
//
// What is for a backup need not wait for that backup's own ack, only for those of the others: it goes behind the change, on the same link, so the backup has the
// change when it takes it. It looks whether it has (aheadOfStandbyLocked), for it may have refused the change, or that may have been dropped with a session.
// Versions of versioned areas wait for all.
//
// When a home dies, its backups in sync may differ by what it had told one and not yet the other. Nobody has seen any of that. The one that takes
// over is mute until the catalog says that the others cannot take over any more (dsm.Backup.Former): what it says may be what they lack. If it dies, too,
// another backup takes over, and nothing is undone. The other may have publishes that the mute one lacked, and lack some that the mute one had. No publish of
// these was acked, so who has sent it sends it again.

// output is a message of the home that waits.
type output struct {
	message
	index uint64 // of the last change before it
}

// withholdsLocked reports whether messages of the home wait now.
func (a *Area) withholdsLocked() bool {
	return a.mu.mute || a.mu.copies != nil && (len(a.mu.copies.outputs) > 0 || a.mu.copies.needed(0) > 0)
}

// withholdLocked keeps a message of the home. Its payload may change afterwards.
func (a *Area) withholdLocked(to dsm.NodeID, msg any, payload [][]byte) {
	m := message{peer: to, msg: msg}
	if len(payload) > 0 {
		m.payload = [][]byte{bytes.Join(payload, nil)}
	}
	a.outputLocked(m)
}

func (a *Area) outputLocked(m message) {
	c := a.copiesLocked()
	c.outputs = append(c.outputs, output{m, c.index})
}

// releaseLocked sends the messages that need not wait any more, in order.
func (a *Area) releaseLocked() {
	c := a.mu.copies
	a.backedLocked()
	if c == nil || len(c.outputs) == 0 || a.mu.mute {
		return
	}
	need := c.needed(0)
	for len(c.outputs) > 0 && (need == 0 || c.outputs[0].index < need) {
		m := c.outputs[0].message
		c.outputs[0] = output{}
		c.outputs = c.outputs[1:]
		if !a.isSelf(m.peer) {
			a.mu.out = append(a.mu.out, m)
			continue
		}
		a.ownLocked(m)
	}
	a.releaseAheadLocked()
}

// releaseAheadLocked sends messages for backups that need not wait for their receiver's own ack, each node's in order.
func (a *Area) releaseAheadLocked() {
	c := a.mu.copies
	if a.versionedLocked() {
		return // a version is complete with its last push, and not with each
	}
	var waits []dsm.NodeID
	c.outputs = slices.DeleteFunc(c.outputs, func(o output) bool {
		if slices.Contains(waits, o.peer) {
			return false
		}
		if c.to[o.peer] == nil || !c.mayGoAhead(o.peer, o.msg, o.index) {
			waits = append(waits, o.peer)
			return false
		}
		a.mu.out = append(a.mu.out, a.aheadLocked(o.message))
		return true
	})
}

// passesLocked reports whether a message of the home need not wait, because all that has not been acked has been sent to its receiver.
func (a *Area) passesLocked(to dsm.NodeID, msg any) bool {
	c := a.mu.copies
	return !a.mu.mute && !a.versionedLocked() && c.to[to] != nil && c.mayGoAhead(to, msg, c.index) &&
		!slices.ContainsFunc(c.outputs, func(o output) bool { return o.peer == to })
}

// mayGoAhead reports whether a message to a backup, made after the change with the index, may leave before the backup has acked that. It must be one that the
// backup does not take without the change.
func (c *copies) mayGoAhead(to dsm.NodeID, msg any, index uint64) bool {
	switch msg.(type) {
	case *wire.Push, *wire.PublishAck, *wire.Acquired: // the last counts behind pushes only
		need := c.needed(to)
		return need == 0 || index < need
	}
	return false
}

// aheadLocked marks a message that has not waited for its receiver's ack of the change. Not so if the receiver cannot take over the extent: one that is being filled may get
// the change much later.
func (a *Area) aheadLocked(m message) message {
	switch msg := m.msg.(type) {
	case *wire.Push:
		_, msg.Ahead = a.backupForLocked(m.peer, msg.Extent)
	case *wire.PublishAck:
		_, msg.Ahead = a.backupForLocked(m.peer, msg.Extent)
	}
	return m
}

// aheadOfStandbyLocked reports whether a home has said something that it need not have waited for this node's ack with, and this node lacks the change before
// it as a backup. Nobody may see it: should the home die now, this node may take over.
func (a *Area) aheadOfStandbyLocked(from dsm.NodeID, msg any) bool {
	var e dsm.ExtentIndex
	var v dsm.Version
	var st *wire.Stamp
	switch m := msg.(type) {
	case *wire.Push:
		if !m.Ahead {
			return false
		}
		e, v, st = m.Extent, m.Version, &m.Stamp
	case *wire.PublishAck:
		if !m.Ahead {
			return false
		}
		e, v, st = m.Extent, m.Version, &m.Stamp
	default:
		return false
	}
	row := a.rowLocked(e)
	if row.BackupOf(a.node.cfg.Self) < 0 || !a.fromHomeLocked(from, st.Epoch, e) {
		return false
	}
	return a.standbyVersionLocked(e) < v
}

// aheadNoMoreLocked has what a home has said ahead of this node's standby of slots be taken without it: the standby counts for nothing until it has been filled anew.
func (a *Area) aheadNoMoreLocked(from dsm.NodeID, slots map[dsm.Slot]bool) {
	for _, o := range a.mu.parked {
		switch m := o.msg.(type) {
		case *wire.Push:
			m.Ahead = m.Ahead && (o.peer != from || !slots[a.slotLocked(m.Extent)])
		case *wire.PublishAck:
			m.Ahead = m.Ahead && (o.peer != from || !slots[a.slotLocked(m.Extent)])
		}
	}
	a.unparkLocked()
}

// dropOutputsLocked drops messages as if they had not arrived.
func (a *Area) dropOutputsLocked(which func(m *message) bool) {
	c := a.mu.copies
	if c == nil {
		return
	}
	c.outputs = slices.DeleteFunc(c.outputs, func(o output) bool {
		out := which(&o.message)
		if out && o.shared != nil {
			o.shared.Release()
		}
		return out
	})
}

// dropTakenOverOutputsLocked drops what this node would say as the home of slots that a backup has taken over: whoever it is for asks the backup,
// as it has the same view. So it does if the message is about the whole area.
func (a *Area) dropTakenOverOutputsLocked(old *dsm.View) {
	self := a.node.cfg.Self
	was, _ := old.Member(self)
	if is, ok := a.mu.view.Member(self); !ok || is.Gone != was.Gone || is.Inc != was.Inc {
		a.dropOutputsLocked(func(m *message) bool { return m.peer != self }) // sessions have ended; that with itself goes on
	}
	takenOver := func(e dsm.ExtentIndex) bool {
		was, is := old.Row(a.slotLocked(e)), a.rowLocked(e)
		return was != nil && was.Primary == self && is.Primary != self && is.Source != self
	}
	any := false
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		any = any || takenOver(e)
	}
	if !any {
		return
	}
	a.dropOutputsLocked(func(m *message) bool {
		switch m := m.msg.(type) {
		case *wire.Push:
			return takenOver(m.Extent)
		case *wire.PublishAck:
			return takenOver(m.Extent)
		case *wire.Staged:
			return takenOver(m.Extent)
		case *wire.Missing:
			return false
		}
		return true
	})
}
