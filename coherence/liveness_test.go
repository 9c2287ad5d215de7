package coherence

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestPublishesBehindARefusedOne: a publish is under way, a second one waits for what was stored since, and the home
// refuses the first because the rules have changed: what is made anew has all of it, and both have what they wait for.
func TestPublishesBehindARefusedOne(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	a := replica.area
	var goals []publishGoal
	for v := range int32(3) {
		put(t, replica, 5+v)
		a.step(func() { goals = append(goals, a.requestPublishLocked()) })
	}
	s.changeRules(func(*dsm.Inode) {})
	home.apply()
	s.drain()
	for i, g := range goals {
		if !a.reachedLocked(g) {
			t.Errorf("publish %d is never complete", i)
		}
	}
	want(t, home, 7)
}

// TestPublishOfATruncatedExtent: what an fsync waits for is truncated, and the area grows again, while other extents are under way.
func TestPublishOfATruncatedExtent(t *testing.T) {
	s, _, replica := pairOf(t, sums(2, dsm.ApplyArrival))
	a := replica.area
	storeAll(t, replica, 2)
	var goal publishGoal
	a.step(func() { goal = a.requestPublishLocked() })
	if len(goal) != 2 {
		t.Fatalf("%d extents are under way", len(goal))
	}
	s.resize(dsm.ExtentSize)
	s.resize(2 * dsm.ExtentSize)
	replica.apply()
	if a.reachedLocked(goal) {
		t.Fatal("the first extent is not acked")
	}
	replica.apply()
	s.drain()
	if !a.reachedLocked(goal) {
		t.Errorf("it waits for %d extents that are gone", len(goal))
	}
}

// TestFetchRefusedByNewRules: the answer to a Fetch is refused as it was made before new rules; the home sends it again, also to a
// node that takes updates in sync calls only.
func TestFetchRefusedByNewRules(t *testing.T) {
	s, home, replica := pairOf(t, onDemand(sums(1, dsm.ApplyAuto)))
	replica.kernel.fault(3) // asks for the page
	s.deliverAll(link{1, 0})
	s.changeRules(func(ino *dsm.Inode) { ino.Spec.Apply = dsm.ApplySync })
	replica.apply()
	s.drain()
	home.apply()
	s.drain()
	if !replica.area.presentLocked(3*dsm.PageSize, dsm.PageSize) {
		t.Error("the page never comes")
	}
}

// TestAcquiredBeforeNewRules: an Acquire is answered behind a push that is refused, as it was made before new rules: the acquire is
// not over before the push has come again.
func TestAcquiredBeforeNewRules(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	op := replica.startAcquire()
	put(t, home, 5)
	publish(home)
	s.deliverAll(link{1, 0})
	s.changeRules(func(ino *dsm.Inode) { ino.Spec.Apply = dsm.ApplySync })
	replica.apply()
	for len(op.pending) > 0 {
		s.deliver()
	}
	want(t, replica, 5)
}

// TestAcquireAfterATruncatedFetch: of an extent that is truncated a page was fetched and has not come, and another is withheld. The home has
// nothing more to send of it, and answers.
func TestAcquireAfterATruncatedFetch(t *testing.T) {
	s, home, replica := pairOf(t, onDemand(sums(2, dsm.ApplyAuto)))
	const withheld, fetched = dsm.ExtentPages + 1, dsm.ExtentPages
	for _, n := range s.nodes {
		n.kernel.fault(withheld)
		s.drain()
	}
	if err := home.area.WriteAt(context.Background(), []byte{1, 0, 0, 0}, withheld*dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	publish(home)
	s.drain()
	replica.kernel.fault(fetched)
	s.deliverAll(link{1, 0})
	s.resize(dsm.ExtentSize)
	replica.apply()
	s.drain()
	home.apply()
	op := replica.startAcquire()
	s.drain()
	if len(op.pending) > 0 {
		t.Error("the acquire is never answered")
	}
}

// TestLateHandoverAck: an ack to an earlier run of a handover is none to the next one.
func TestLateHandoverAck(t *testing.T) {
	s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
	h := &s.nodes[0].node.handovers
	s.nodes[0].open(true)
	put(t, s.nodes[0], 5)
	publish(s.nodes[0])
	var ids []uint64
	for range 2 {
		ctx, cancel := context.WithCancel(context.Background())
		h.ctx = ctx
		sent := make(chan uint64, 1)
		s.nodes[0].node.cfg.Sender = &tap{simNode: s.nodes[0], sent: sent}
		r := &handoverRun{to: s.nodes[1].id, acks: make(chan *wire.HandoverAck, 1), restart: make(chan struct{}, 1)}
		done := make(chan bool)
		go func() { done <- h.send(r, []dsm.Slot{dsm.SlotOf(simArea, 0)}) }()
		ids = append(ids, <-sent)
		cancel()
		<-done
	}
	if ids[0] == ids[1] {
		t.Errorf("two runs both sent extents by the number %d", ids[0])
	}
}

// tap is a node's Sender that tells of the extents that are handed over.
type tap struct {
	*simNode
	sent chan uint64
}

func (p *tap) Send(to dsm.NodeID, m any, payload [][]byte, more bool) {
	if x, ok := m.(*wire.HandoverExtent); ok {
		p.sent <- x.ID
	}
	p.simNode.Send(to, m, payload, more)
}

// TestSyncAcquires: what was published before a sync began is in memory after it, whoever syncs.
func TestSyncAcquires(t *testing.T) {
	for _, storing := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, home, replica := pair(t, dsm.ApplyArrival)
			put(t, home, 5)
			publish(home) // complete: the push is on its way
			ctx, cancel := context.WithCancel(context.Background())
			w := &waiting{cancel, make(chan error, 1)}
			go func() { w.done <- replica.area.Sync(ctx, storing) }()
			synctest.Wait()
			if early := get(replica); w.over(t) {
				t.Fatalf("it has returned, and memory has %d, want 5", early)
			}
			for s.deliver() {
				synctest.Wait()
			}
			if !w.over(t) {
				t.Error("it does not return")
			}
			want(t, replica, 5)
			w.end()
		})
	}
}

