package coherence

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestAccumulate: what programs hand over is added up at the end of the round and not before, also if the rules change or the slot moves
// meanwhile; if the round is given up it is dropped.
func TestAccumulate(t *testing.T) {
	for name, meanwhile := range map[string]func(s *sim){
		"quiet":     func(*sim) {},
		"new rules": func(s *sim) { s.changeRules(func(*dsm.Inode) {}) },
		"moved":     func(s *sim) { s.move(s.nodes[1], 2) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 3, sums(2, dsm.ApplyArrival))
				id := dsm.RoundID{Group: 99, Generation: 1, Number: 1}
				list := []dsm.NodeID{1, 2, 3}
				for _, n := range s.nodes {
					n.open(true)
				}
				s.calm()
				put(t, s.nodes[1], 100) // beside what is handed over
				for _, n := range s.nodes {
					n.ask("accumulate", func(ctx context.Context) error {
						for range 2 {
							if err := n.area.Accumulate(ctx, id, 0, []byte{byte(n.id), 0, 0, 0}); err != nil {
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
				s.nodes[2].ask("accumulate", func(ctx context.Context) error { return s.nodes[2].area.Accumulate(ctx, id, 0, []byte{1, 0, 0, 0}) }, nil)
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
			if err := n.area.Accumulate(context.Background(), dsm.RoundID{Group: 99, Number: 1}, off, make([]byte, size)); !errs.Is(err, errs.Invalid) {
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
