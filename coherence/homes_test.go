package coherence

import (
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestMessagesOfAnOlderView: a slot has gone to another node, and has come back. What was sent before that counts for nothing: neither at the home
// nor from it.
func TestMessagesOfAnOlderView(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	was := home.view.Epoch
	s.changeView(func(v *dsm.View) { v.Row(dsm.SlotOf(simArea, 0)).Epoch = v.Epoch })
	s.catchUp()
	now := home.view.Epoch
	for _, n := range []*simNode{home, replica} {
		n.area.step(func() {})
	}
	for epoch, want := range map[dsm.Epoch]verdict{was: drop, now: serve} {
		if got := home.area.serveLocked(epoch, 0); got != want {
			t.Errorf("a request of epoch %d at epoch %d: %v, want %v", epoch, now, got, want)
		}
		if got := replica.area.fromHomeLocked(home.id, epoch, 0); got != (want == serve) {
			t.Errorf("an answer of epoch %d at epoch %d is taken: %v", epoch, now, got)
		}
	}
}

// TestRequestsStayInOrder: when one request of a node waits, all later ones of it wait behind it, and those of others do not.
func TestRequestsStayInOrder(t *testing.T) {
	_, home, replica := pair(t, dsm.ApplyArrival)
	a := home.area
	a.parkLocked(replica.id, &wire.Fetch{}, nil)
	for _, m := range []any{&wire.Subscribe{}, &wire.Unsubscribe{}, &wire.Fetch{}, &wire.Release{}, &wire.Publish{}, &wire.Acquire{}, &wire.Inquire{},
		&wire.Survey{}, &wire.Part{}, &wire.Contributed{}, &wire.Finish{}} {
		if !a.parkedFromLocked(replica.id, m) {
			t.Errorf("%T overtakes an earlier request", m)
		}
		if a.parkedFromLocked(home.id, m) {
			t.Errorf("%T waits for a request of another node", m)
		}
	}
	a.mu.parked = nil
}

// TestVersionsAfterAHandover: a new home draws later versions than the one before, whose clock may be ahead.
func TestVersionsAfterAHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		before, after := s.nodes[0], s.nodes[1]
		ahead := dsm.Version(1).Next(before.node.cfg.Now().Add(1 << 50))
		raise(&before.node.newest, ahead) // it has drawn that for another file
		s.move(after, 1)
		s.drain()
		s.catchUp()
		after.open(true)
		put(t, after, 5)
		publish(after)
		s.drain()
		if got := after.area.mu.newest; got <= ahead {
			t.Errorf("version %d, after %d of the home before", got, ahead)
		}
	})
}

// TestAcquireWhileTheAreaGrows: another home comes with the growth, which the acquire has not asked. So it does not say how new memory is as a whole.
func TestAcquireWhileTheAreaGrows(t *testing.T) {
	for _, grows := range []bool{false, true} {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		s.changeView(func(v *dsm.View) { v.Slots[dsm.SlotOf(simArea, 1)].Primary = 2 })
		s.catchUp()
		n := s.nodes[2]
		n.open(false)
		s.drain()
		op := n.startAcquire()
		if grows {
			s.resize(2 * dsm.ExtentSize)
			n.apply()
		}
		s.deliverAll(link{2, 0})
		s.deliverAll(link{0, 2})
		if len(op.pending) > 0 {
			t.Fatal("the home has not answered")
		}
		if fresh := n.area.mu.replica.fresh.Equal(op.began); fresh == grows {
			t.Errorf("the area grows: %v: all is as new as the acquire: %v", grows, fresh)
		}
		n.area.step(func() { n.area.endAcquireLocked(op) })
	}
}