// TestPublishWithAStoreThatWaits: an extent has a page that was stored to and a store to a page that is not here yet. What
// can be published is, and an fsync waits for both.
func TestPublishWithAStoreThatWaits(t *testing.T) {
	s, home, replica := pairOf(t, onDemand(sums(1, dsm.ApplyArrival)))
	a := replica.area
	put(t, replica, 1)
	s.drain() // page 0 has come
	put(t, replica, 5)
	if err := a.WriteAt(t.Context(), []byte{7, 0, 0, 0}, dsm.PageSize); err != nil { // this one has not
		t.Fatal(err)
	}
	var goal publishGoal
	a.step(func() { goal = a.requestPublishLocked() })
	homed := func() int32 { return int32(binary.LittleEndian.Uint32(home.area.mu.mem.Home(0))) }
	fetch := s.net[link{1, 0}][0]
	s.net[link{1, 0}] = s.net[link{1, 0}][1:]
	s.drain()
	if homed() != 5 {
		t.Errorf("what was here is not published: the home has %d", homed())
	}
	if a.reachedLocked(goal) {
		t.Error("the fsync returns, and a store is not published")
	}
	s.net[link{1, 0}] = append(s.net[link{1, 0}], fetch)
	s.drain()
	if b := home.area.mu.mem.Home(1); !a.reachedLocked(goal) || b[0] != 7 {
		t.Errorf("the fsync has returned: %v; the home has %d, want 7", a.reachedLocked(goal), b[0])
	}
}

// TestFetchAgainBeforeALateAck: a page came, left and was asked for again before the ack of the first answer, which was withheld. The
// second answer is refused, as it was made before new rules; the home sends it again all the same.
func TestFetchAgainBeforeALateAck(t *testing.T) {
	s, home, replica := pairOf(t, onDemand(sums(1, dsm.ApplySync)))
	a := replica.area
	a.step(a.drainLocked) // acks wait
	replica.here(3)
	s.drain()
	a.step(func() {
		if v := a.evictLocked(0, dsm.Range(3, 4), true); v.gone.Empty() {
			t.Error("the page does not leave")
		}
	})
	replica.here(3)
	s.deliverAll(link{1, 0})
	a.step(a.drainedLocked)
	s.deliverAll(link{1, 0})
	s.changeRules(func(*dsm.Inode) {})
	replica.apply()
	s.drain() // the second answer is refused
	home.apply()
	s.drain()
	if !replica.here(3) {
		t.Error("the page never comes")
	}
}

// TestReadWhileTheKernelIsTold: a call waits until the kernel has been told of everything, so acks wait, and take up the link. A READ
// waits for a page of the same home. What the kernel is to be told may be of the pages of that READ: then it waits for the READ.
func TestReadWhileTheKernelIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const p = dsm.ExtentPages
		s := newHomed(t, 3, onDemand(sums(2, dsm.ApplyArrival)))
		home, replica, other := s.nodes[0], s.nodes[1], s.nodes[2]
		other.open(true)
		put(t, other, 5)
		if err := other.area.WriteAt(t.Context(), []byte{7}, p*dsm.PageSize); err != nil {
			t.Fatal(err)
		}
		publish(other)
		s.drain()

		home.node.links.window = 1
		replica.find()
		replica.startOpen(false)
		replica.area.step(replica.area.drainLocked)
		replica.waitFor(0)
		s.drain()
		if len(replica.area.mu.replica.lateAcks) == 0 {
			t.Fatal("no ack waits")
		}
		replica.kernel.ask(p)
		s.drain()
		replica.kernel.receive()
		if c := replica.kernel.cache[p]; c == nil || c.data[0] != 7 {
			t.Error("the READ is not answered")
		}
		replica.area.step(replica.area.drainedLocked)
		s.drain()
	})
}
