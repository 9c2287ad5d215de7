package coherence

import (
	"context"
	"encoding/binary"
	"math"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// finiteOnly is an area of floats of which only finite ones are published.
func finiteOnly(rule dsm.MergeRule, apply dsm.Apply) dsm.Inode {
	ino := sumOf(dsm.DTypeF32, apply)
	ino.Spec.Merge, ino.Spec.OnNonFinite = rule, dsm.NonFiniteRefuse
	return ino
}

// store stores a float to element i, as write(2) does.
func (n *simNode) store(t *testing.T, i int, f float32) {
	t.Helper()
	if err := n.area.WriteAt(context.Background(), binary.LittleEndian.AppendUint32(nil, math.Float32bits(f)), int64(i)*4); err != nil {
		t.Fatal(err)
	}
}

func (n *simNode) float(i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(n.area.mu.mem.Working(dsm.PageIndex(i / 1024))[i%1024*4:]))
}

// figures returns how many elements were published, refused, and sums that were not finite.
func (n *simNode) figures() (f [3]uint64) {
	x := n.area.notFiniteLocked()
	return [3]uint64{x.published, x.refused, x.overflowed}
}

// TestOnlyFiniteIsPublished: an element that is not finite stays at its node, all others are published, and sync calls fail until a finite one is
// stored there.
func TestOnlyFiniteIsPublished(t *testing.T) {
	for _, rule := range []dsm.MergeRule{dsm.MergeLast, dsm.MergeSum, dsm.MergeMax} {
		for _, apply := range []dsm.Apply{dsm.ApplyArrival, dsm.ApplySync} {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 2, finiteOnly(rule, apply))
				s.openAll()
				s.calm()
				for _, n := range s.nodes { // the home of the area, and another
					other := s.nodes[1-n.i]
					at := 2000 * (n.i + 1)
					n.store(t, at, 1)
					n.store(t, at+1, float32(math.NaN()))
					n.store(t, at+2, float32(math.Inf(1)))
					n.store(t, at+3, 2)
					for range 2 {
						n.ask("sync", func(ctx context.Context) error {
							if err := n.area.Sync(ctx, true); !errs.Is(err, errs.NotFinite) {
								t.Errorf("%v: sync of a number that is none: %v", rule, err)
							}
							return nil
						}, nil)
						s.calm()
					}
					other.ask("sync", func(ctx context.Context) error { return other.area.Sync(ctx, true) }, nil)
					s.calm()
					if a, b, c, d := other.float(at), other.float(at+1), other.float(at+2), other.float(at+3); a != 1 || b != 0 || c != 0 || d != 2 {
						t.Errorf("%v: the other node has %v %v %v %v", rule, a, b, c, d)
					}
					if a := n.float(at + 1); a == a {
						t.Errorf("%v: the store of the program is gone: %v", rule, a)
					}
					if got, want := n.figures(), [3]uint64{0, 2, 0}; got != want {
						t.Errorf("%v: figures %v, want %v", rule, got, want)
					}
					n.store(t, at+1, 3)
					n.store(t, at+2, 4)
					n.ask("sync", func(ctx context.Context) error { return n.area.Sync(ctx, true) }, nil)
					s.calm()
					other.ask("sync", func(ctx context.Context) error { return other.area.Sync(ctx, true) }, nil)
					s.calm()
					if b, c := other.float(at+1), other.float(at+2); b != 3 || c != 4 {
						t.Errorf("%v: the other node has %v %v after finite ones were stored", rule, b, c)
					}
				}
			})
		}
	}
}

// TestNotFiniteIsCounted: without the rule such elements are published, and counted; sums of finite ones that are not are counted at the home.
func TestNotFiniteIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := finiteOnly(dsm.MergeSum, dsm.ApplyArrival)
		ino.Spec.OnNonFinite = dsm.NonFiniteCount
		s := newHomed(t, 3, ino)
		s.openAll()
		s.calm()
		s.nodes[1].store(t, 5, float32(math.NaN()))
		for _, n := range s.nodes[1:] {
			n.store(t, 9, math.MaxFloat32)
		}
		for _, n := range s.nodes {
			n.ask("sync", func(ctx context.Context) error { return n.area.Sync(ctx, true) }, nil)
		}
		s.calm()
		if f := s.nodes[0].float(5); f == f {
			t.Errorf("the home has %v, want no number", f)
		}
		for i, want := range [][3]uint64{{0, 0, 2}, {1, 0, 0}, {0, 0, 0}} {
			if got := s.nodes[i].figures(); got != want {
				t.Errorf("node %d: figures %v, want %v", i, got, want)
			}
		}
	})
}

// TestRuleOfFiniteIsLifted: once the rule says count, what was refused is published.
func TestRuleOfFiniteIsLifted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, finiteOnly(dsm.MergeLast, dsm.ApplyArrival))
		s.openAll()
		s.calm()
		n := s.nodes[1]
		n.store(t, 5, float32(math.Inf(-1)))
		n.ask("sync", func(ctx context.Context) error { _ = n.area.Sync(ctx, true); return nil }, nil)
		s.calm()
		if f := s.nodes[0].float(5); f != 0 {
			t.Fatalf("published: %v", f)
		}
		s.changeRules(func(i *dsm.Inode) { i.Spec.OnNonFinite = dsm.NonFiniteCount })
		s.calm()
		n.ask("sync", func(ctx context.Context) error { return n.area.Sync(ctx, true) }, nil)
		s.calm()
		if f := s.nodes[0].float(5); !math.IsInf(float64(f), -1) {
			t.Errorf("the home has %v", f)
		}
	})
}

// TestFiniteRound: a round has the finite elements of all, stored and accumulated, and fails at the node that had others.
func TestFiniteRound(t *testing.T) {
	for _, given := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 3, finiteOnly(dsm.MergeSum, dsm.ApplySync))
			id := dsm.RoundID{Group: 99, Generation: 1, Number: 1}
			s.openAll()
			s.calm()
			for _, n := range s.nodes {
				bad := float32(1)
				if n.i == 2 {
					bad = float32(math.NaN())
				}
				n.ask("contribute", func(ctx context.Context) error {
					if given {
						p := binary.LittleEndian.AppendUint32(nil, math.Float32bits(bad))
						p = binary.LittleEndian.AppendUint32(p, math.Float32bits(2))
						if err := accumulate(ctx, n.area, id, 0, p); err != nil {
							return err
						}
					} else {
						n.store(t, 0, bad)
						n.store(t, 1, 2)
					}
					return n.area.Contribute(ctx, id)
				}, nil)
			}
			s.calm()
			for _, n := range s.nodes {
				n.ask("finish", func(ctx context.Context) error {
					err := n.area.FinishRound(ctx, id, []dsm.NodeID{1, 2, 3}, 3, true)
					if errs.Is(err, errs.NotFinite) != (n.i == 2) {
						t.Errorf("given %v: node %d: the round ends with %v", given, n.i, err)
					}
					return nil
				}, nil)
			}
			s.calm()
			for _, n := range s.nodes[:2] {
				if a, b := n.float(0), n.float(1); a != 2 || b != 6 {
					t.Errorf("given %v: node %d has %v %v, want 2 and 6", given, n.i, a, b)
				}
			}
		})
	}
}
