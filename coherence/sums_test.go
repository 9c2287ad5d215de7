package coherence

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// TestWhatIsHereDoesNotComeAgain: a daemon is killed, of the home of an area or of a node that stores to it. Nobody is sent pages that he has, though their versions are others.
func TestWhatIsHereDoesNotComeAgain(t *testing.T) {
	const extents, each = 3, 20 // some pages of each extent
	for what, c := range map[string]struct {
		killed func(home, x *simNode) *simNode
		meanwhile,
		comes int // pages of each extent that change, and that come to x
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
				if c.meanwhile > 0 { // y's publish has been merged, and x is not told
					store(y, c.meanwhile, 2)
					s.rest()
					s.deliverAll(link{y.i, home.i})
				}
				before := x.node.stats.pagesReceived.Load()
				time.Sleep(time.Second)
				if killed.goOn(); killed == x { // which counts anew
					before = 0
				}
				s.calm()
				if got, want := int(x.node.stats.pagesReceived.Load()-before), extents*c.comes; got != want {
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

// TestVersionsGoAlong: who is handed a slot has the versions of its pages, and so has a backup that takes over. So a node is sent the page that it lacks, and sends no sums.
func TestVersionsGoAlong(t *testing.T) {
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 3, dsm.Inode{Size: dsm.ExtentSize})
			home, next, x := s.nodes[0], s.nodes[1], s.nodes[2]
			if dies {
				s.copies = 2
				s.backUp(next)
			}
			for _, n := range s.nodes {
				n.open(true)
			}
			s.calm()
			if err := next.area.WriteAt(context.Background(), bytes.Repeat([]byte{3}, 20*dsm.PageSize), byte5+1); err != nil {
				t.Fatal(err)
			}
			next.says(1)
			s.calm()
			next.says(2) // which x does not get of this home
			s.talk(next, home)
			before := x.node.stats.pagesReceived.Load()
			if dies {
				s.killAfter(home, func(int) int { return 0 })
				s.bury(home)
				s.catchUp()
			} else {
				s.cut(home, x)
				s.move(next, 1)
			}
			subscribes := 0
			for more := true; more; more = s.deliver() {
				s.rest()
				for _, f := range s.queue(link{x.i, next.i}) {
					if m, ok := f.msg.(*wire.Subscribe); ok {
						if subscribes++; m.Extents[0].Sums != nil {
							t.Errorf("dies %v: x sends sums", dies)
						}
					}
				}
			}
			if s.calm(); subscribes == 0 {
				t.Errorf("dies %v: x does not subscribe", dies)
			}
			if got := x.node.stats.pagesReceived.Load() - before; got != 1 {
				t.Errorf("dies %v: %d pages have come, want 1", dies, got)
			}
			for _, n := range []*simNode{next, x} {
				if got := byteAt(t, n, byte5); got != 2 {
					t.Errorf("dies %v: node %d has %d, want 2", dies, n.i, got)
				}
			}
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

// byte5 is where the tests of bytes that come back store.
const byte5 = 5 * dsm.PageSize

// anewHome is a home whose daemon was killed, and two nodes that have what it has: 1 at byte5.
func anewHome(t *testing.T) (s *sim, home, x, y *simNode) {
	s = newHomed(t, 3, dsm.Inode{Size: dsm.ExtentSize})
	home, x, y = s.nodes[0], s.nodes[1], s.nodes[2]
	home.hold()
	for _, n := range s.nodes {
		n.open(true)
	}
	s.calm()
	y.says(1)
	s.calm()
	home.area.step(home.area.mu.mem.WorkingIsNewest)
	home.node.keepServed()
	home.goOn()
	return s, home, x, y
}

// says stores a value to byte5 and publishes it.
func (n *simNode) says(v byte) {
	if err := n.area.WriteAt(context.Background(), []byte{v}, byte5); err != nil {
		n.sim.t.Fatal(err)
	}
	publish(n)
	n.sim.rest()
}

// talk delivers what two nodes say to each other.
func (s *sim) talk(one, other *simNode) {
	for range 6 {
		s.deliverAll(link{one.i, other.i})
		s.deliverAll(link{other.i, one.i})
	}
}

// cut drops what is under way between two nodes.
func (s *sim) cut(one, other *simNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range []link{{one.i, other.i}, {other.i, one.i}} {
		dropped(s.net[k])
		s.net[k] = nil
	}
}

// TestBytesComeBackWhileAPushIsUnderWay: the session of a home and x breaks. The home pushes 2 again, and has 1 again when the Subscribe of x comes, with the sum of 1. What x takes of the push must not stay.
func TestBytesComeBackWhileAPushIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, x, y := anewHome(t)
		s.calm()
		y.says(2)
		s.talk(y, home)
		s.cut(home, x)
		x.reset(home)
		s.rest()
		home.reset(x)
		s.rest()
		y.says(1)
		s.talk(y, home)
		s.deliverAll(link{x.i, home.i})
		s.deliverAll(link{home.i, x.i})
		s.calm()
		allHave(t, s, 1)
	})
}

