package pages

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestTakenPages against a map, in any order of changes.
func TestTakenPages(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var got takenPages
	want := make(map[dsm.PageIndex]bool)
	for range 3000 {
		switch r.IntN(10) {
		case 0:
			got.resize([]int{0, 1, groupExtents - 1, groupExtents, groupExtents + 1, r.IntN(5 * groupExtents)}[r.IntN(6)])
			for p := range want {
				if e, _ := p.Extent(); int(e) >= got.n {
					delete(want, p)
				}
			}
		default:
			if got.n == 0 {
				continue
			}
			e, i := dsm.ExtentIndex(r.IntN(got.n)), r.IntN(dsm.ExtentPages)
			got.put(e).Add(i)
			want[pageOfExtent(e, i)] = true
		}
		for _, e := range []int{0, got.n - 1, got.n, got.n + groupExtents, r.IntN(6 * groupExtents)} {
			if i := r.IntN(dsm.ExtentPages); e >= 0 && got.has(dsm.ExtentIndex(e), i) != want[pageOfExtent(dsm.ExtentIndex(e), i)] {
				t.Fatalf("of %d extents, page %d of extent %d: %v", got.n, i, e, got.has(dsm.ExtentIndex(e), i))
			}
		}
		first, n := r.IntN(got.n+1), 0
		for e, set := range got.from(first) {
			for i := range set.All() {
				if n++; !want[pageOfExtent(e, i)] {
					t.Fatalf("page %d of extent %d is new", i, e)
				}
			}
		}
		for p := range want {
			if e, _ := p.Extent(); int(e) >= first {
				n--
			}
		}
		if n != 0 {
			t.Fatalf("from extent %d of %d on there are %d pages too many", first, got.n, n)
		}
	}
}

// TestTakenPagesOfTwo: two goroutines that store to different extents of a group lose nothing of each other.
func TestTakenPagesOfTwo(t *testing.T) {
	for range 200 {
		var set takenPages
		set.resize(2 * groupExtents)
		var both sync.WaitGroup
		for k := range 2 {
			both.Go(func() { set.put(dsm.ExtentIndex(groupExtents + k)).Add(k) })
		}
		both.Wait()
		for k := range 2 {
			if !set.has(dsm.ExtentIndex(groupExtents+k), k) {
				t.Fatalf("the page of goroutine %d is missing", k)
			}
		}
	}
}

// TestLargeCopyTakesNoMemory: of 1 TiB to which nothing was stored.
func TestLargeCopyTakesNoMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a := newTestArea(t, 1<<40)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("it takes %d bytes", took)
	}
	if n, err := a.ResidentBytes(); err != nil || n != 0 {
		t.Errorf("%d resident bytes: %v", n, err)
	}
}
