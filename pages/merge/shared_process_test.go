package merge

import (
	"bytes"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestAttachedProgram is the program, in a process of its own.
func TestAttachedProgram(t *testing.T) { pagetest.RunProgram(t) }

// sharedPage returns a page of memory that other processes can map, and its memfd.
func sharedPage(t *testing.T) (memfd int, page []byte) {
	t.Helper()
	memfd, err := unix.MemfdCreate("page", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(memfd) })
	if err := unix.Ftruncate(memfd, dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	page, err = unix.Mmap(memfd, 0, dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(page) })
	return memfd, page
}

// TestMergeSharedWithProgram merges into a page, publishes from it and overwrites parts
// of it while another process stores there.
func TestMergeSharedWithProgram(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, r := range pagetest.Programs {
		t.Run(r.Name, func(t *testing.T) {
			memfd, working := sharedPage(t)
			seed := rng.Uint64()
			ended, wait := r.Start(t, memfd, seed)
			defer wait()
			if r.Adds {
				mergeAdds(t, rng, r, working, seed, ended)
			} else {
				mergeStores(t, rng, r, working, ended)
			}
		})
	}
}

// mergeAdds checks that the sum of what the program and the others added is there.
func mergeAdds(t *testing.T, rng *rand.Rand, r pagetest.Program, working []byte, seed uint64, ended *atomic.Bool) {
	k := mustKernel(t, r.Rule, r.DType, r.Head)
	home := pagetest.AlignedPage(make([]byte, dsm.PageSize)) // what the others have, and were sent
	base := make([]byte, dsm.PageSize)
	snap := make([]byte, dsm.PageSize)
	totals := make([]int, dsm.PageSize/r.DType.Size())
	header := 0
	merges, published := 0, 0
	for !ended.Load() || merges < 100 {
		if merges++; merges%4 == 0 {
			var d Delta
			if changed, inexact := k.AppendShared(&d, 0, base, working, snap); inexact {
				t.Fatal("whole numbers are inexact")
			} else if changed {
				published++
				k.Overlay(&d, 0, home)
				k.Overlay(&d, 0, base)
				pagetest.WantPage(t, "base with the delta", base, snap)
			}
		}
		pagetest.RandomIncrements(rng, r.DType, home, int(r.Head)/r.DType.Size(), totals)
		if r.Head > 0 {
			header++
			home[header%int(r.Head)] = byte(header)
		}
		k.MergeShared(0, base, working, home)
		copy(base, home)
	}
	mine := rand.New(rand.NewPCG(seed, 1))
	for range pagetest.Stores() {
		totals[r.Element(mine)]++
	}
	for e := int(r.Head) / r.DType.Size(); e < len(totals); e++ {
		if got := pagetest.ElementAt(r.DType, working[e*r.DType.Size():]); got != totals[e] {
			t.Errorf("element %d is %d, want %d", e, got, totals[e])
		}
	}
	if !bytes.Equal(working[:r.Head], home[:r.Head]) {
		t.Errorf("the header is %v, want %v", working[:r.Head], home[:r.Head])
	}
	t.Logf("%d merges, %d publications", merges, published)
}

// mergeStores brings changes into the even elements, and checks them; the program checks
// its own. With the rule last, it also publishes all of them, to a page that must end as
// the working copy.
func mergeStores(t *testing.T, rng *rand.Rand, r pagetest.Program, working []byte, ended *atomic.Bool) {
	k := mustKernel(t, r.Rule, r.DType, r.Head)
	base := make([]byte, dsm.PageSize)
	incoming := make([]byte, dsm.PageSize)
	published, snap := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
	publish := func() {
		var d Delta
		k.AppendShared(&d, 0, published, working, snap)
		k.Overlay(&d, 0, published)
	}
	steps := 0
	for ; !ended.Load() || steps < 100; steps++ {
		for range 50 {
			part := bytes.Repeat([]byte{byte(rng.Uint32())}, pagetest.OverwrittenTo-pagetest.OverwrittenFrom)
			OverwriteShared(working, pagetest.OverwrittenFrom, part)
			copy(base[pagetest.OverwrittenFrom:], part)
			copy(incoming[pagetest.OverwrittenFrom:], part)
		}
		dense := rng.IntN(3) == 0
		for e := 0; e < dsm.PageSize/r.Bytes; e += 2 {
			if dense || rng.IntN(100) == 0 {
				r.Store(incoming, e, r.Load(incoming, e)+1)
			}
		}
		k.MergeShared(0, base, working, incoming)
		for e := 0; e < dsm.PageSize/r.Bytes; e += 2 {
			if got, want := r.Load(working, e), r.Load(incoming, e); got != want {
				t.Fatalf("step %d: element %d is %#x, want %#x", steps, e, got, want)
			}
		}
		copy(base, incoming)
		if k.op == opSum {
			continue
		}
		publish()
		for e := 0; e < dsm.PageSize/r.Bytes; e += 2 {
			if got, want := r.Load(published, e), r.Load(incoming, e); got != want {
				t.Fatalf("step %d: element %d was published as %#x, want %#x", steps, e, got, want)
			}
		}
	}
	if k.op != opSum {
		publish()
		pagetest.WantPage(t, "published", published, working)
	}
	t.Logf("%d merges", steps)
}
