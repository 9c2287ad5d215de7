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
// When a home dies, its backups in sync may differ: by what it had told one and not yet the other, so by nothing that anybody has seen. The one that takes
// over is mute until the catalog says that the others cannot take over any more (dsm.Backup.Former): what it says may be what they lack. Should it turn out to
// be dead, too, another one takes over, and nothing is undone. That one may have publishes that the mute one lacked, and lack some that it had: who sent them has no
// ack, and sends them again.

// output is a message of the home that waits.
type output struct {
	message
	index uint64 // of the last change before it
}

// holdsBackLocked reports whether messages of the home wait now.
func (a *Area) holdsBackLocked() bool {
	return a.mu.mute || a.mu.copies != nil && (len(a.mu.copies.outputs) > 0 || a.mu.copies.neededLocked() > 0)
}

// holdBackLocked keeps a message of the home. Its payload may change afterwards.
func (a *Area) holdBackLocked(to dsm.NodeID, msg any, payload [][]byte) {
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
	if c == nil || len(c.outputs) == 0 || a.mu.mute {
		return
	}
	need := c.neededLocked()
	for len(c.outputs) > 0 && (need == 0 || c.outputs[0].index < need) {
		m := c.outputs[0].message
		c.outputs[0] = output{}
		c.outputs = c.outputs[1:]
		if !a.isSelf(m.peer) {
			a.mu.out = append(a.mu.out, m)
			continue
		}
		payload := m.payload
		if m.shared != nil {
			payload = [][]byte{m.shared.Bytes}
		}
		a.fromSelfLocked(m.msg, payload)
		if m.shared != nil {
			m.shared.Release()
		}
	}
}

// dropOutputsLocked drops messages as if they had been lost on their way.
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

// dropLostOutputsLocked drops what this node would say as the home of slots that it has lost to a backup: whoever it is for asks the backup,
// as it has the same view. So it does if the message is about the whole area.
func (a *Area) dropLostOutputsLocked(old *dsm.View) {
	self := a.node.cfg.Self
	was, _ := old.Member(self)
	if is, ok := a.mu.view.Member(self); !ok || is.Gone != was.Gone || is.Inc != was.Inc {
		a.dropOutputsLocked(func(m *message) bool { return m.peer != self }) // sessions have ended; that with itself goes on
	}
	lost := func(e dsm.ExtentIndex) bool {
		was, is := old.Row(a.slotLocked(e)), a.rowLocked(e)
		return was != nil && was.Primary == self && is.Primary != self && is.Source != self
	}
	any := false
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		any = any || lost(e)
	}
	if !any {
		return
	}
	a.dropOutputsLocked(func(m *message) bool {
		switch m := m.msg.(type) {
		case *wire.Push:
			return lost(m.Extent)
		case *wire.PublishAck:
			return lost(m.Extent)
		case *wire.Staged:
			return lost(m.Extent)
		case *wire.Missing:
			return false
		}
		return true
	})
}
