package coherence

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// betweenParts is what may happen between the parts of a round and its end.
var betweenParts = map[string]func(s *sim){
	"quiet":     func(*sim) {},
	"new rules": func(s *sim) { s.changeRules(func(*dsm.Inode) {}) },
	"moved":     func(s *sim) { s.move(s.nodes[1], 2) },
}

// TestAccumulate: what programs hand over is added up at the end of the round and not before, also if the rules change or the slot moves
// meanwhile; if the round is given up it is dropped.
func TestAccumulate(t *testing.T) {
	for name, meanwhile := range betweenParts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 3, sums(2, dsm.ApplyArrival))
				id := dsm.RoundID{Group: 99, Generation: 1, Number: 1}
				list := []dsm.NodeID{1, 2, 3}
				s.openAll()
				s.calm()
				put(t, s.nodes[1], 100) // beside what is handed over
				for _, n := range s.nodes {
					n.ask("accumulate", func(ctx context.Context) error {
						for range 2 {
							if err := accumulate(ctx, n.area, id, 0, []byte{byte(n.id), 0, 0, 0}); err != nil {
								return err
							}
						}
						return n.area.Contribute(ctx, id)
					}, nil)
				}
				s.calm()
				want(t, s.nodes[0], 0)
				want(t, s.nodes[1], 100)
				meanwhile(s)
				s.calm()
				for _, n := range s.nodes {
					n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, id, list, len(list), true) }, nil)
				}
				s.calm()
				for _, n := range s.nodes {
					want(t, n, 112)
				}
				id.Number++
				s.nodes[2].ask("accumulate", func(ctx context.Context) error { return accumulate(ctx, s.nodes[2].area, id, 0, []byte{1, 0, 0, 0}) }, nil)
				s.calm()
				s.nodes[2].area.AbandonRound(id)
				s.rested()
				for _, n := range s.nodes {
					want(t, n, 112)
				}
			})
		})
	}
}

// TestAccumulateRefuses what cannot be added.
func TestAccumulateRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 1, sums(1, dsm.ApplyArrival))
		n := s.nodes[0]
		n.open(true)
		refused := func(what string, off int64, size int) {
			t.Helper()
			if err := accumulate(context.Background(), n.area, dsm.RoundID{Group: 99, Number: 1}, off, make([]byte, size)); !errs.Is(err, errs.Invalid) {
				t.Errorf("%s: %v", what, err)
			}
			if err := n.area.MayAccumulate(context.Background(), off, int64(size)); !errs.Is(err, errs.Invalid) {
				t.Errorf("%s, asked before: %v", what, err)
			}
		}
		refused("half an element", 0, 2)
		refused("between two elements", 2, 4)
		refused("past the end", dsm.ExtentSize-4, 8)
		s.changeRules(func(ino *dsm.Inode) { ino.Spec.Merge = dsm.MergeLast })
		s.catchUp()
		refused("the last store wins", 0, 4)
	})
}

// TestAccumulateMuch: dense, sparse and empty pages add up alike, whether they are sent from where they came or diffed, in one round after another.
// When a round is over nobody needs the memory any more from which they were sent.
func TestAccumulateMuch(t *testing.T) {
	for name, meanwhile := range betweenParts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 3, sums(2, dsm.ApplyArrival))
				const elems = 2 * dsm.ExtentSize / 4
				sum := make([]uint32, elems)
				var lent atomic.Int32
				give := func(ctx context.Context, a *Area, id dsm.RoundID, off int, values []byte) error {
					return a.Accumulate(ctx, id, int64(off), int64(len(values)), func(at, size int64) (*wire.Shared, error) {
						lent.Add(1)
						return wire.Lend(values[at:at+size], func() { lent.Add(-1) }), nil
					})
				}
				for _, n := range s.nodes {
					n.open(n != s.nodes[2])
				}
				s.calm()
				for number := range uint64(3) {
					id := dsm.RoundID{Group: 99, Generation: 1, Number: number + 1}
					for _, n := range s.nodes {
						values := make([]byte, 4*elems)
						for k := range elems {
							v := s.rng.Uint32N(1 << 20)
							switch page := k / (dsm.PageSize / 4) % 8; {
							case page == 3 || page == 4 && k%100 != 0 || v%50 == 0:
								v = 0
							}
							binary.LittleEndian.PutUint32(values[4*k:], v)
							sum[k] += v
						}
						half := 4 * s.rng.IntN(elems)
						n.ask("accumulate", func(ctx context.Context) error {
							if err := give(ctx, n.area, id, 0, values[:half]); err != nil {
								return err
							}
							if err := give(ctx, n.area, id, half, values[half:]); err != nil {
								return err
							}
							return n.area.Contribute(ctx, id)
						}, nil)
					}
					s.calm()
					meanwhile(s)
					s.calm()
					for _, n := range s.nodes {
						n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, id, []dsm.NodeID{1, 2, 3}, 3, true) }, nil)
					}
					s.calm()
					if n := lent.Load(); n != 0 {
						t.Errorf("round %d is over, and %d pieces of memory are in use", number, n)
					}
					for _, n := range s.nodes {
						for k, want := range sum {
							p := dsm.PageIndex(4 * k / dsm.PageSize)
							if got := binary.LittleEndian.Uint32(n.area.mu.mem.Working(p)[4*k%dsm.PageSize:]); got != want {
								t.Fatalf("round %d: node %d has %d at %d, want %d", number, n.id, got, k, want)
							}
						}
					}
				}
			})
		})
	}
}

