package coherence

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Rounds in which single steps come in an order that faults bring about.

var firstRound = dsm.RoundID{Group: 99, Generation: 1, Number: 1}

// accumulateFive starts an Accumulate of the number 5 by the node.
func (n *simNode) accumulateFive() {
	n.ask("accumulate", func(ctx context.Context) error { return accumulate(ctx, n.area, firstRound, 0, []byte{5, 0, 0, 0}) }, nil)
}

// joinRound starts a Contribute of the node.
func (n *simNode) joinRound() {
	n.ask("contribute", func(ctx context.Context) error { return n.area.Contribute(ctx, firstRound) }, nil)
}

// endRound starts a FinishRound of the node. done gets its error.
func (n *simNode) endRound(list []dsm.NodeID, done func(err error)) {
	n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, firstRound, list, len(list), true) }, done)
}

// newHomeWithoutMemory is a cluster of three whose first node is the home and has no memory for the area, until feed is called. The others have
// it open for writing.
func newHomeWithoutMemory(t *testing.T) (s *sim, home, n, other *simNode, feed func()) {
	s = newHomed(t, 3, sums(1, dsm.ApplyArrival))
	home, n, other = s.nodes[0], s.nodes[1], s.nodes[2]
	home.find()
	_, feed = home.starve()
	n.open(true)
	other.open(true)
	return s, home, n, other, feed
}

// losePart is a cluster of two in which a part on its way to the home is dropped, and its node has not heard of that.
func losePart(t *testing.T) (s *sim, home, n *simNode, part *wire.Part) {
	s = newHomed(t, 2, sums(1, dsm.ApplyArrival))
	home, n = s.nodes[0], s.nodes[1]
	home.open(true)
	n.open(true)
	s.calm()
	n.accumulateFive()
	s.rest()
	part = s.net[link{1, 0}][0].msg.(*wire.Part)
	s.net[link{1, 0}] = nil
	return s, home, n, part
}

// TestRoundOutlivesItsReplica: the home of parts keeps the memory for them when its own programs are gone.
func TestRoundOutlivesItsReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		home, n := s.nodes[0], s.nodes[1]
		home.node.cfg.Linger = time.Second
		home.open(false)
		n.open(true)
		put(t, n, 5)
		n.joinRound()
		s.calm()
		home.leaveAll()
		<-time.After(2 * time.Second) // of the bubble
		s.calm()
		if home.area.mu.replica.subscribed {
			t.Fatal("the replica of the home is still there")
		}
		n.endRound([]dsm.NodeID{2}, nil)
		s.calm()
		want(t, n, 5)
	})
}

// TestPartTakenBackFreesMemory: a home that has nothing but parts gives the memory back with the last of them.
func TestPartTakenBackFreesMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		home, n := s.nodes[0], s.nodes[1]
		home.find()
		n.open(true)
		n.accumulateFive()
		s.calm()
		if home.area.mu.mem == nil {
			t.Error("parts are here, and no memory")
		}
		n.area.AbandonRound(firstRound)
		s.calm()
		if home.area.mu.mem != nil {
			t.Error("nothing is here, and the memory stays")
		}
	})
}

// TestPublishBesideAPart: what a node publishes stays in its memory while a part of it waits that does not add up to the last bit.
func TestPublishBesideAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sumOf(dsm.DTypeF32, dsm.ApplyArrival)
		ino.Size = dsm.ExtentSize
		s := newHomed(t, 2, ino)
		n := s.nodes[1]
		n.open(true)
		set := func(k int64, v float32) {
			if err := n.area.WriteAt(context.Background(), binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)), 4*k); err != nil {
				t.Fatal(err)
			}
		}
		set(0, 1)
		publish(n)
		s.calm()
		set(0, 1e-8) // 1e-8-1 is -1
		n.joinRound()
		s.calm()
		set(1, 3)
		publish(n)
		s.calm()
		if v := math.Float32frombits(binary.LittleEndian.Uint32(n.area.mu.mem.Working(0)[4:])); v != 3 {
			t.Errorf("an element is %v after it was published, want 3", v)
		}
	})
}

// TestTwoProgramsFinish: each program of a node gets the answer to its own Finish.
func TestTwoProgramsFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		s.openAll()
		for _, n := range s.nodes[1:] {
			put(t, n, 5)
			n.joinRound()
		}
		s.calm()
		s.changeRules(func(*dsm.Inode) {}) // the parts come again; of the last node only when it has heard of the rules
		for _, n := range s.nodes[:2] {
			for n.behindCatalog() {
				n.apply()
			}
		}
		n, done := s.nodes[1], 0
		for range 2 {
			n.endRound([]dsm.NodeID{2, 3}, func(error) { done++ })
			s.rest()
			s.deliverAll(link{1, 0})
			s.rest()
		}
		s.catchUp()
		s.calm("finish")
		if done != 2 {
			t.Errorf("%d of 2 calls of FinishRound return", done)
		}
		for _, r := range s.requests {
			r.giveUp()
		}
		s.drain()
	})
}

