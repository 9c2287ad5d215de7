package coherence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// TestWhatIsHereDoesNotComeAgain: a daemon is killed, of the home of an area or of a node that stores to it, or the area moves while its home is killed. Nobody is sent pages that he has, though their versions are others.
func TestWhatIsHereDoesNotComeAgain(t *testing.T) {
	const extents, each = 3, 20 // some pages of each extent
	for what, c := range map[string]struct {
		killed func(home, x *simNode) *simNode
		meanwhile,
		comes int // pages that change, and that come to another node than the one that was killed
	}{
		"the home":                       {func(home, _ *simNode) *simNode { return home }, 0, 0},
		"a replica":                      {func(_, x *simNode) *simNode { return x }, 0, 0},
		"a replica, pages change before": {func(_, x *simNode) *simNode { return x }, 5, 5},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 3, dsm.Inode{Size: extents*dsm.ExtentSize - 100})
				home, x, y := s.nodes[0], s.nodes[1], s.nodes[2]
				home.hold()
				x.hold()
				for _, n := range s.nodes {
					n.open(true)
				}
				s.calm()
				store := func(n *simNode, pages int, v byte) {
					for e := range extents {
						for i := range pages {
							if err := n.area.WriteAt(context.Background(), []byte{v, byte(i)}, int64(e)*dsm.ExtentSize+int64(3*i)*dsm.PageSize); err != nil {
								t.Fatal(err)
							}
						}
					}
					publish(n)
				}
				store(y, each, 1)
				s.calm()
				for _, n := range []*simNode{home, x} {
					n.area.step(n.area.mu.mem.WorkingIsNewest)
				}
				home.node.keepServed()
				killed := c.killed(home, x)
				other := x
				if killed == x {
					other = y
				}
				if c.meanwhile > 0 { // y's publish has been merged, and x is not told
					store(y, c.meanwhile, 2)
					s.rest()
					s.deliverAll(link{y.i, home.i})
					other = x
				}
				before := other.node.stats.pagesReceived.Load()
				time.Sleep(time.Second)
				killed.goOn()
				if other == killed {
					before = 0
				}
				s.calm()
				if got, want := int(other.node.stats.pagesReceived.Load()-before), extents*c.comes; got != want {
					t.Errorf("%d pages have come, want %d", got, want)
				}
				for _, n := range s.nodes {
					for e := range extents {
						for i := range each {
							want := byte(1)
							if i < c.meanwhile {
								want = 2
							}
							if got := byteAt(t, n, int64(e)*dsm.ExtentSize+int64(3*i)*dsm.PageSize); got != want {
								t.Fatalf("node %d has %d in page %d of extent %d, want %d", n.i, got, 3*i, e, want)
							}
						}
					}
				}
			})
		})
	}
}

// TestSumsThatDoNotAddUp: pages come if the sums that a node has sent are too few, too many, wrong, or of pages past the end.
func TestSumsThatDoNotAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, dsm.Inode{Size: 2 * dsm.PageSize})
		home, x := s.nodes[0], s.nodes[1]
		for _, n := range s.nodes {
			n.open(true)
		}
		put(t, home, 7)
		publish(home)
		s.calm()
		sums := pages.NewSums(3)
		right, once := wire.ExtentVersion{}, &pageSums{of: sums, left: 1}
		here := &replicaExtent{have: dsm.Range(0, 1)}
		right.Has, right.Sums = x.area.sumsLocked(0, here, once)
		if _, more := x.area.sumsLocked(0, here, once); more != nil {
			t.Error("a step computes more sums than it may")
		}
		for what, c := range map[string]struct {
			change func(v *wire.ExtentVersion)
			same   int
		}{
			"right":                        {func(*wire.ExtentVersion) {}, 1},
			"none":                         {func(v *wire.ExtentVersion) { v.Sums = nil }, 0},
			"too few":                      {func(v *wire.ExtentVersion) { v.Sums = v.Sums[1:] }, 0},
			"too many":                     {func(v *wire.ExtentVersion) { v.Sums = append(v.Sums, v.Sums...) }, 0},
			"wrong":                        {func(v *wire.ExtentVersion) { v.Sums = append([]byte{v.Sums[0] + 1}, v.Sums[1:]...) }, 0},
			"of an extent that is nowhere": {func(v *wire.ExtentVersion) { v.Extent = 7 }, 0},
			"past the end":                 {func(v *wire.ExtentVersion) { v.Has = dsm.Range(99, 100) }, 0},
		} {
			v := right
			c.change(&v)
			if got := home.area.sameLocked(&v, dsm.AllPages, sums); got.Len() != c.same {
				t.Errorf("%s: pages %v are the same", what, got)
			}
		}
		v := right
		if got := home.area.sameLocked(&v, dsm.AllPages, pages.NewSums(4)); !got.Empty() {
			t.Errorf("with another seed: pages %v are the same", got)
		}
	})
}
