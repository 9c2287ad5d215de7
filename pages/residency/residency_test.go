package residency

import (
	"container/list"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

func newTestResidency(t testing.TB, limit int64) *Residency {
	t.Helper()
	r, err := New(limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// known returns how many pages are somewhere, and checks the places.
func (r *Residency) known(t testing.TB) int {
	t.Helper()
	r.cache.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.clock) != len(r.mu.extents) {
		t.Fatalf("%d extents in the clock, of %d", len(r.mu.clock), len(r.mu.extents))
	}
	queued := map[*residentExtent]dsm.PageSet{}
	for e := r.mu.queue.Front(); e != nil; e = e.Next() {
		q := e.Value.(*queuedPages)
		if q.pages.Empty() || q.pages.And(queued[q.x]) != (dsm.PageSet{}) || !slices.Contains(q.x.queue, e) {
			t.Fatalf("the queue has %+v, and %v of it before", q, queued[q.x])
		}
		queued[q.x] = queued[q.x].Or(q.pages)
	}
	n := 0
	for k, x := range r.mu.extents {
		if r.mu.clock[x.at] != x || x.residentKey != k || x.kept.And(x.queued) != (dsm.PageSet{}) || x.kept.Or(x.queued).Or(x.leaves) == (dsm.PageSet{}) {
			t.Fatalf("extent %v: %+v", k, x)
		}
		if x.queued != queued[x] {
			t.Fatalf("extent %v: queued %v, in the queue %v", k, x.queued, queued[x])
		}
		for i := range x.kept.All() {
			if _, ok := r.cache.Get(residentPage{x, i}.key()); !ok {
				t.Fatalf("page %d of %v is in no place", i, k)
			}
		}
		n += x.kept.Len() + x.queued.Len()
	}
	return n
}

// pageKey names a page of an area for the model.
type pageKey struct {
	area dsm.AreaID
	page dsm.PageIndex
}

func pageOfExtent(e dsm.ExtentIndex, i int) dsm.PageIndex {
	return dsm.PageIndex(e)*dsm.ExtentPages + dsm.PageIndex(i)
}

// victims takes n victims and returns them one by one.
func victims(r *Residency, n int) (pages []pageKey) {
	for _, v := range r.Victims(n) {
		for i := range v.Pages.All() {
			pages = append(pages, pageKey{v.Area, pageOfExtent(v.Extent, i)})
		}
	}
	return pages
}

// TestResidencyLosesNothing: whatever was used and not forgotten comes out as a victim, once, and
// n of them whenever there are n.
func TestResidencyLosesNothing(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, limit := range []int64{0, 1, 2, 9, 100, 5000} {
		r := newTestResidency(t, limit)
		model := map[pageKey]struct{}{}
		for range 20_000 {
			area, e := dsm.AreaID(rng.IntN(2)), dsm.ExtentIndex(rng.IntN(3))
			from := rng.IntN(dsm.ExtentPages)
			set := dsm.Range(from, min(from+1+rng.IntN(1+rng.IntN(40)), dsm.ExtentPages))
			switch what := rng.IntN(20); {
			case what < 10:
				r.Used(area, e, set)
				for i := range set.All() {
					model[pageKey{area, pageOfExtent(e, i)}] = struct{}{}
				}
			case what < 14:
				r.Forget(area, e, set)
				for i := range set.All() {
					delete(model, pageKey{area, pageOfExtent(e, i)})
				}
			case what < 19:
				n := rng.IntN(1 + rng.IntN(60))
				got := victims(r, n)
				if want := min(n, len(model)); len(got) != want {
					t.Fatalf("limit %d: %d victims, want %d", limit, len(got), want)
				}
				for _, p := range got {
					if _, ok := model[p]; !ok {
						t.Fatalf("limit %d: %v is a victim, and not here", limit, p)
					}
					delete(model, p)
				}
			case rng.IntN(50) == 0:
				if n := r.known(t); n != len(model) {
					t.Fatalf("limit %d: %d pages are known, want %d", limit, n, len(model))
				}
			case rng.IntN(50) == 0:
				r.SetLimit(rng.Int64N(1 + limit))
			}
		}
		if n := r.known(t); n != len(model) {
			t.Fatalf("limit %d: %d pages are known, want %d", limit, n, len(model))
		}
		if got := victims(r, 1<<20); len(got) != len(model) || r.known(t) != 0 {
			t.Fatalf("limit %d: %d victims of %d, %d left", limit, len(got), len(model), r.known(t))
		}
	}
}

// TestResidencyConcurrent: the same with all at once, about the pages that are used last.
func TestResidencyConcurrent(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, limit := range []int64{1, 50, 1000} {
		r := newTestResidency(t, limit)
		const areas = 4
		var all sync.WaitGroup
		for area := range dsm.AreaID(areas) {
			rng := rand.New(rand.NewPCG(rng.Uint64(), 1))
			all.Go(func() {
				for range 5000 {
					from := rng.IntN(dsm.ExtentPages)
					set := dsm.Range(from, min(from+1+rng.IntN(8), dsm.ExtentPages))
					switch rng.IntN(4) {
					case 0:
						r.Forget(area, dsm.ExtentIndex(rng.IntN(2)), set)
					case 1:
						for _, v := range r.Victims(rng.IntN(10)) {
							if rng.IntN(2) == 0 { // it is in use
								r.Used(v.Area, v.Extent, v.Pages)
							}
						}
					default:
						r.Used(area, dsm.ExtentIndex(rng.IntN(2)), set)
					}
				}
			})
		}
		all.Wait()
		before := r.known(t)
		var used sync.WaitGroup
		for area := range dsm.AreaID(areas) {
			used.Go(func() { r.Used(area, 7, dsm.AllPages) })
		}
		used.Wait()
		if n := r.known(t); n != before+areas*dsm.ExtentPages {
			t.Fatalf("limit %d: %d pages are known, want %d", limit, n, before+areas*dsm.ExtentPages)
		}
		seen := map[pageKey]int{}
		for _, p := range victims(r, 1<<20) {
			if seen[p]++; seen[p] > 1 {
				t.Fatalf("limit %d: %v is handed out twice", limit, p)
			}
		}
		if len(seen) != before+areas*dsm.ExtentPages {
			t.Fatalf("limit %d: %d victims, want %d", limit, len(seen), before+areas*dsm.ExtentPages)
		}
	}
}

// TestResidencyKeepsDropped: insertions that ristretto drops, because its goroutine is behind, leave the page in the queue.
func TestResidencyKeepsDropped(t *testing.T) {
	const extents = 200 // more pages than the 32768 insertions that ristretto buffers
	r := newTestResidency(t, 8)
	r.mu.Lock() // so that its goroutine cannot call back
	for e := range dsm.ExtentIndex(extents) {
		x := &residentExtent{residentKey: residentKey{1, e}, at: len(r.mu.clock)}
		r.mu.extents[x.residentKey] = x
		r.mu.clock = append(r.mu.clock, x)
		for i := range dsm.ExtentPages {
			r.usedLocked(residentPage{x, i})
		}
	}
	dropped := r.mu.queue.Len()
	r.mu.Unlock()
	if dropped == 0 {
		t.Error("no insertion was dropped")
	}
	if n := r.known(t); n != extents*dsm.ExtentPages {
		t.Errorf("%d pages are known, want %d", n, extents*dsm.ExtentPages)
	}
}

// TestUsedWhileForgotten: a page that is used again before ristretto was told to forget it is somewhere, also
// if ristretto has evicted it meanwhile.
func TestUsedWhileForgotten(t *testing.T) {
	r := newTestResidency(t, 100)
	page := dsm.Range(3, 4)
	r.Used(1, 0, page)
	for range 2 {
		r.mu.Lock()
		x := r.mu.extents[residentKey{1, 0}]
		r.leaveLocked(x, page.And(x.kept))
		r.mu.Unlock()
		r.cache.Del(residentPage{x, 3}.key())
		r.cache.Wait()
		r.Used(1, 0, page)
		r.left(x, page)
		if n := r.known(t); n != 1 {
			t.Errorf("%d pages are known", n)
		}
		r.Used(1, 0, page)
	}
	if got := r.Victims(2); len(got) != 1 || got[0] != (Victim{1, 0, page}) {
		t.Errorf("victims %v", got)
	}
}

// TestVictimsInOrder: the queue goes first, in order and by extents; a page that is used leaves it. Below the limit
// those go first that were not used lately.
func TestVictimsInOrder(t *testing.T) {
	r := newTestResidency(t, 1000)
	r.Used(1, 0, dsm.Range(0, 4))
	r.Used(1, 1, dsm.Range(0, 4))
	if got := victims(r, 0); got != nil {
		t.Errorf("victims %v", got)
	}
	first := victims(r, 3) // all were used lately, so the first that the hand finds; none is recent now
	r.Used(1, 1, dsm.Range(3, 4))
	r.Used(1, 0, dsm.Range(3, 4))
	r.cache.Wait()
	r.mu.Lock()
	refused := []residentPage{{r.mu.extents[residentKey{1, 1}], 2}, {r.mu.extents[residentKey{1, 0}], 3}, {r.mu.extents[residentKey{1, 1}], 1}}
	for _, p := range refused {
		r.queueLocked(p.x, p.set())
	}
	r.mu.Unlock()
	for _, p := range refused {
		r.cache.Del(p.key())
	}
	r.cache.Wait()
	r.Used(1, 1, dsm.Range(1, 2))
	got := r.Victims(2)
	if len(got) != 2 || got[0] != (Victim{1, 1, dsm.Range(2, 3)}) || got[1] != (Victim{1, 0, dsm.Range(3, 4)}) {
		t.Errorf("after %v: victims %v", first, got)
	}
	r.known(t)
	if got := r.Victims(1); len(got) != 1 || got[0] != (Victim{1, 1, dsm.Range(0, 1)}) {
		t.Errorf("not used lately: %v", got)
	}
	if got := r.Victims(10); len(got) != 1 || got[0] != (Victim{1, 1, dsm.Range(1, 2).Or(dsm.Range(3, 4))}) {
		t.Errorf("the others are %v", got)
	}
}

// fifo is the yardstick: pages leave in the order in which they came.
type fifo struct {
	order list.List
	here  map[dsm.PageIndex]struct{}
}

// hitRatio runs a trace through a cache of limit pages and returns what share of it was there,
// with a Residency and with a fifo. Room is made for a batch of pages at once.
func hitRatio(t *testing.T, limit int, trace []dsm.PageIndex) (residency, yardstick float64) {
	r := newTestResidency(t, int64(limit))
	f := fifo{here: map[dsm.PageIndex]struct{}{}}
	here := map[dsm.PageIndex]struct{}{}
	hits, fifoHits := 0, 0
	for _, p := range trace {
		if _, ok := f.here[p]; ok {
			fifoHits++
		} else {
			f.here[p] = struct{}{}
			f.order.PushBack(p)
			if f.order.Len() > limit {
				delete(f.here, f.order.Remove(f.order.Front()).(dsm.PageIndex))
			}
		}
		if _, ok := here[p]; ok {
			hits++
		} else {
			r.cache.Wait() // a fetch takes longer than ristretto needs to take in what it was told
			if len(here) == limit {
				for _, v := range victims(r, max(limit/64, 1)) {
					delete(here, v.page)
				}
			}
		}
		here[p] = struct{}{}
		e, i := p.Extent()
		r.Used(1, e, dsm.Range(i, i+1))
	}
	return float64(hits) / float64(len(trace)), float64(fifoHits) / float64(len(trace))
}

// raceDetector reports whether this is a build in which sync.Pool, through which ristretto counts uses,
// loses a quarter of them on purpose, with all that they have gathered.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// TestResidencyKeepsWhatIsHot: a scan of everything does not wash out what is used all the time.
func TestResidencyKeepsWhatIsHot(t *testing.T) {
	rng := pagetest.Rand(t)
	const limit = 2000
	var trace []dsm.PageIndex
	scan := dsm.PageIndex(limit)
	for range 200_000 {
		if rng.IntN(2) == 0 {
			trace = append(trace, dsm.PageIndex(rng.IntN(limit/2)))
			continue
		}
		trace = append(trace, scan)
		if scan++; scan == 20*limit {
			scan = limit
		}
	}
	is, yardstick := hitRatio(t, limit, trace)
	t.Logf("hot set and scan: %.3f hit, %.3f with fifo, 0.5 at most", is, yardstick)
	if is < yardstick+0.05 && !raceDetector() {
		t.Error("that is not better than fifo")
	}
}

// TestResidencyWithoutPattern: where nothing is worth more than another, no harm is done.
func TestResidencyWithoutPattern(t *testing.T) {
	rng := pagetest.Rand(t)
	const limit = 2000
	trace := make([]dsm.PageIndex, 200_000)
	for i := range trace {
		trace[i] = dsm.PageIndex(rng.IntN(4 * limit))
	}
	is, yardstick := hitRatio(t, limit, trace)
	t.Logf("random: %.3f hit, %.3f with fifo", is, yardstick)
	if is < yardstick-0.02 {
		t.Error("that is worse than fifo")
	}
}

// TestTry: while another call is at work nothing is done, else the same as by Used and Brought.
func TestTry(t *testing.T) {
	r := newTestResidency(t, 100)
	r.mu.Lock()
	if r.TryBrought(1, 0, dsm.Range(0, 2)) || r.TryUsed(1, 0, dsm.Range(0, 1)) {
		t.Error("it does not say that the lock is held")
	}
	r.mu.Unlock()
	if n := r.known(t); n != 0 {
		t.Errorf("%d pages are known", n)
	}
	for !r.TryBrought(1, 0, dsm.Range(0, 2)) || !r.TryUsed(1, 0, dsm.Range(0, 1)) { // ristretto's goroutine may have the lock
		runtime.Gosched()
	}
	r.known(t)
	if v := r.Victims(1); len(v) != 1 || v[0].Pages != dsm.Range(1, 2) {
		t.Errorf("%v leave first, not the page that was not used", v)
	}
}