// TestMemoryIsGivenBack: nobody needs the memory any more from which something was to be sent to what is past the end of the area now, or to an area that is
// removed.
func TestMemoryIsGivenBack(t *testing.T) {
	for name, end := range map[string]func(s *sim){
		"truncated":   func(s *sim) { s.resized(dsm.ExtentSize) },
		"shrunk to 0": func(s *sim) { s.resized(0) },
		"removed": func(s *sim) {
			for _, n := range s.nodes {
				n.area.step(n.area.removeLocked)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 2, sums(2, dsm.ApplyArrival))
				var lent atomic.Int32
				values := bytes.Repeat([]byte{1}, dsm.ExtentSize)
				s.openAll()
				s.calm()
				for _, n := range s.nodes {
					n.ask("accumulate", func(ctx context.Context) error {
						return n.area.Accumulate(ctx, dsm.RoundID{Group: 99, Generation: 1, Number: 1}, dsm.ExtentSize, dsm.ExtentSize, func(at, size int64) (*wire.Shared, error) {
							lent.Add(1)
							return wire.Lend(values[at:at+size], func() { lent.Add(-1) }), nil
						})
					}, nil)
				}
				s.calm()
				if n := lent.Load(); n != 2 {
					t.Fatalf("%d pieces are in use", n)
				}
				end(s)
				s.calm()
				if n := lent.Load(); n != 0 {
					t.Errorf("%d pieces are in use still", n)
				}
			})
		})
	}
}

// TestResultIsCopiedOnce: the home sends the same copy of what a round has changed to all nodes that lack it, and keeps none when they have it.
func TestResultIsCopiedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(2, dsm.ApplyArrival))
		home := s.nodes[0]
		s.openAll()
		s.calm()
		values := bytes.Repeat([]byte{1}, dsm.ExtentSize)
		home.ask("contribute", func(ctx context.Context) error {
			if err := accumulate(ctx, home.area, firstRound, 0, values); err != nil {
				return err
			}
			return home.area.Contribute(ctx, firstRound)
		}, nil)
		s.calm()
		home.ask("finish", func(ctx context.Context) error {
			return home.area.FinishRound(ctx, firstRound, []dsm.NodeID{home.id}, 1, true)
		}, nil)
		s.rest()
		var sent []*wire.Shared
		for _, to := range []int{1, 2} {
			for _, f := range s.net[link{0, to}] {
				if _, ok := f.msg.(*wire.Push); ok {
					sent = append(sent, f.shared)
				}
			}
		}
		if len(sent) != 2 || sent[0] != sent[1] {
			t.Errorf("pushes of %v: want one copy for two nodes", sent)
		}
		s.calm()
		if home.area.mu.home.pushed != nil {
			t.Error("copies are kept for nobody")
		}
		want(t, s.nodes[2], 0x01010101)
	})
}

// accumulate hands over values for the elements at off.
func accumulate(ctx context.Context, a *Area, id dsm.RoundID, off int64, values []byte) error {
	return a.Accumulate(ctx, id, off, int64(len(values)), func(at, size int64) (*wire.Shared, error) {
		return wire.Lend(values[at:at+size], func() {}), nil
	})
}

// TestCopiesGoWithWhoLacksThem: copies of pushes are kept for a node that lacks them, and not longer than it is a subscriber.
func TestCopiesGoWithWhoLacksThem(t *testing.T) {
	for name, leave := range map[string]func(home, n *simNode){
		"unsubscribes": func(home, n *simNode) { home.area.homeUnsubscribeLocked(n.id) },
		"joins again": func(home, n *simNode) {
			old := home.area.mu.view.Clone()
			old.Members[n.i].Since++
			home.area.returnedLocked(old)
		},
		"is no member": func(home, n *simNode) {
			old := home.area.mu.view
			home.area.mu.view = old.Clone()
			home.area.mu.view.Members = home.area.mu.view.Members[:n.i]
			home.area.homeViewChangedLocked(old)
		},
	} {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		home, n := s.nodes[0], s.nodes[1]
		home.open(true)
		n.open(true)
		s.drain()
		home.area.step(func() {
			h := &home.area.mu.home
			h.subs[n.id].lackLocked(0, dsm.Range(0, 1))
			h.pushed = &keptPushes{list: []pushCopy{{data: wire.Share(1), left: 1}}}
			leave(home, n)
			if h.pushed != nil {
				t.Errorf("%s: the copies stay", name)
			}
		})
	}
}