// TestPartTakenBackComesAgain: a part that the home has given back is published. So it does not count again in the round, though a broken
// session has it sent again behind the word that there is none.
func TestPartTakenBackComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		home, n, m := s.nodes[0], s.nodes[1], s.nodes[2]
		s.openAll()
		for i, n := range s.nodes[1:] {
			put(t, n, int32(1)<<(4*i))
			n.joinRound()
		}
		s.calm()
		n.area.AbandonRound(firstRound)
		s.rest()
		s.deliverAll(link{1, 0})
		n.reset(home)
		s.rest()
		for len(s.net[link{1, 0}]) > 1 { // all but the last Contributed
			s.deliverOn(link{1, 0})
		}
		m.endRound([]dsm.NodeID{2, 3}, nil)
		s.rest()
		s.deliverAll(link{2, 0})
		s.calm()
		s.rested()
		for _, n := range s.nodes {
			want(t, n, 17)
		}
	})
}

// TestContributeAfterGivingUp: a node that has taken its parts back may take part in the same round after all.
func TestContributeAfterGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		n, m := s.nodes[1], s.nodes[2]
		s.openAll()
		s.calm()
		give := func(n *simNode, v byte) {
			n.ask("accumulate", func(ctx context.Context) error {
				if err := accumulate(ctx, n.area, firstRound, 0, []byte{v, 0, 0, 0}); err != nil {
					return err
				}
				return n.area.Contribute(ctx, firstRound)
			}, nil)
			s.calm()
		}
		give(m, 1)
		give(n, 2)
		n.area.AbandonRound(firstRound)
		s.calm()
		give(n, 4)
		m.endRound([]dsm.NodeID{2, 3}, nil)
		s.calm()
		want(t, m, 5)
	})
}

// TestAccumulatedIsDropped: if what a program has handed over is dropped, as another program of the node has given the round up, then
// FinishRound does not report success.
func TestAccumulatedIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		n := s.nodes[1]
		n.open(true)
		n.ask("accumulate", func(ctx context.Context) error {
			if err := accumulate(ctx, n.area, firstRound, 0, []byte{5, 0, 0, 0}); err != nil {
				return err
			}
			return n.area.Contribute(ctx, firstRound)
		}, nil)
		s.calm()
		n.area.AbandonRound(firstRound)
		s.rest()
		var finished error
		n.ask("finish", func(ctx context.Context) error {
			finished = n.area.FinishRound(ctx, firstRound, []dsm.NodeID{2}, 1, true)
			return nil
		}, nil)
		s.calm()
		if !errs.Is(finished, errs.Unavailable) {
			t.Errorf("FinishRound returns %v", finished)
		}
	})
}

// TestRoundGivenUpByTheLiving: the parts of a member that has died go when all others have given the round up.
func TestRoundGivenUpByTheLiving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sums(1, dsm.ApplyArrival)
		ino.Spec.Placement = dsm.PlaceOne
		s := newHomed(t, 3, ino)
		for i, n := range s.nodes {
			n.open(true)
			put(t, n, int32(1)<<i)
			n.joinRound()
		}
		s.calm()
		s.kill(s.nodes[2])
		s.bury(s.nodes[2])
		s.calm()
		for _, n := range s.nodes[:2] {
			n.area.AbandonRound(firstRound)
		}
		s.calm()
		if hr := s.nodes[0].area.mu.home.rounds.open[firstRound]; hr != nil {
			t.Errorf("%d extents of parts are kept", len(hr.parts))
		}
	})
}

// TestPartWaitsForMemory: a round does not end without a part that came after its node had contributed, and that waits until the home has memory.
func TestPartWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, n, m, feed := newHomeWithoutMemory(t)
		for _, o := range []*simNode{n, m} {
			o.joinRound()
		}
		s.calm()
		n.accumulateFive()
		s.calm()
		for _, o := range []*simNode{m, n} {
			o.endRound([]dsm.NodeID{2, 3}, nil)
			s.calm("finish")
		}
		feed()
		<-time.After(memoryRetry + 1) // of the bubble
		s.calm()
		for _, o := range []*simNode{n, m} {
			want(t, o, 5)
		}
	})
}

