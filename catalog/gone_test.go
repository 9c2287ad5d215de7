package catalog

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// sees waits until the view of the node is such.
func (n *node) sees(t *testing.T, what string, cond func(v *dsm.View) bool) {
	t.Helper()
	if err := n.news.until(patient(t), n.life, func() bool { return cond(n.Current()) }); err != nil {
		t.Fatalf("%s: %v: %+v", what, err, n.Current().Members)
	}
}

func isOut(id dsm.NodeID) func(*dsm.View) bool {
	return func(v *dsm.View) bool {
		m, ok := v.Member(id)
		return !ok || m.Gone
	}
}

// mute is the Caller of a node that reaches nobody.
type mute struct{ Caller }

func (mute) Call(ctx context.Context, _ string, _ any) (any, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (mute) Tell(context.Context, string, any) (<-chan error, func()) {
	failed := make(chan error, 1)
	failed <- errors.New("nobody is reached")
	return failed, func() {}
}

// TestSilentMemberIsEvicted cuts a member off. It is fenced before it is evicted, and learns of the eviction when it reaches any other
// node again.
func TestSilentMemberIsEvicted(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	var silent, other *node
	for _, n := range nodes {
		switch {
		case n == lead:
		case silent == nil:
			silent = n
		default:
			other = n
		}
	}
	if silent.Fenced() || lead.Fenced() {
		t.Fatal("a node that is well is fenced")
	}
	silent.via.use(mute{})
	lead.sees(t, "a silent member", isOut(silent.self.ID))
	if !silent.Fenced() {
		t.Error("a member was evicted that was not fenced")
	}
	other.sees(t, "a silent member", isOut(silent.self.ID))
	silent.via.use(silent.net)
	select {
	case <-silent.Evicted():
	case <-patient(t).Done():
		t.Fatal("the node does not learn that it was evicted")
	}
	if err := silent.Leave(patient(t)); err != nil {
		t.Error("a node that was evicted leaves: ", err)
	}
	if !silent.Fenced() || lead.Fenced() || other.Fenced() {
		t.Error("who is evicted is not fenced, or who is well is")
	}
}

// TestDeadLeaderIsEvicted kills the leader: the next one has it marked as gone.
func TestDeadLeaderIsEvicted(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	lead.stop()
	for _, n := range nodes {
		if n != lead {
			n.sees(t, "a dead leader", isOut(lead.self.ID))
		}
	}
}

// refusedAt is the Caller of a node whose connections to an address are refused.
type refusedAt struct {
	Caller
	addr string
}

func (r refusedAt) Call(ctx context.Context, addr string, req any) (any, error) {
	if strings.HasSuffix(addr, r.addr) {
		return nil, syscall.ECONNREFUSED
	}
	return r.Caller.Call(ctx, addr, req)
}

// TestLeaverThatIsRefused: a member that is well stays one, though the connections of a node that leaves are refused at its address.
func TestLeaverThatIsRefused(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	var leaver, well *node
	for _, n := range nodes {
		switch {
		case n == lead:
		case leaver == nil:
			leaver = n
		default:
			well = n
		}
	}
	leaver.via.use(refusedAt{leaver.net, well.self.Addr})
	ok(t, leaver.Leave(patient(t)))
	awaitGone(t, lead, leaver)
	if m, member := lead.Current().Member(well.self.ID); !member || m.Gone {
		t.Errorf("a member that is well: %+v", m)
	}
	select {
	case <-well.Evicted():
		t.Error("a member that is well was evicted")
	default:
	}
}
