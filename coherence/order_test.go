package coherence

import (
	"sync/atomic"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// gate is a node's Sender in which the first message of a kind gets stuck, as
// when its goroutine loses the processor just before Send.
type gate struct {
	*simNode
	stop    func(msg any) bool
	closed  atomic.Bool
	stuck   chan struct{} // closed when a message is stuck
	release chan struct{}
}

func newGate(n *simNode, stop func(msg any) bool) *gate {
	g := &gate{simNode: n, stop: stop, stuck: make(chan struct{}), release: make(chan struct{})}
	n.node.cfg.Sender = g
	return g
}

func (g *gate) Send(to dsm.NodeID, m any, payload [][]byte, more bool) {
	g.pass(m)
	g.simNode.Send(to, m, payload, more)
}

func (g *gate) SendShared(to dsm.NodeID, m any, payload *wire.Shared, more bool) {
	g.pass(m)
	g.simNode.SendShared(to, m, payload, more)
}

func (g *gate) pass(m any) {
	if g.stop(m) && g.closed.CompareAndSwap(false, true) {
		close(g.stuck)
		<-g.release
	}
}

// during runs f while the message that step sends is stuck, then lets it go.
func (g *gate) during(step, f func()) {
	done := make(chan struct{})
	go func() {
		step()
		close(done)
	}()
	<-g.stuck
	f()
	close(g.release)
	<-done
}

func TestAcquireDoesNotOvertakeAPush(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	put(t, home, 5)
	g := newGate(home, func(m any) bool { _, ok := m.(*wire.Push); return ok })
	var op *acquiring
	g.during(func() { publish(home) }, func() {
		if home.area.mu.replica.underWay != 0 {
			t.Fatal("the publish is not complete")
		}
		op = replica.startAcquire()
		s.drain()
		if len(op.pending) == 0 {
			want(t, replica, 5) // of a publish that completed before the acquire
		}
	})
	s.drain()
	if len(op.pending) > 0 {
		t.Error("the acquire is not answered")
	}
	want(t, replica, 5)
}

func TestSubscribeDoesNotOvertakeAnUnsubscribe(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	put(t, home, 5)
	publish(home)
	s.drain()
	replica.leaveAll()
	s.drain()
	g := newGate(replica, func(m any) bool { _, ok := m.(*wire.Unsubscribe); return ok })
	g.during(replica.area.expire, func() { // the next open comes while the replica expires
		replica.startOpen(false)
		replica.startOpen(true)
	})
	op := replica.startAcquire()
	s.drain()
	if len(op.pending) > 0 {
		t.Error("the acquire of the next open is not answered")
	}
	put(t, home, 6)
	publish(home)
	s.drain()
	want(t, replica, 6)
}

// TestUnsubscribeIsRepeated: the home goes on pushing to a node whose
// Unsubscribe was dropped with its session, until that node says so again.
func TestUnsubscribeIsRepeated(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	replica.leaveAll()
	s.drain()
	replica.area.expire()
	clear(s.net)
	home.reset(replica)
	replica.reset(home)
	put(t, home, 5)
	publish(home)
	s.drain()
	if _, ok := home.area.mu.home.subs[replica.id]; ok {
		t.Error("the home still pushes to a node that let the area go")
	}
}

// TestNoteWhileSending: note is the first to see a view, while another goroutine sends: what this node
// says to itself then must not go to the Sender.
func TestNoteWhileSending(t *testing.T) {
	s, home, _ := pair(t, dsm.ApplyArrival)
	put(t, home, 5)
	g := newGate(home, func(m any) bool { _, ok := m.(*wire.Push); return ok })
	g.during(func() { publish(home) }, func() {
		v := *home.view
		v.Epoch++
		for i := range v.Slots {
			v.Slots[i] = dsm.SlotHome{Primary: home.id, Epoch: v.Epoch}
		}
		home.view = &v
		home.area.note(func() {}) // of a scan
	})
	for _, f := range s.net[link{0, 0}] {
		t.Errorf("%T sent to itself", f.msg)
	}
	delete(s.net, link{0, 0})
	home.area.step(func() {})
	if n := len(home.area.mu.replica.subs); n != 0 {
		t.Errorf("%d Subscribes are never answered", n)
	}
}