// TestFinishOfAnEarlierRound: who waits for the end of a round is answered when a later one of the group ends, after which nobody ends it.
func TestFinishOfAnEarlierRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		home, n := s.nodes[0], s.nodes[1]
		later := dsm.RoundID{Group: firstRound.Group, Generation: 1, Number: 2}
		s.openAll()
		s.calm()
		put(t, n, 5)
		n.joinRound()
		s.calm()
		over := 0
		finish := func(n *simNode, id dsm.RoundID, list ...dsm.NodeID) {
			n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, id, list, len(list), true) }, func(error) { over++ })
			s.rest()
			s.deliverAll(link{n.i, 0})
		}
		finish(n, firstRound, 2, 3) // node 2 says nothing
		home.ask("contribute", func(ctx context.Context) error { return home.area.Contribute(ctx, later) }, nil)
		s.rest()
		finish(home, later, 1)
		s.deliverAll(link{0, 1})
		for range 3 { // pushes, acks
			s.deliverAll(link{1, 0})
			s.deliverAll(link{0, 1})
			n.kernel.finishNotices()
		}
		s.rest()
		if over != 2 {
			t.Errorf("%d of 2 calls of FinishRound return", over)
		}
		s.calm("finish")
		want(t, home, 5)
		for _, r := range s.requests {
			r.giveUp()
		}
		s.drain()
	})
}

// TestPartsWaitInOrder: when memory comes, a round does not end between two parts of a node that have waited for it.
func TestPartsWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 4, sums(1, dsm.ApplyArrival))
		home, n, m, last := s.nodes[0], s.nodes[1], s.nodes[2], s.nodes[3]
		home.find()
		_, feed := home.starve()
		for _, o := range []*simNode{n, m, last} {
			o.open(true)
		}
		n.joinRound()
		m.joinRound()
		s.calm()
		for _, o := range []*simNode{n, m, n} {
			o.accumulateFive()
			s.calm()
		}
		last.endRound([]dsm.NodeID{2, 3}, nil)
		s.calm("finish")
		feed()
		<-time.After(memoryRetry + 1) // of the bubble
		s.calm()
		want(t, last, 15)
	})
}

// TestFinishAtAFormerHome: a home that the Finish finds without extents, because they were truncated, learns that all have contributed.
func TestFinishAtAFormerHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(2, dsm.ApplyArrival))
		home, n := s.nodes[0], s.nodes[1]
		s.move(s.nodes[2], 1)
		s.calm()
		n.open(true)
		home.open(true)
		n.joinRound()
		s.calm()
		s.resize(dsm.ExtentSize)
		for home.behindCatalog() {
			home.apply()
		}
		n.endRound([]dsm.NodeID{2}, nil)
		s.calm()
	})
}

// TestPartDroppedBeforeContributed: a Contributed of a later session than a part that was dropped does not count, if its node has not heard of that.
func TestPartDroppedBeforeContributed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, n, _ := losePart(t)
		contributed := false
		n.ask("contribute", func(ctx context.Context) error { return n.area.Contribute(ctx, firstRound) }, func(error) { contributed = true })
		home.endRound([]dsm.NodeID{2}, nil)
		s.calm("contribute", "finish")
		if contributed {
			t.Error("the home has a part that was lost")
		}
		n.reset(home)
		s.calm()
		want(t, n, 5)
	})
}

// TestPartsCountAsMemory: what nodes keep of parts counts against --memory until the round has ended, once where the home is the node's own.
func TestPartsCountAsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(2, dsm.ApplyArrival))
		home, n := s.nodes[0], s.nodes[1]
		before := make(map[*simNode]int64)
		s.openAll()
		s.calm()
		for _, o := range s.nodes {
			before[o] = o.node.room.fixed.Load()
		}
		check := func(when string, homeHas, ns int64) {
			t.Helper()
			for o, want := range map[*simNode]int64{home: homeHas, n: ns} {
				if got := o.node.room.fixed.Load() - before[o]; got != want {
					t.Errorf("%s: %d bytes more at node %d, want %d", when, got, o.i, want)
				}
			}
		}
		give := func(o *simNode, off, size int64) {
			o.ask("accumulate", func(ctx context.Context) error {
				return accumulate(ctx, o.area, firstRound, off, bytes.Repeat([]byte{1}, int(size)))
			}, nil)
			s.calm()
		}
		const k = 64 << 10
		give(n, 0, k)
		check("one part", k, k)
		give(home, 0, 4*k)
		check("a part of the home", 5*k, k)
		for _, p := range home.area.mu.home.rounds.open[firstRound].parts[0] {
			if own := home.area.extentLocked(0).publication(p.seq); p.from == home.id && p.data != own.data {
				t.Error("the home has copied the part of its own node")
			}
		}
		for _, o := range s.nodes {
			o.joinRound()
		}
		s.calm()
		home.endRound([]dsm.NodeID{1, 2}, nil)
		n.endRound([]dsm.NodeID{1, 2}, nil)
		s.calm()
		check("after the round", 0, 0)
		for _, o := range s.nodes {
			want(t, o, 0x02020202)
		}
		give(n, 0, k)
		give(home, 0, k)
		for _, o := range s.nodes {
			o.area.AbandonRound(firstRound)
		}
		s.calm()
		check("given up", 0, 0)
	})
}

