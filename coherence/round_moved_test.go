package coherence

import (
	"bytes"
	"cmp"
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// roundWithout has a member n that has contributed to a round be put out, and the home move. Nobody waits for the member, as if it had died, and what it had handed over is
// not in the round, though the group counts it in. The other member ends the round. n does when it comes back, and goesOn is what happens then. It is told
// that what it had handed over is not there. What it had stored is published once. window bounds what it may have under way; 0: as usual. If goesOn returns true what it had
// handed over may be in the round after all, and then it is told so.
func roundWithout(t *testing.T, window int, goesOn func(s *sim, n *simNode) bool) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(2, dsm.ApplyArrival))
		home, n := s.nodes[1], s.nodes[2]
		n.node.links.window = cmp.Or(window, n.node.links.window)
		s.openAll()
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
				if w := handedOver(m); m == n && *result == nil && w != byte(home.id+n.id) {
					t.Errorf("window %d: it has %d when FinishRound returns", window, w)
				}
				return nil
			}, nil)
		}
		var others, own error
		finish(home, &others)
		s.calm()
		finish(n, &own)
		s.comesBack(n)
		sum, may := byte(home.id), goesOn(s, n)
		s.calm()
		if may && own == nil {
			sum += byte(n.id)
		} else if others != nil || !errs.Is(own, errs.Unavailable) {
			t.Errorf("window %d: FinishRound returns %v to the other member, and %v to the one of which nothing is in the round", window, others, own)
		}
		for _, m := range s.nodes {
			want(t, m, 100)
			if w := m.area.mu.mem.Working(dsm.ExtentPages); w[0] != sum {
				t.Errorf("window %d: node %d has %d of what was handed over, not %d", window, m.i, w[0], sum)
			}
		}
	})
}

// TestRoundOfAMemberThatIsPutOut: see roundWithout; also if what it has handed over waits for credit behind what it had stored.
func TestRoundOfAMemberThatIsPutOut(t *testing.T) {
	for _, window := range []int{0, dsm.PageSize} {
		roundWithout(t, window, func(*sim, *simNode) bool { return false })
	}
}

// TestRoundOfAMemberThatIsPutOutWhoseHomeMoves: the home has answered the Finish of the member that is back, for the round is over, and what that has handed over still waits
// for credit. Now the slots move: the new home does not know that the round is over, and keeps the part for a round that nobody ends there.
func TestRoundOfAMemberThatIsPutOutWhoseHomeMoves(t *testing.T) {
	roundWithout(t, dsm.PageSize, func(s *sim, n *simNode) bool {
		answeredButOpen(s, n)
		s.move(s.nodes[0], 2)
		s.calm("finish")
		for _, q := range s.requests {
			s.t.Errorf("node %d: %s is not answered", q.n.i, q.what)
			q.giveUp()
		}
		return false
	})
}

// TestRoundIsEndedAgainWhereItMoves: so it is, but another program of the member ends the round at the new home. If that has merged the part before it hears that the member
// takes it back, then both programs are told that it is in the round, and have the result when they are.
func TestRoundIsEndedAgainWhereItMoves(t *testing.T) {
	in := 0
	for seed := range uint64(60) {
		roundWithout(t, dsm.PageSize, func(s *sim, n *simNode) bool {
			answeredButOpen(s, n)
			s.rng = rand.New(rand.NewPCG(seed, 0))
			n.ask("finish", func(ctx context.Context) error {
				err := n.area.FinishRound(ctx, firstRound, []dsm.NodeID{s.nodes[1].id, n.id}, 2, true)
				if w := handedOver(n); err == nil && w != 5 {
					t.Errorf("seed %d: the other program has %d when FinishRound returns", seed, w)
				}
				if err == nil {
					in++
				}
				return nil
			}, nil)
			s.move(s.nodes[0], 2)
			for k := seed % 40; k > 0 && s.deliver(); k-- { // how far that comes before the first program goes on
				if seed%2 == 0 {
					n.kernel.finishNotices()
				}
			}
			return true
		})
	}
	if in == 0 || in == 60 {
		t.Errorf("in %d of 60 runs the part is in the round", in)
	}
}

// handedOver returns what a node has in memory of what was handed over.
func handedOver(n *simNode) byte {
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	return n.area.mu.mem.Working(dsm.ExtentPages)[0]
}

// answeredButOpen has messages delivered until the home has answered the Finish of n, and what n has handed over waits for credit.
func answeredButOpen(s *sim, n *simNode) {
	answered := func() bool {
		n.area.mu.Lock()
		defer n.area.mu.Unlock()
		some, _ := n.area.givenLeftLocked(firstRound)
		return some && len(n.area.mu.replica.acquires) == 0
	}
	for !answered() {
		if !s.deliver() {
			s.t.Fatal("the home has not answered before it had the part")
		}
	}
}
