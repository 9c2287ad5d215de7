package groups

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// empty reports whether a node has nothing of any group, and nothing to send.
func (n *simNode) empty() bool {
	return len(n.mu.locals)+len(n.mu.coordinators)+len(n.mu.inbox)+len(n.mu.outbox)+len(n.mu.stakes) == 0
}

// TestCoordinatorIsPutOut: the others have ended a barrier without the coordinator and its member when the member arrives there. The old coordinator has
// the arrivals of all then, and ends nothing. Nor does it when it is a member again.
func TestCoordinatorIsPutOut(t *testing.T) {
	for _, skips := range []bool{false, true} {
		h := &chosen{sim: newSim(t, 1, 3)}
		h.join(0, 1, 2)
		for _, p := range h.progs[1:] {
			p.meet()
			p.add()
		}
		h.pass()
		old := h.nodes[0]
		h.putOut(old)
		for _, n := range h.nodes[1:] {
			n.see()
		}
		h.pass()
		for _, p := range h.progs[1:] {
			if p.number != 1 || p.added != 1 {
				t.Fatalf("the others do not go on: %s", h)
			}
		}
		for _, what := range []func(*simProgram){(*simProgram).meet, (*simProgram).add, (*simProgram).tick} {
			h.progs[0].waits = "" // other threads wait
			what(h.progs[0])      // which fails the test if it is told the end
		}
		h.pass()
		old.goOnNow()
		h.admit(old)
		for _, n := range h.nodes[1:] {
			n.see()
		}
		if skips {
			old.seen++
		}
		for old.seen < len(h.views) {
			old.see()
		}
		if !h.progs[0].over || h.progs[0].number != 0 || h.progs[0].added != 0 || !old.empty() {
			t.Errorf("skips %t: the member and the coordinator are not gone: %s", skips, h)
		}
		old.goOnNow()
		h.pass()
		for _, p := range h.progs[1:3] {
			p.meet()
		}
		h.pass()
		if h.progs[1].number != 2 || h.progs[2].number != 2 {
			t.Errorf("skips %t: the others do not go on: %s", skips, h)
		}
	}
}

// TestFencedCoordinatorTellsNobody: what is decided without a lease comes when it lasts again.
func TestFencedCoordinatorTellsNobody(t *testing.T) {
	for what, do := range map[string]func(*simProgram){
		"a barrier": (*simProgram).meet, "a counter": (*simProgram).add, "a tick": (*simProgram).tick,
		"a rank": func(p *simProgram) { p.act(3) },
	} {
		h := &chosen{sim: newSim(t, 1, 3)}
		if what == "a rank" {
			for _, n := range h.nodes {
				h.progs = append(h.progs, h.program(n))
			}
		} else {
			h.join(0, 1, 2)
		}
		h.nodes[0].fenced = true
		for _, p := range h.progs {
			if what == "a tick" {
				p.ticks = 5 // further than it may go without the others
			}
			do(p)
		}
		told := 0
		for to := range h.nodes {
			told += len(h.net[[2]int{0, to}])
		}
		h.pass()
		for _, p := range h.progs {
			if p.waits != what || told > 0 {
				t.Errorf("%s: node %d is told without a lease", what, p.node.i+1)
			}
		}
		h.nodes[0].goOnNow() // it has none yet
		h.pass()
		h.nodes[0].fenced = false
		h.nodes[0].goOnNow()
		h.pass()
		for _, p := range h.progs {
			if p.waits != "" {
				t.Errorf("%s: the lease lasts again, and node %d is not told", what, p.node.i+1)
			}
		}
	}
}

// TestResultThatComesAfterTheLease: the coordinator had told of the end of a barrier before it was put out, and another node as well. There it arrives when the
// others have another result.
func TestResultThatComesAfterTheLease(t *testing.T) {
	h := &chosen{sim: newSim(t, 1, 4)}
	h.join(1, 2, 3)
	h.links = [][2]int{{0, 1}, {0, 2}, {0, 3}}
	for _, p := range h.progs {
		p.meet()
	}
	h.pass()
	h.putOut(h.nodes[0])
	h.putOut(h.nodes[1])
	for _, n := range h.nodes[2:] {
		n.see()
		n.see()
	}
	h.pass()
	if h.progs[1].number != 1 || h.progs[2].number != 1 {
		t.Fatalf("the others do not go on: %s", h)
	}
	h.links = nil
	h.pass() // it fails the test if the program is told
	h.nodes[1].goOnNow()
	h.admit(h.nodes[1])
	for h.nodes[1].seen < len(h.views) {
		h.nodes[1].see()
	}
	if !h.progs[0].over || !h.nodes[1].empty() {
		t.Errorf("the member is not gone: %s", h)
	}
}

// TestCallsWithoutALease: a call ends when its time is over, when it is interrupted, when the node ends, or when the lease lasts again: then nothing looks
// at it any more.
func TestCallsWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		members := c.join(2, 0, 1)
		var fenced atomic.Bool
		var looks atomic.Int64
		c.nodes[0].cfg.MayTell = func() bool {
			looks.Add(1)
			return !fenced.Load()
		}
		fenced.Store(true)
		go func() { _ = second(members[1].Barrier(t.Context(), 1)) }()
		wants(t, second(members[0].Barrier(ended(t), 1)), errs.Timeout, "number 1")
		ctx, interrupt := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, interrupt)
		wants(t, second(members[0].Barrier(ctx, 1)), errs.Interrupted, "")

		over := make(chan error, 1)
		meet := func(number uint64) {
			go func() { over <- second(members[0].Barrier(t.Context(), number)) }()
			synctest.Wait()
			select {
			case err := <-over:
				t.Errorf("barrier %d ends without a lease: %v", number, err)
			default:
			}
		}
		meet(1)
		fenced.Store(false)
		if err := <-over; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		before := looks.Load()
		time.Sleep(time.Minute)
		if n := looks.Load() - before; n != 0 {
			t.Errorf("nobody waits, and the lease is looked at %d times", n)
		}

		fenced.Store(true)
		go func() { _ = second(members[1].Barrier(t.Context(), 2)) }()
		meet(2)
		c.nodes[0].Close()
		wants(t, <-over, errs.Closed, "the node ends")
		before = looks.Load()
		time.Sleep(time.Minute)
		if n := looks.Load() - before; n > 1 {
			t.Errorf("the node has ended, and the lease is looked at %d times", n)
		}
		fenced.Store(false)
		c.nodes[1].Close()
	})
}