// TestPartThatWaitedIsSentAgain: a round does not end without a part that has waited for memory and was dropped when a session broke.
func TestPartThatWaitedIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, n, last, feed := newHomeWithoutMemory(t)
		n.joinRound()
		s.calm()
		n.accumulateFive()
		s.calm()
		home.reset(n) // n hears of it later
		last.endRound([]dsm.NodeID{2}, nil)
		s.calm("finish")
		n.reset(home)
		feed()
		s.calm("finish")
		<-time.After(memoryRetry + 1) // of the bubble
		s.calm()
		want(t, last, 5)
	})
}

// TestGivenUpBeforeTheHomeIsAnswered: a home asks a node whose program has begun to accumulate for its parts, and then the node gives the
// round up without any. The home is told, or those who finish the round would wait for ever.
func TestGivenUpBeforeTheHomeIsAnswered(t *testing.T) {
	s := newHomed(t, 2, sumOf(dsm.DTypeI32, dsm.ApplyAuto))
	n := s.nodes[1]
	n.open(true)
	s.drain()
	if _, err := n.area.inRound(t.Context(), firstRound, func(*contribution) {}); err != nil {
		t.Fatal(err)
	}
	n.area.step(func() { n.area.replicaMissingLocked(s.nodes[0].id, &wire.Missing{Round: firstRound}) })
	n.area.AbandonRound(firstRound)
	for _, f := range s.net[link{1, 0}] {
		if m, ok := f.msg.(*wire.Contributed); ok && m.None && m.Round == firstRound {
			return
		}
	}
	t.Errorf("the home is told nothing: %v", s.net)
}

// TestPartThatAnEarlierHomeHasMerged: the home has had a Contributed that counts a part which it will never have. Its node sends another one when it
// hears that the part is merged.
func TestPartThatAnEarlierHomeHasMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, n, part := losePart(t)
		contributed := false
		n.ask("contribute", func(ctx context.Context) error { return n.area.Contribute(ctx, firstRound) }, func(error) { contributed = true })
		s.calm("contribute")
		n.area.step(func() {
			n.area.replicaPublishAckLocked(&wire.PublishAck{Stamp: home.area.stampLocked(), Extent: part.Extent, Seq: part.Seq, Version: 1})
		})
		if s.calm("contribute"); !contributed {
			t.Error("nobody has told the home that there is nothing to wait for")
		}
		n.endRound([]dsm.NodeID{2}, nil)
		s.calm()
	})
}

// TestAnswerThatCountsNothing: a home that asked a node which took part in no round answers it as it does a Contributed. The answer may come when the
// node contributes to the next round, of which that home has nothing.
func TestAnswerThatCountsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		n := s.nodes[1]
		n.open(true)
		s.calm()
		put(t, n, 5)
		contributed := false
		n.ask("contribute", func(ctx context.Context) error { return n.area.Contribute(ctx, firstRound) }, func(error) { contributed = true })
		s.rest()
		for _, home := range []*simNode{s.nodes[0], s.nodes[2]} {
			n.area.step(func() {
				if err := n.area.receiveOfRoundLocked(home.id, &wire.Counted{Round: firstRound}, nil); err != nil {
					t.Error(err)
				}
			})
		}
		s.rest()
		if contributed {
			t.Error("nobody has the part")
		}
		s.calm()
		if !contributed {
			t.Error("the home has the part, and the node waits on")
		}
	})
}

// TestPageOfAPartBecomesZero: what a node has of a page becomes zero while a part of a round waits that is about it. The part still counts from what was there.
func TestPageOfAPartBecomesZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, list := newHomed(t, 2, sums(1, dsm.ApplyArrival)), []dsm.NodeID{1, 2}
		home, n := s.nodes[0], s.nodes[1]
		home.open(true)
		n.open(true)
		s.calm()
		home.store(t, 0, 5)
		home.store(t, 1, 6)
		publish(home)
		s.calm()
		n.store(t, 0, 0)
		n.store(t, 1, 3)
		for _, n := range s.nodes {
			n.joinRound()
		}
		s.calm()
		n.store(t, 1, 0)
		publish(n)
		s.calm()
		n.store(t, 0, 1)
		publish(n)
		s.calm()
		for _, n := range s.nodes {
			n.endRound(list, nil)
		}
		s.calm()
		for _, n := range s.nodes {
			if first, second := n.float(0), n.float(1); first != 1 || second != 0 {
				t.Errorf("node %d has %v, %v, want 1, 0", n.i, first, second)
			}
		}
	})
}
