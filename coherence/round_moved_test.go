package coherence

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestRoundOfAMemberThatIsPutOutWhoseHomeMoves: a member that was put out is back, and the home answers its Finish, for the round is over. What it has handed over still waits
// for credit, and the slots move: the new home does not know that the round is over. It keeps the part for a round that nobody ends there, and the
// member waits for ever.
func TestRoundOfAMemberThatIsPutOutWhoseHomeMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(2, dsm.ApplyArrival))
		home, n := s.nodes[1], s.nodes[2]
		n.node.links.window = dsm.PageSize
		for _, m := range s.nodes {
			m.open(true)
		}
		put(t, n, 100)
		for _, m := range []*simNode{home, n} {
			m.ask("contribute", func(ctx context.Context) error {
				if err := accumulate(ctx, m.area, firstRound, dsm.ExtentSize, bytes.Repeat([]byte{byte(m.id), 0, 0, 0}, dsm.PageSize/4)); err != nil {
					return err
				}
				return m.area.Contribute(ctx, firstRound)
			}, nil)
		}
		s.calm()
		s.isEvicted(n)
		s.move(home, 2)
		s.calm()
		finish := func(m *simNode, result *error) {
			m.ask("finish", func(ctx context.Context) error {
				*result = m.area.FinishRound(ctx, firstRound, []dsm.NodeID{home.id, n.id}, 2, true)
				return nil
			}, nil)
		}
		var others, own error
		finish(home, &others)
		s.calm()
		finish(n, &own)
		s.comesBack(n)
		answered := func() bool {
			n.area.mu.Lock()
			defer n.area.mu.Unlock()
			c := n.area.mu.replica.contribution
			if c == nil || c.parts == 0 || len(n.area.mu.replica.acquires) > 0 {
				return false
			}
			for _, x := range n.area.mu.replica.extents {
				for _, pub := range x.parts {
					if pub.given {
						return true
					}
				}
			}
			return false
		}
		for !answered() {
			if !s.deliver() {
				t.Skip("the order did not come about")
			}
		}
		s.move(s.nodes[0], 2)
		s.calm("finish")
		for _, q := range s.requests {
			t.Errorf("node %d: %s is not answered", q.n.i, q.what)
			q.giveUp()
		}
		s.calm()
		if others != nil || !errs.Is(own, errs.Unavailable) {
			t.Errorf("FinishRound returns %v to the other member, and %v to the one of which nothing is in the round", others, own)
		}
		for _, m := range s.nodes {
			want(t, m, 100)
			if w := m.area.mu.mem.Working(dsm.ExtentPages); w[0] != byte(home.id) {
				t.Errorf("node %d has %d of what was handed over", m.i, w[0])
			}
		}
	})
}
