package catalog

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestShrinks: whatever moment a node has seen last, it learns the smallest size since, also from a snapshot.
func TestShrinks(t *testing.T) {
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
		if err := in.checkShrinks(); err != nil {
			t.Fatal(err)
		}
		for i, was := range sizes {
			least := was
			for _, size := range sizes[i:] {
				least = min(least, size)
			}
			got, shrunk := min(was, in.Size), false
			if c, ok := in.shrinkSince(f.Rev + dsm.Generation(i)); ok {
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

// TestManyShrinks: what the catalog keeps of the shrinks of a file is bounded. A truncation to nothing is not forgotten for those that
// appending programs bring about.
func TestManyShrinks(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	size := func(n int64) { m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: &n}}) }
	size(1 << 20)
	size(0)
	for n := int64(1); n <= 4*maxShrinks; n++ {
		size(1 << 20)
		size(n*100 + 1000)
	}
	in := m.inodes[f.Ino]
	if err := in.checkShrinks(); err != nil {
		t.Error(err)
	}
	if c, ok := in.shrinkSince(f.Rev); !ok || c.Size != 0 || len(in.shrinks) != maxShrinks {
		t.Errorf("%d shrinks, the smallest to %d bytes", len(in.shrinks), c.Size)
	}
	if c, ok := in.shrinkSince(in.Gen - 1); !ok || c.Size != in.Size {
		t.Errorf("the last is to %d bytes", c.Size)
	}
}

// TestShrinkIsHeardByWhoHasItOpen: who makes a file shorter hears that it is done when the nodes that have it open know, so that what they take from
// then on is not truncated. A file that becomes longer, or that they have not open, is nothing to wait for, nor is a node that has ended.
func TestShrinkIsHeardByWhoHasItOpen(t *testing.T) {
	n, other := start(t, "a"), start(t, "b")
	ok(t, n.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	ok(t, other.Join(patient(t), n.self.Addr))
	settle(t, []*node{n, other})
	made, err := n.Create(patient(t), dsm.RootIno, "f", file, true)
	ok(t, err)
	resize := func(size int64) {
		t.Helper()
		_, err := n.SetAttr(patient(t), made.Ino, dsm.SetAttr{Size: &size})
		ok(t, err)
	}
	// slow has the other node not take in changes from now on, until it is let go; comes is closed when there is one.
	slow := func() (comes chan struct{}, let func()) {
		comes, goes := make(chan struct{}), make(chan struct{})
		var once sync.Once
		f := func() {
			once.Do(func() { close(comes) })
			<-goes
		}
		other.observer.first.Store(&f)
		return comes, func() {
			other.observer.first.Store(nil)
			close(goes)
		}
	}
	resize(3 * dsm.PageSize)
	_, err = other.Claim(patient(t), made.Ino, true)
	ok(t, err)
	comes, let := slow()
	shorter := make(chan struct{})
	go func() {
		defer close(shorter)
		resize(5)
	}()
	<-comes
	select {
	case <-shorter:
		t.Error("the file is shorter, and a node that has it open has not taken that in")
	case <-time.After(followPatience):
	}
	let()
	<-shorter
	dropped := make(chan dsm.Ino, 1)
	drops := func(ino dsm.Ino) { dropped <- ino }
	other.dropsFor.Store(&drops)
	resize(3)
	select {
	case ino := <-dropped:
		if ino != made.Ino {
			t.Errorf("it waits for the kernel to drop what file %d was, not %d", ino, made.Ino)
		}
	default:
		t.Error("the file is shorter, and the kernel of a node that has it open was not waited for")
	}
	other.dropsFor.Store(nil)

	_, let = slow()
	resize(3 * dsm.PageSize) // longer
	let()
	ok(t, other.Unclaim(patient(t), made.Ino))
	_, let = slow()
	resize(5) // not open there
	let()
	_, err = other.Claim(patient(t), made.Ino, true)
	ok(t, err)
	other.stop()
	resize(3)
}
