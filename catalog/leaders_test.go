package catalog

import (
	"context"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// hasLease reads on the node until it has a lease.
func (n *node) hasLease(ctx context.Context, t *testing.T) {
	t.Helper()
	for {
		if _, valid, _ := n.lease.valid(); valid {
			return
		}
		_, err := n.Getattr(ctx, dsm.RootIno)
		ok(t, err)
	}
}

// answering is a Caller that answers some requests itself.
type answering struct {
	Caller
	answer func(ctx context.Context, req any) (reply any, err error, answered bool)
}

func (a *answering) Call(ctx context.Context, addr string, req any) (any, error) {
	if reply, err, answered := a.answer(ctx, req); answered {
		return reply, err
	}
	return a.Caller.Call(ctx, addr, req)
}

// TestLeasesOfTheFormerLeader: a new leader does not know who has a lease from the former one. A change waits all the same, even for a node that
// cannot be asked to give its lease back.
func TestLeasesOfTheFormerLeader(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	lead := leaderOf(t, nodes)
	var leased, next *node
	for _, n := range nodes {
		switch {
		case n == lead:
		case leased == nil:
			leased = n
		default:
			next = n
		}
	}
	for _, n := range nodes {
		n.via.use(&answering{n.net, func(ctx context.Context, req any) (any, error, bool) {
			if _, is := req.(*wire.Recall); is && n != leased {
				<-ctx.Done()
				return nil, ctx.Err(), true
			}
			return nil, nil, false
		}})
	}
	leased.hasLease(ctx, t)
	to := serverOf(next.self)
	ok(t, lead.raft.LeadershipTransferToServer(to.raftID(), to.raftAddress()).Error())
	for leaderOf(t, nodes) != next { // until both know
	}
	_, err := next.Create(ctx, dsm.RootIno, "f", file, false)
	ok(t, err)
	if _, valid, _ := leased.lease.valid(); valid {
		t.Error("a change took place while a node had a lease of the former leader")
	}
}

// TestLeaseAheadOfTheLog: a lease comes with the end of the leader's log, and nothing is read by it before that has been applied.
func TestLeaseAheadOfTheLog(t *testing.T) {
	nodes := cluster(t, 3)
	n := follower(t, nodes)
	ctx := patient(t)
	n.lease.accept(n.lease.request(), n.raft.LastIndex()+1000)
	if n.leased(ctx) {
		t.Error("a read rests on a lease, and what was committed before it is not applied")
	}
}

// TestWhoConfirmsALeader: only voters that are of the same term, and the incarnation that has the vote.
func TestWhoConfirmsALeader(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	lead, n := leaderOf(t, nodes), follower(t, nodes)
	term := lead.leads()
	for name, c := range map[string]struct {
		asker wire.ReadIndex
		want  bool
	}{
		"the same term":       {wire.ReadIndex{From: n.self.ID, Inc: n.self.Inc, Term: term}, true},
		"a later term":        {wire.ReadIndex{From: n.self.ID, Inc: n.self.Inc, Term: term + 1}, false},
		"an earlier term":     {wire.ReadIndex{From: n.self.ID, Inc: n.self.Inc, Term: term - 1}, false},
		"another incarnation": {wire.ReadIndex{From: n.self.ID, Inc: n.self.Inc + 1, Term: term}, false},
		"a node with no vote": {wire.ReadIndex{From: 12345, Inc: n.self.Inc, Term: term}, false},
	} {
		if got := lead.majority(term, &c.asker); got != c.want {
			t.Errorf("who asks is of %s: %v, want %v", name, got, c.want)
		}
	}
	for name, c := range map[string]struct {
		change func(p *wire.Probed)
		want   bool
	}{
		"the same term":       {func(*wire.Probed) {}, true},
		"a later term":        {func(p *wire.Probed) { p.Term++ }, false},
		"another incarnation": {func(p *wire.Probed) { p.Inc++ }, false},
	} {
		lead.via.use(&answering{lead.net, func(_ context.Context, req any) (any, error, bool) {
			if _, is := req.(*wire.Probe); !is {
				return nil, nil, false
			}
			p := &wire.Probed{Term: term, Inc: n.self.Inc}
			c.change(p)
			return p, nil, true
		}})
		if got := lead.confirm(ctx, term); got != c.want {
			t.Errorf("the others are of %s: %v, want %v", name, got, c.want)
		}
	}
}