func allHave(t *testing.T, s *sim, want byte) {
	t.Helper()
	for _, n := range s.nodes {
		if got := byteAt(t, n, byte5); got != want {
			t.Errorf("node %d has %d, want %d", n.i, got, want)
		}
	}
}

// TestBytesComeBackBehindAShrink: the area is truncated, grows, and gets the same bytes again. x has sent the sum of those of before when it has not heard of that.
func TestBytesComeBackBehindAShrink(t *testing.T) {
	for _, breaks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, home, x, y := anewHome(t)
			if breaks {
				s.calm()
			}
			s.resize(0)
			s.resize(dsm.ExtentSize)
			for _, n := range []*simNode{home, y} {
				for n.behindCatalog() {
					n.apply()
				}
			}
			s.rest()
			s.talk(y, home)
			if breaks {
				s.cut(home, x)
			}
			y.says(1)
			s.talk(y, home)
			if breaks {
				s.cut(home, x)
				x.reset(home)
				s.rest()
				s.deliverAll(link{x.i, home.i}) // before the home knows of it
				home.reset(x)
				s.rest()
			} else {
				s.deliverAll(link{home.i, x.i}) // x hears that the home has gone
				for x.area.mu.view.Epoch != home.area.mu.view.Epoch {
					x.apply()
					s.rest()
				}
				s.deliverAll(link{x.i, home.i})
			}
			for x.behindCatalog() {
				x.apply()
			}
			s.calm()
			allHave(t, s, 1)
		})
	}
}

// TestBytesThatComeBack: nodes store one of two values to one byte, while daemons of the home are killed, sessions break, and the area is truncated and gets longer again, in any order. So pages often have the bytes of before. In the end all nodes have the same.
func TestBytesThatComeBack(t *testing.T) {
	for seed := range uint64(100 * usualRuns()) {
		synctest.Test(t, func(t *testing.T) {
			s, home, _, _ := anewHome(t)
			rng := rand.New(rand.NewPCG(seed, 3))
			for range 100 {
				n := s.nodes[rng.IntN(3)]
				switch rng.IntN(16) {
				case 0, 1, 2:
					if n.area.mu.ino.Size > byte5 {
						n.says(byte(rng.IntN(2)))
					}
				case 3:
					if n != home {
						s.cut(home, n)
						ends := []func(){func() { n.reset(home) }, func() { home.reset(n) }}
						other := s.nodes[3-n.i]
						meanwhile := []func(){
							func() { s.talk(other, home) },
							func() { s.deliverAll(link{n.i, home.i}) },
							func() { s.deliverAll(link{home.i, n.i}) },
							func() {
								if other.area.mu.ino.Size > byte5 {
									other.says(byte(rng.IntN(2)))
									s.talk(other, home)
								}
							},
						}
						i := rng.IntN(2)
						for k := range 6 {
							if k == 0 || k == 3 {
								ends[(i+k)%2]()
							}
							s.rest()
							meanwhile[rng.IntN(len(meanwhile))]()
						}
					}
				case 4:
					if !home.behindCatalog() {
						home.goOn()
					}
				case 5:
					s.resize(0)
					s.resize(dsm.ExtentSize)
					if rng.IntN(2) == 0 { // all but one follow
						for _, o := range s.nodes {
							for o != n && o.behindCatalog() {
								o.apply()
							}
						}
					}
				case 6, 7, 8, 9:
					if n != home { // the third node falls behind
						s.talk(n, home)
					}
				case 10, 11:
					if n.behindCatalog() {
						n.apply()
					}
				default:
					s.deliver()
				}
				s.rest()
			}
			s.catchUp()
			s.calm()
			want := byteAt(t, home, byte5)
			for _, n := range s.nodes[1:] {
				if got := byteAt(t, n, byte5); got != want {
					t.Fatalf("seed %d: node %d has %d, and the home %d", seed, n.i, got, want)
				}
			}
		})
	}
}
