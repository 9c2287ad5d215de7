package catalog

import (
	"context"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// joins has a node join through another. Nothing of raft reaches it before the door is opened. It returns when the leader has the member.
func joins(t *testing.T, lead, via *node) (x *node, open func(), joined <-chan error) {
	t.Helper()
	x = start(t, "late")
	open = x.streams.shutDoor()
	t.Cleanup(open)
	done := make(chan error, 1)
	go func() { done <- x.Join(patient(t), via.self.Addr) }()
	lead.sees(t, "a node that joins", func(v *dsm.View) bool {
		_, ok := v.Member(x.self.ID)
		return ok
	})
	return x, open, done
}

// TestNodeThatCatchesUpGivesSignsOfLife: the log comes to a node later than a lease after it was admitted. It has asked a node that does not lead.
func TestNodeThatCatchesUpGivesSignsOfLife(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	via := nodes[0]
	if via == lead {
		via = nodes[1]
	}
	x, open, joined := joins(t, lead, via)
	ctx, cancel := context.WithTimeout(t.Context(), 2*DefaultLease)
	defer cancel()
	if err := lead.news.until(ctx, lead.life, func() bool { return isOut(x.self.ID)(lead.Current()) }); err == nil {
		t.Error("it was evicted")
	}
	if x.Current().Epoch != 0 {
		t.Error("the log has come before")
	}
	open()
	if err := <-joined; err != nil {
		t.Error(err)
	}
}

// TestEvictedWhileItJoins: the node hears so, and does not wait for a log that does not come.
func TestEvictedWhileItJoins(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	x, _, joined := joins(t, lead, lead)
	x.via.use(mute{})
	lead.sees(t, "a node that is silent while it joins", isOut(x.self.ID))
	x.via.use(x.net)
	if err := <-joined; !errs.Is(err, errs.Evicted) {
		t.Errorf("%v, want that it was evicted", err)
	}
}
