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
		raise(before.node.newest, ahead) // it has drawn that for another file
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

// TestAcquireWhileTheAreaGrows: with the growth come slots to which the node has not subscribed when its acquire asks their home, or another one. The acquire
// ends when what others have published there is here.
func TestAcquireWhileTheAreaGrows(t *testing.T) {
	for _, id := range []dsm.NodeID{1, 2} {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		s.changeView(func(v *dsm.View) { v.Slots[dsm.SlotOf(simArea, 1)].Primary = id })
		s.catchUp()
		home, writer, n := s.nodes[0], s.nodes[1], s.nodes[2]
		writer.open(true)
		n.open(false)
		s.drain()
		op := n.startAcquire()
		s.resize(2 * dsm.ExtentSize)
		home.apply()
		writer.apply()
		writer.store(t, dsm.ExtentSize/4, 5)
		publish(writer)
		for range 3 {
			s.deliverAll(link{1, 0})
			s.deliverAll(link{0, 1})
		}
		s.deliverAll(link{2, 0})
		s.deliverAll(link{0, 2})
		has := func() bool { return n.area.mu.ino.Size > dsm.ExtentSize && n.float(dsm.ExtentSize/4) == 5 }
		if len(op.pending) == 0 && !has() {
			t.Errorf("the home is %v: the acquire has ended without what was published before it came", id)
		}
		if n.area.mu.replica.fresh.Equal(op.began) != (len(op.pending) == 0) {
			t.Errorf("the home is %v: all is as new as the acquire, which waits for %v", id, op.pending)
		}
		s.drain()
		if len(op.pending) > 0 || !has() || !n.area.mu.replica.fresh.Equal(op.began) {
			t.Errorf("the home is %v: it waits for %v, the bytes are here: %v", id, op.pending, has())
		}
		n.area.step(func() { n.area.endAcquireLocked(op) })
	}
}

// TestGrowthToAnotherHome: with the growth comes a home that nobody has asked, so of memory as a whole nothing is known any more.
func TestGrowthToAnotherHome(t *testing.T) {
	for other, known := range map[dsm.NodeID]bool{1: true, 2: false} {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		s.changeView(func(v *dsm.View) { v.Slots[dsm.SlotOf(simArea, 1)].Primary = other })
		s.catchUp()
		n := s.nodes[2]
		n.open(false)
		op := n.startAcquire()
		s.drain()
		n.area.step(func() { n.area.endAcquireLocked(op) })
		if n.area.mu.replica.fresh.IsZero() {
			t.Fatal("nothing is known after an acquire")
		}
		s.resize(2 * dsm.ExtentSize)
		n.apply()
		n.area.step(func() {})
		if got := !n.area.mu.replica.fresh.IsZero(); got != known {
			t.Errorf("what came lives at node %v: it is known how new memory is: %v, want %v", other, got, known)
		}
	}
}

// TestPushBesideOutdatedPages: an extent has all of a version only if no page is known to be newer at the home.
func TestPushBesideOutdatedPages(t *testing.T) {
	for _, outdated := range []bool{false, true} {
		_, home, n := pair(t, dsm.ApplyArrival)
		a := n.area
		x := a.extentLocked(0)
		version := x.version + 10
		a.step(func() {
			if outdated {
				a.mu.replica.setOutdated(x, dsm.Range(0, 1))
			}
			set := dsm.Range(1, 2)
			if err := a.replicaPushLocked(home.id, &wire.Push{Stamp: a.stampLocked(), ID: 99, Pages: set, Zero: set, Version: version, Complete: true}, nil); err != nil {
				t.Fatal(err)
			}
		})
		if has := x.version == version; has == outdated {
			t.Errorf("a page is outdated: %v: the extent has all of the version: %v", outdated, has)
		}
	}
}

// TestReadsThatWaitForNewsDelayNoAcks: while a call waits until the kernel has been told everything homes have to wait, unless a READ waits for what they
// send: the notices may wait for that READ.
func TestReadsThatWaitForNewsDelayNoAcks(t *testing.T) {
	_, home, n := pair(t, dsm.ApplyArrival)
	r := &n.area.mu.replica
	r.draining++
	for freshening, lags := range map[int]bool{0: true, 1: false} {
		r.freshening = freshening
		if got := n.area.kernelLagsLocked(home.id); got != lags {
			t.Errorf("%d READs wait: acks are withheld: %v", freshening, got)
		}
	}
	r.draining, r.freshening = 0, 0
}

// TestReleaseAnswersAnAcquire: an acquire waits for pages that are to be pushed, and the node gives them up: there is nothing left to wait for.
func TestReleaseAnswersAnAcquire(t *testing.T) {
	s, home, n := pairOf(t, onDemand(sums(1, dsm.ApplyArrival)))
	a, set := home.area, dsm.Range(3, 4)
	a.step(func() {
		sub := a.mu.home.subs[n.id]
		sub.lagLocked(0).has = set
		sub.lackLocked(0, set)
		sub.acquires = append(sub.acquires, &acquireWait{round: 77, until: sub.lastTurn, left: int(sub.lacking)})
		a.homeReleaseLocked(n.id, &wire.Release{Stamp: a.stampLocked(), Extent: 0, Pages: set})
	})
	if got := sends[*wire.Acquired](s, link{0, 1}); got != 1 {
		t.Errorf("%d acquires are answered, want 1", got)
	}
	s.net[link{0, 1}] = nil // of an acquire that nobody made
}

// TestStoresDuringADrain: a call waits until the kernel has been told all that was known when it began. Pages that attached programs store to meanwhile
// are told of after it: otherwise it would wait as long as they store.
func TestStoresDuringADrain(t *testing.T) {
	_, _, n := pair(t, dsm.ApplyArrival)
	a := n.area
	a.countAttachedLocked(+1)
	n.kernel.finishNotices()
	n.kernel.read(0)
	w := a.mu.mem.Working(0)
	w[8]++
	a.drainLocked()
	a.touchedLocked(0, dsm.Range(0, 1))
	if !a.mu.cached.Idle() {
		t.Error("the call waits for what was stored while it waits")
	}
	if a.drainedLocked(); a.mu.cached.Idle() {
		t.Error("the kernel is not told after the call")
	}
	w[8]--
	a.touchedLocked(0, dsm.Range(0, 1))
	a.countAttachedLocked(-1)
}

// TestNewHomeKnowsNothingOfTheOld: when an extent has another home, the former may have died with what it had said last. So nobody counts on having it all.
func TestNewHomeKnowsNothingOfTheOld(t *testing.T) {
	s, _, n := pair(t, dsm.ApplyArrival)
	put(t, n, 5)
	publish(n)
	s.drain()
	op := n.startAcquire()
	s.drain()
	n.area.step(func() { n.area.endAcquireLocked(op) })
	if n.area.mu.replica.whole == 0 {
		t.Fatal("nothing is known after an acquire")
	}
	s.changeView(func(v *dsm.View) { *v.Row(dsm.SlotOf(simArea, 0)) = dsm.SlotHome{Primary: n.id, Epoch: v.Epoch} })
	n.apply()
	n.area.step(func() {})
	if v := n.area.mu.replica.whole; v != 0 {
		t.Errorf("everything up to version %d counts as here", v)
	}
}
