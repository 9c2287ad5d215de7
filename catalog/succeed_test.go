package catalog

import (
	"slices"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestOnePromiseAtATime: a voter helps one other at a time, until that gives up or some time has passed.
func TestOnePromiseAtATime(t *testing.T) {
	var h heir
	h.init()
	at := func(of float64) time.Duration { return time.Hour + time.Duration(of*float64(promised)) }
	for i, x := range []struct {
		to   dsm.NodeID
		at   float64 // of promised
		want bool
	}{
		{1, 0, true}, {2, 0, false}, {1, 0.5, true}, {2, 1.4, false}, {2, 1.5, true}, {1, 1.6, false},
	} {
		if got := h.promise(x.to, at(x.at)); got != x.want {
			t.Errorf("step %d: promise %v, want %v", i, got, x.want)
		}
	}
	h.forget(1)
	if h.promise(1, at(1.7)) {
		t.Error("another's promise was forgotten")
	}
	h.forget(2)
	if !h.promise(1, at(1.7)) {
		t.Error("a promise that was forgotten binds")
	}
}

// TestWhoAgreesToAnElection asks a voter under each condition.
func TestWhoAgreesToAnElection(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	rest := slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n == lead })
	voter, other := rest[0], rest[1]
	ask := func(n *node, change func(*wire.Succeed)) bool {
		t.Helper()
		r := &wire.Succeed{From: other.self.ID, Term: n.raft.CurrentTerm(), Last: n.raft.LastIndex(), Ended: true}
		if change != nil {
			change(r)
		}
		reply, err := n.OnCall(patient(t), r.From, r)
		ok(t, err)
		n.heir.forget(r.From)
		return reply.(*wire.Succeeds).OK
	}
	if !ask(voter, nil) {
		t.Error("a voter does not agree, and the leader has ended")
	}
	if ask(lead, nil) {
		t.Error("a leader agrees that it has ended")
	}
	if ask(voter, func(r *wire.Succeed) { r.Term-- }) {
		t.Error("a voter agrees, and knows a later term")
	}
	if ask(voter, func(r *wire.Succeed) { r.Last-- }) {
		t.Error("a voter agrees, and has more in its log")
	}
	voter.heir.promise(voter.self.ID, voter.signs.clock())
	if ask(voter, nil) {
		t.Error("a voter agrees, and is about to stand itself")
	}
}

// TestSilentLeaderIsSucceeded makes the leader deaf, so that it is silent: one of the others stands when it has the word of the third.
func TestSilentLeaderIsSucceeded(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	open := lead.streams.shut()
	defer open()
	next := another(t, nodes, lead)
	for _, n := range nodes {
		if n != lead && n != next {
			n.heir.mu.Lock()
			to := n.heir.mu.to
			n.heir.mu.Unlock()
			if to != next.self.ID {
				t.Errorf("%s leads, and the third has promised %v", next.self.Name, to)
			}
		}
	}
}
