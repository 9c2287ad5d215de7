package coherence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// heldBesideHome returns a home of the area, and a node that is held and has all of it. Both have it open for writing.
func heldBesideHome(t *testing.T, ino dsm.Inode) (s *sim, home, n *simNode) {
	s = newHomed(t, 2, ino)
	home, n = s.nodes[0], s.nodes[1]
	n.hold()
	home.open(true)
	n.open(true)
	n.area.step(func() { n.area.mu.mem.WorkingIsNewest() })
	s.calm()
	return s, home, n
}

// follow kills the daemon of a node that is the home of nothing, and has another one follow. The area is open for writing, or for reading only.
func (n *simNode) follow() {
	s := n.sim
	n.node.isKilled()
	s.endSessions(n)
	n.newDaemon()
	evicted := s.lastView().Members[n.i].Gone
	s.changeView(func(v *dsm.View) { v.Members[n.i].Since, v.Members[n.i].Gone = v.Epoch, false })
	s.setAway(n, false)
	n.fenced.Store(false)
	n.snapshot()
	if err := n.node.Resume(s.t.Context(), false, evicted); err != nil {
		s.t.Fatal(err)
	}
	a, err := n.node.Reopen(s.t.Context(), simArea, n.writer != nil)
	if err != nil {
		s.t.Fatal(err)
	}
	n.area = a
	n.node.Resumed()
}

// TestKilledInARound: the daemon of a node is killed when its parts are on the way or at the home. What programs have stored, 7, counts once, however the round ends;
// what they have accumulated, 5, if the round has ended with this node, or if it is accumulated again.
func TestKilledInARound(t *testing.T) {
	both := []dsm.NodeID{1, 2}
	next := firstRound
	next.Number++
	other := next
	other.Generation++
	for _, arrived := range []bool{true, false} {
		for name, c := range map[string]struct {
			end   func(n, home *simNode) // after it the other node has 100, which it has stored, and what is wanted
			wants int32
			later bool // not before Config.RoundPatience is over
		}{
			"ended with it":    {func(_, home *simNode) { home.endRound(both, nil) }, 12, false},
			"ended without it": {func(_, home *simNode) { home.endRound(both[:1], nil) }, 7, false},
			"given up": {func(_, home *simNode) {
				home.area.AbandonRound(firstRound)
				home.joinsAndEnds(next, []dsm.NodeID{1})
			}, 7, false},
			"nobody ends it": {func(_, home *simNode) {}, 7, true},
			"closed": {func(n, _ *simNode) {
				n.area.Close(true)
				n.area.expire()
			}, 7, true},
			"joins again": {func(n, home *simNode) {
				n.joinRound()
				n.sim.calm()
				home.endRound(both, nil)
				n.endRound(both, nil)
			}, 7, false},
			"accumulates again": {func(n, home *simNode) {
				n.accumulateFive()
				n.joinRound()
				n.sim.calm()
				home.endRound(both, nil)
				n.endRound(both, nil)
			}, 12, false},
			"another life": {func(n, home *simNode) {
				n.joinsAndEnds(other, both[1:])
				home.area.AbandonRound(firstRound)
			}, 7, false},
			"waits for the next": {func(n, home *simNode) {
				n.ask("contribute", func(ctx context.Context) error { return n.area.Contribute(ctx, next) }, nil)
				n.sim.rest()
				home.endRound(both, nil)
				n.sim.calm()
				n.area.AbandonRound(next)
			}, 12, false},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, home, n := heldBesideHome(t, sums(1, dsm.ApplyArrival))
					put(t, home, 100)
					home.joinRound()
					s.calm()
					n.accumulateFive()
					s.calm()
					put(t, n, 7)
					n.joinRound()
					s.rest()
					if arrived {
						s.calm()
					}
					for _, q := range s.requests {
						q.giveUp()
					}
					s.rest()
					n.follow()
					s.calm()
					want(t, n, 7)
					want(t, home, 100)
					c.end(n, home)
					s.calm()
					if c.later {
						if got := get(home); got != 100 {
							t.Errorf("%d before anybody has ended the round", got)
						}
						home.area.AbandonRound(firstRound)
						time.Sleep(DefaultRoundPatience)
					}
					s.calm()
					for _, n := range s.nodes {
						publish(n)
						s.calm()
					}
					if got := get(home); got != 100+c.wants {
						t.Errorf("arrived %v: the home has %d, want %d", arrived, got, 100+c.wants)
					}
					if name != "closed" {
						want(t, n, 100+c.wants)
					}
					if n.inRound() || home.inRound() {
						t.Error("a node does not come out of its round")
					}
				})
			})
		}
	}
}

// joinsAndEnds has a node contribute to a round, and end it.
func (n *simNode) joinsAndEnds(id dsm.RoundID, list []dsm.NodeID) {
	n.ask("contribute", func(ctx context.Context) error { return n.area.Contribute(ctx, id) }, nil)
	n.sim.calm()
	n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, id, list, len(list), true) }, nil)
}

// TestKilledAfterAPart: where the last store wins, what a node has published while a part of it waits is not undone by the part that the next daemon sends.
func TestKilledAfterAPart(t *testing.T) {
	const first, later = 0x0101, 0x0102
	for name, end := range map[string]func(n *simNode){
		"given up": func(n *simNode) { n.node.endLeft() },
		"finished": func(n *simNode) { n.sim.nodes[0].endRound([]dsm.NodeID{n.id}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, home, n := heldBesideHome(t, dsm.Inode{Size: dsm.ExtentSize})
				put(t, n, first)
				n.joinRound()
				s.calm()
				put(t, n, later)
				publish(n)
				s.calm()
				n.follow()
				s.calm()
				if !n.area.mu.replica.extents[0].dirty.Empty() {
					t.Error("what was published is to be published again")
				}
				end(n)
				s.calm()
				want(t, home, later)
				want(t, n, later)
			})
		})
	}
}

// TestKilledWhenGivenUp: the daemon is killed when it has taken back its part. Its home hears of that when the next daemon has begun, which sends the part again before the home's answer
// comes. The others end the round with this node.
func TestKilledWhenGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, n := heldBesideHome(t, sums(1, dsm.ApplyArrival))
		home.joinRound()
		put(t, n, 7)
		n.joinRound()
		s.calm()
		n.area.AbandonRound(firstRound)
		to, from := link{home.i, n.i}, link{n.i, home.i}
		said := s.net[from]
		n.follow()
		s.net[from] = append(said, s.net[from]...)
		for len(s.net[from]) > 0 {
			s.deliverOn(from)
		}
		for len(s.net[to]) > 0 {
			s.deliverOn(to)
		}
		home.endRound([]dsm.NodeID{1, 2}, nil)
		s.calm()
		publish(n)
		s.calm()
		for _, o := range s.nodes {
			want(t, o, 7)
		}
	})
}
