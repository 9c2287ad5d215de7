package catalog

import (
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestCuts: whatever moment a node has seen last, it learns the smallest size since, also from a snapshot.
func TestCuts(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := newMachine(t)
		f := m.file("f")
		sizes := []int64{0} // from f.Rev on
		for range 100 {
			size := rng.Int64N(1000)
			m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: &size}})
			for m.index > uint64(f.Rev)+uint64(len(sizes)) {
				sizes = append(sizes, sizes[len(sizes)-1])
			}
			sizes = append(sizes, size)
		}
		s, err := restore(mustEncode(t, m.image()))
		if err != nil {
			t.Fatal(err)
		}
		in := s.inodes[f.Ino]
		if err := in.checkCuts(); err != nil {
			t.Fatal(err)
		}
		for i, was := range sizes {
			least := was
			for _, size := range sizes[i:] {
				least = min(least, size)
			}
			got, shrunk := min(was, in.Size), false
			if c, ok := in.cutSince(f.Rev + dsm.Generation(i)); ok {
				got, shrunk = min(was, c.Size), sizes[c.Rev-f.Rev] == c.Size && sizes[c.Rev-f.Rev-1] > c.Size
				if !shrunk {
					t.Errorf("seed %d: no shrink to %d at %d", seed, c.Size, c.Rev)
				}
			}
			if got != least {
				t.Errorf("seed %d: since %d of %d: %d, want %d", seed, i, len(sizes), got, least)
			}
		}
	}
}

// TestManyCuts: what the catalog keeps of the shrinks of a file is bounded. A truncation to nothing is not forgotten for those that
// appending programs bring about.
func TestManyCuts(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	size := func(n int64) { m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: &n}}) }
	size(1 << 20)
	size(0)
	for n := int64(1); n <= 4*maxCuts; n++ {
		size(1 << 20)
		size(n*100 + 1000)
	}
	in := m.inodes[f.Ino]
	if err := in.checkCuts(); err != nil {
		t.Error(err)
	}
	if c, ok := in.cutSince(f.Rev); !ok || c.Size != 0 || len(in.cuts) != maxCuts {
		t.Errorf("%d shrinks, the smallest to %d bytes", len(in.cuts), c.Size)
	}
	if c, ok := in.cutSince(in.Gen - 1); !ok || c.Size != in.Size {
		t.Errorf("the last is to %d bytes", c.Size)
	}
}
