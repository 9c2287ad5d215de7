package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// message is a message that is to be sent or handled, or that waits for a handover.
type message struct {
	peer    dsm.NodeID // receiver or sender
	msg     any
	payload [][]byte
	shared  *wire.Shared // the payload, with a reference that the message owns; nil if payload has it
}

// deliverLocked hands the messages of the steps so far to the Sender, without the lock but in the
// order of the steps: while one goroutine does so, others leave their messages to it. With brief,
// this goroutine leaves the messages of others to yet another one. Messages to the node from may
// wait.
func (a *Area) deliverLocked(from dsm.NodeID, brief bool) {
	if a.mu.sending {
		return
	}
	a.mu.sending = true
	for out := a.outLocked(); len(out) > 0; out = a.outLocked() {
		a.mu.Unlock()
		for i, m := range out {
			more := m.peer == from || slices.ContainsFunc(out[i+1:], func(o message) bool { return o.peer == m.peer })
			if m.shared != nil {
				a.node.cfg.Sender.SendShared(m.peer, m.msg, m.shared, more)
				continue
			}
			a.node.cfg.Sender.Send(m.peer, m.msg, m.payload, more)
		}
		a.mu.Lock()
		if brief && len(a.mu.out) > 0 {
			go a.step(func() {})
			break
		}
	}
	a.mu.sending = false
}

// outLocked takes the messages for other nodes.
func (a *Area) outLocked() (out []message) {
	here := func(m message) bool { return a.isSelf(m.peer) }
	if !slices.ContainsFunc(a.mu.out, here) {
		out, a.mu.out = a.mu.out, nil
		return out
	}
	var left []message // by localLocked
	for _, m := range a.mu.out {
		if here(m) {
			left = append(left, m)
		} else {
			out = append(out, m)
		}
	}
	a.mu.out = left
	return out
}

// localLocked handles the requests that the step made of this node as a home, until there are none left. If it has done enough, a
// Subscribe and what is behind it are left to a further step; but for the first one.
func (a *Area) localLocked() {
	self, subscribed := a.node.cfg.Self, false
	for i := 0; i < len(a.mu.out); i++ {
		if a.mu.out[i].peer != self {
			continue
		}
		m := a.mu.out[i]
		if _, ok := m.msg.(*wire.Subscribe); ok {
			if subscribed && a.mu.handled >= publishBatch {
				a.mu.again = true
				break
			}
			subscribed = true
		}
		a.mu.out[i].msg = nil
		a.ownLocked(m)
	}
	rest := a.mu.out[:0]
	for _, m := range a.mu.out {
		if m.msg != nil {
			rest = append(rest, m)
		}
	}
	a.mu.out = rest
}

// ownLocked handles a message that was to be sent to this node itself, and releases its payload.
func (a *Area) ownLocked(m message) {
	payload := m.payload
	if m.shared != nil {
		payload = [][]byte{m.shared.Bytes}
	}
	a.fromSelfLocked(m.msg, payload)
	if m.shared != nil {
		m.shared.Release()
	}
}

// fromSelfLocked handles a message of this node to itself.
func (a *Area) fromSelfLocked(msg any, payload [][]byte) {
	if err := a.receiveLocked(a.node.cfg.Self, msg, payload); err != nil {
		a.node.cfg.Log.Error("a message of this node to itself", "area", a.id, "err", err)
		invariants.Check(false, "a message of this node to itself: %v", err)
	}
}

// sendLocked sends a message. What a home sends to the replica on its own node is handled at once, so that both are of one mind whenever
// anything else happens, unless it waits for backups. What a replica asks of the home on its own node is handled when it is done itself: see localLocked. So neither
// is called while it is at work, and both see the same order as two nodes would.
func (a *Area) sendLocked(to dsm.NodeID, msg any, payload ...[]byte) {
	m := message{peer: to, msg: msg, payload: payload}
	if self, withholds := a.isSelf(to), a.withholdsLocked(); (self || withholds) && fromHome(msg) {
		switch {
		case !withholds:
			a.fromSelfLocked(msg, payload)
			return
		case !a.passesLocked(to, msg):
			a.withholdLocked(to, msg, payload)
			return
		}
		m = a.aheadLocked(m)
	}
	a.mu.out = append(a.mu.out, m)
}

// fromHome reports whether a message is one that homes send.
func fromHome(msg any) bool {
	switch msg.(type) {
	case *wire.Subscribed, *wire.Push, *wire.PublishAck, *wire.Acquired, *wire.Inquired, *wire.Surveyed,
		*wire.Staged, *wire.Counted, *wire.Missing:
		return true
	}
	return false
}

// sendSharedLocked sends a message with a payload from the pool. It takes over the caller's reference.
func (a *Area) sendSharedLocked(to dsm.NodeID, msg any, payload *wire.Shared) {
	m := message{peer: to, msg: msg, shared: payload}
	if a.withholdsLocked() && fromHome(msg) {
		if !a.passesLocked(to, msg) {
			a.outputLocked(m)
			return
		}
		m = a.aheadLocked(m)
	}
	a.mu.out = append(a.mu.out, m)
}
