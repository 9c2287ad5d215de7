package pages

import (
	"fmt"
	"math"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// TestUndonePastTheEnd: a daemon is killed while the home adds to a page, and while none is there the file is cut within that page, and grows again. Nothing of what was cut off comes back.
func TestUndonePastTheEnd(t *testing.T) {
	const size, cut = dsm.PageSize, 1024
	for _, replica := range []bool{false, true} {
		t.Run(fmt.Sprint(replica), func(t *testing.T) {
			m, err := hold.Create()
			if err != nil {
				t.Fatal(err)
			}
			a, err := newTestStore(t, m).NewHeldArea(5, size)
			if err != nil {
				t.Fatal(err)
			}
			if replica {
				if err := a.BeginReplica(); err != nil {
					t.Fatal(err)
				}
				a.WorkingIsNewest()
			}
			a.BecomeHome(0)
			copy(a.Home(0), fill(3))
			a.BeginAdding(0)
			a.BeforeAdding(0)
			copy(a.Home(0), fill(4)[:10])
			left := newTestStore(t, m).Areas() // it is killed
			if len(left) != 1 {
				t.Fatalf("left: %+v", left)
			}
			var next *Area
			if replica {
				left[0].Homed = func(dsm.ExtentIndex) bool { return true }
				next, _, err = left[0].TakeBoth(mustKernel(t, dsm.MergeSum, dsm.DTypeI32, 0), size, cut)
			} else {
				next, err = left[0].Take(size, cut)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !next.Homed(0) {
				next.BecomeHome(0)
			}
			if got := next.Home(0)[2048]; got != 0 {
				t.Errorf("the home has %d past where the file was cut, want 0", got)
			}
			if got := next.Home(0)[100]; got != 3 {
				t.Errorf("the home has %d, want 3", got)
			}
		})
	}
}

// TestKilledWhenTheTwinHasGone: the replica beside a home has just caught up with it, as mergePageLocked does it, when the daemon is killed. The home has what it had merged.
func TestKilledWhenTheTwinHasGone(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprint(both), func(t *testing.T) {
			m, a, _ := newHeldReplica(t, dsm.PageSize)
			a.BecomeHome(0)
			copy(a.Working(0), fill(3))
			copy(a.Home(0), fill(3))
			a.BeforeHomeWrite(0, false)
			copy(a.Home(0), fill(4)) // the home has merged this, and acknowledged it
			a.BeginMerge(0, both, nil)
			copy(a.Working(0), fill(4))
			a.SetBase(0, fill(4)) // EndMerge is not reached
			if a.HasTwin(0) {
				t.Fatal("it has a twin")
			}
			next := goesOn(t, newTestStore(t, m), dsm.PageSize, dsm.PageSize)
			if !next.Homed(0) {
				next.BecomeHome(0)
			}
			if got := next.Home(0)[0]; got != 4 {
				t.Errorf("the home has %d; it had merged 4", got)
			}
		})
	}
}

// TestKilledWhileTheNextTakes: the daemon of a home that adds something to two pages is killed, and so is the next one, which stays the home no more, while it takes over. The base is what the replica
// had: else what others have published looks like a store of this node that puts the old values back.
func TestKilledWhileTheNextTakes(t *testing.T) {
	const size = 2 * dsm.PageSize
	m, a, _ := newHeldReplica(t, size)
	a.BecomeHome(0)
	for p := range dsm.PageIndex(2) {
		copy(a.Working(p), fill(3))
		copy(a.Home(p), fill(3))
		a.BeforeHomeWrite(p, false)
		copy(a.Home(p), fill(4))
	}
	a.BeginAdding(0)
	for p := range dsm.PageIndex(2) {
		a.BeforeAdding(p)
		copy(a.Home(p), fill(5))
	}
	left := newTestStore(t, m).Areas()
	n := 0
	left[0].Homed = func(dsm.ExtentIndex) bool {
		if n++; n == 2 {
			panic("killed")
		}
		return false
	}
	func() {
		defer func() { _ = recover() }()
		_, _, _ = left[0].TakeBoth(mustKernel(t, dsm.MergeSum, dsm.DTypeI32, 0), size, size)
		t.Error("not killed")
	}()
	left = newTestStore(t, m).Areas()
	left[0].Homed = func(dsm.ExtentIndex) bool { return false }
	next, _, err := left[0].TakeBoth(mustKernel(t, dsm.MergeSum, dsm.DTypeI32, 0), size, size)
	if err != nil {
		t.Fatal(err)
	}
	for p := range dsm.PageIndex(2) {
		if w, b := next.Working(p)[0], next.Base(p)[0]; w != 3 || b != 3 {
			t.Errorf("page %d: %d in the working copy, %d in the base; want 3", p, w, b)
		}
	}
}

// TestServedTornWhileItIsTaken is not a test of a kill: an Added note of an extent that this node is not the home of any more says nothing to the next home.
func TestAddedWithoutAHome(t *testing.T) {
	m, a, _ := newHeldReplica(t, dsm.PageSize)
	a.BecomeHome(0)
	a.BeginAdding(0)
	a.BeforeAdding(0)
	copy(a.Home(0), fill(5))
	a.Added([]AddedBy{{7, 11, 12}})
	s := newTestStore(t, m) // it is killed
	for _, x := range s.MergedOf(5) {
		x.Drop() // as resumeAmong does where this node is not the home of anything any more
	}
	if _, _, err := s.Areas()[0].TakeBoth(mustKernel(t, dsm.MergeSum, dsm.DTypeI32, 0), dsm.PageSize, dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	for _, x := range s.MergedOf(5) {
		seq, _ := x.Get()
		t.Errorf("it knows that what node %d has published up to %d is in extent %d, of which it is not the home", x.Writer(), seq, x.Extent())
	}
}

// TestManyAddInOneRound: so many nodes have parts in one round of a sum.
func TestManyAddInOneRound(t *testing.T) {
	_, a, _ := newHeldReplica(t, dsm.PageSize)
	a.BecomeHome(0)
	a.BeginAdding(0)
	a.BeforeAdding(0)
	defer func() {
		if e := recover(); e != nil {
			t.Errorf("the daemon of the home ends, and the next one does again: %v", e)
		}
	}()
	a.Added(make([]AddedBy, 200))
	a.EndAdding()
}

// TestKilledHomeOnDemand: of an area on demand to which no program could store, what it has as the home outlives the daemon. No page is here.
func TestKilledHomeOnDemand(t *testing.T) {
	for _, size := range []int64{4 * dsm.PageSize, 600 * dsm.PageSize} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			m, err := hold.Create()
			if err != nil {
				t.Fatal(err)
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
			a, err := newTestStore(t, m).NewHeldDemandArea(5, size)
			must(err)
			for round := range byte(3) {
				must(a.BeginReplica())
				a.BecomeHome(0)
				if round > 0 && (a.Home(1)[0] != 2+round || a.Home(3)[0] != 9) {
					t.Fatalf("the next home has %d and %d", a.Home(1)[0], a.Home(3)[0])
				}
				_, _, err := a.Install(k, 1, a.Home(1), true)
				must(err)
				a.BeforeHomeWrite(1, false)
				copy(a.Home(1), fill(3+round)) // the replica is behind, so it has a twin
				copy(a.Home(3), fill(9))
				if last := dsm.PageIndex(size/dsm.PageSize) - 1; last > dsm.ExtentPages { // the base of an extent that is homed elsewhere
					_, _, err := a.Install(k, last, fill(8), true)
					must(err)
					if a.Base(last)[5] != 8 {
						t.Errorf("the base has %d", a.Base(last)[5])
					}
				}
				left := newTestStore(t, m).Areas() // it is killed
				if len(left) != 1 || left[0].Newest() {
					t.Fatalf("left: %+v", left)
				}
				left[0].Demand = true
				a, err = left[0].Take(size, size)
				must(err)
				if !a.Demand() || a.Size() != size {
					t.Fatalf("%v: on demand %v, %d bytes", a, a.Demand(), a.Size())
				}
			}
			must(a.BeginReplica())
			a.BecomeHome(0)
			if !a.Hole(1) {
				t.Error("a page is here that was never asked for")
			}
			_, _, err = a.Install(k, 1, a.Home(1), true)
			must(err)
			if stored, err := a.Evict(k, 0, dsm.Range(1, 2), false); err != nil || !stored.Empty() || !a.Hole(1) || a.Home(1)[0] != 5 {
				t.Errorf("evicted: %v, %v; the home has %d", stored, err, a.Home(1)[0])
			}
			must(a.Close())
			if left := newTestStore(t, m).Areas(); len(left) != 0 {
				t.Errorf("left of an area that was closed: %+v", left)
			}
		})
	}
}

// onDemandAgain is nextDaemon for an area on demand.
func onDemandAgain(t *testing.T, m *hold.Memory, size, least int64, homed func(dsm.ExtentIndex) bool) *Area {
	t.Helper()
	left := newTestStore(t, m).Areas()
	if len(left) != 1 || !left[0].Newest() {
		t.Fatalf("left: %+v", left)
	}
	left[0].Demand, left[0].Homed = true, homed
	a, _, err := left[0].TakeBoth(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), size, least)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// heldOnDemand returns an area on demand of a new store to which programs may store.
func heldOnDemand(t *testing.T, size int64) (*hold.Memory, *Area) {
	t.Helper()
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	a, err := newTestStore(t, m).NewHeldDemandArea(5, size)
	if err == nil {
		err = a.BeginReplica()
	}
	if err != nil {
		t.Fatal(err)
	}
	a.WorkingIsNewest()
	return m, a
}

// TestKilledWhilePagesComeAndGo: a page that was just coming, or leaving, when the daemon was killed is not here. One that was here is, with its base.
func TestKilledWhilePagesComeAndGo(t *testing.T) {
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	for _, size := range []int64{4 * dsm.PageSize, 600 * dsm.PageSize} { // a piece, and a slot
		for _, homed := range []bool{false, true} {
			t.Run(fmt.Sprint(size, homed), func(t *testing.T) {
				m, a := heldOnDemand(t, size)
				stays := func(dsm.ExtentIndex) bool { return homed }
				if homed {
					a.BecomeHome(0)
					copy(a.Home(0), fill(4))
				}
				install := func(p dsm.PageIndex, n []byte) {
					t.Helper()
					if _, _, err := a.Install(k, p, n, true); err != nil {
						t.Fatal(err)
					}
				}
				install(1, fill(1))
				copy(a.Working(1), fill(2)) // stored
				install(2, fill(3))
				a.installBase(0, fill(5)) // it was just coming
				install(3, fill(6))
				if _, err := a.working.punch(0, dsm.Range(3, 4)); err != nil { // it was just leaving
					t.Fatal(err)
				}
				if homed && !a.HasTwin(3) {
					t.Fatal("the home has the base of the page")
				}
				a = onDemandAgain(t, m, size, size, stays)
				if got := a.Here(0); got != dsm.Range(1, 3) {
					t.Errorf("here: %v", got)
				}
				for p, want := range map[dsm.PageIndex][2]byte{1: {2, 1}, 2: {3, 3}} {
					if w, b := a.Working(p)[0], a.Base(p)[0]; w != want[0] || b != want[1] {
						t.Errorf("page %d has %d, its base %d; want %v", p, w, b, want)
					}
				}
				if homed {
					if !a.Homed(0) {
						a.BecomeHome(0)
					}
					if a.HasTwin(0) || a.HasTwin(3) || a.Home(0)[0] != 4 || a.Home(3)[0] != 0 {
						t.Errorf("the home has %d and %d; a twin of what is not here: %v, %v", a.Home(0)[0], a.Home(3)[0], a.HasTwin(0), a.HasTwin(3))
					}
					return
				}
				if err := a.KeepBase(0, a.Here(0)); err != nil {
					t.Fatal(err)
				}
				if a.base.takes(0) || a.base.takes(3) {
					t.Error("there is a base of what is not here")
				}
				install(3, fill(0))
				if a.Working(3)[0] != 0 || a.Base(3)[0] != 0 {
					t.Error("a page that came again is not what came")
				}
			})
		}
	}
}

// TestKilledInInstall: the daemon ends while it puts pages in place, since it cannot read the second one. The first is not here: its base is not there yet.
func TestKilledInInstall(t *testing.T) {
	m, a := heldOnDemand(t, 4*dsm.PageSize)
	n, err := unix.Mmap(-1, 0, 2*dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	copy(n, fill(7))
	if err := unix.Mprotect(n[dsm.PageSize:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	func() {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if recover() == nil {
				t.Error("it goes on")
			}
		}()
		_, _, _ = a.Install(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), 0, n, true)
	}()
	a = onDemandAgain(t, m, 4*dsm.PageSize, 4*dsm.PageSize, nil)
	if got := a.Here(0); got != (dsm.PageSet{}) {
		t.Errorf("here: %v", got)
	}
}

// TestOnDemandForWhoAttaches: a program attaches an area on demand of which pages are here. They move out of the Keep, holes stay holes, and no more than an extent takes memory twice.
func TestOnDemandForWhoAttaches(t *testing.T) {
	const size, pages = 600 * dsm.PageSize, 500
	m, a := heldOnDemand(t, size)
	for p := range dsm.PageIndex(pages) {
		if _, _, err := a.Install(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), p, fill(byte(p)|1), false); err != nil {
			t.Fatal(err)
		}
	}
	takes := func() int64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Fstat(m.FD(), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512 / dsm.PageSize
	}
	had := takes()
	a.EndsWithDaemon()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mprotect(mem[dsm.ExtentSize:], unix.PROT_NONE); err != nil { // one extent is copied
		t.Fatal(err)
	}
	func() {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { _ = recover() }()
		a.working.copyTo(mem, nil)
		t.Error("all of it is copied")
	}()
	if now := takes(); had-now < dsm.ExtentPages {
		t.Errorf("%d pages are copied, and %d are free", dsm.ExtentPages, had-now)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}

	m, a = heldOnDemand(t, size)
	for _, p := range []dsm.PageIndex{0, 7, 300} {
		if _, _, err := a.Install(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), p, fill(byte(p)|1), true); err != nil {
			t.Fatal(err)
		}
	}
	a.EndsWithDaemon()
	f, err := a.OpenWorking(true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range []dsm.PageIndex{0, 7, 300} {
		if w, b := a.Working(p)[5], a.Base(p)[5]; w != byte(p)|1 || b != w {
			t.Errorf("page %d has %d, its base %d", p, w, b)
		}
	}
	if !a.Hole(1) || !a.Hole(299) || a.Hole(7) {
		t.Error("holes are not where they were")
	}
}

// TestPageCacheOnDemand: the next daemon takes a page for one that the page cache may have if its memory says so, or if it was read past the end. After that it is not certain of the rest.
func TestPageCacheOnDemand(t *testing.T) {
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	for _, past := range []bool{false, true} {
		m, a := heldOnDemand(t, 2*dsm.PageSize)
		c := NewCached(a)
		c.SetWriters(true)
		if _, _, err := a.Install(k, 0, fill(1), true); err != nil {
			t.Fatal(err)
		}
		if past {
			c.Read(2*dsm.PageSize, make([]byte, dsm.PageSize))
		}
		if err := a.Resize(600 * dsm.PageSize); err != nil {
			t.Fatal(err)
		}
		c.Truncate(600 * dsm.PageSize)
		if _, _, err := a.Install(k, 300, fill(2), true); err != nil {
			t.Fatal(err)
		}
		a = onDemandAgain(t, m, 600*dsm.PageSize, 600*dsm.PageSize, nil)
		c = ResumeCached(a, true, math.MaxInt64)
		for p, want := range map[dsm.PageIndex]bool{0: true, 1: false, 2: past, 3: past, 299: past, 300: true, 301: past, 599: past} {
			if got := c.Given(int64(p)*dsm.PageSize, dsm.PageSize); got != want {
				t.Errorf("read past the end %v: page %d: given %v, want %v", past, p, got, want)
			}
		}
		if !past {
			if out := c.Drop(1, dsm.Range(44, 46)); out != dsm.Range(45, 46) {
				t.Errorf("of pages 300 and 301 the page cache has not %v", out)
			}
			continue
		}
		n, ok := c.NextNotice()
		for ; ok && (n.Off > 2*dsm.PageSize || 2*dsm.PageSize >= n.Off+n.Len); n, ok = c.NextNotice() {
			c.Done(n)
		}
		if !ok || n.Kind != NoticeInvalidate {
			t.Errorf("what was read past the end stays: %+v", n)
		}
	}
}

// TestOnDemandNoMore: an area on demand of an earlier daemon is truncated, and is not on demand any more. The ledger goes on.
func TestOnDemandNoMore(t *testing.T) {
	const size, grown = 4 * dsm.PageSize, 3 * dsm.ExtentSize
	m, a := heldOnDemand(t, size)
	if _, _, err := a.Install(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), 3, fill(1), true); err != nil {
		t.Fatal(err)
	}
	a = onDemandAgain(t, m, size, size, nil)
	c := ResumeCached(a, true, math.MaxInt64)
	c.BeforeShrink(0)
	if err := a.Resize(0); err != nil {
		t.Fatal(err)
	}
	c.Truncate(0)
	if err := a.SetDemand(false); err != nil {
		t.Fatal(err)
	}
	if err := a.Resize(grown); err != nil {
		t.Fatal(err)
	}
	c.Truncate(grown)
	if c.Read(2*dsm.ExtentSize, make([]byte, dsm.PageSize)); !c.Given(2*dsm.ExtentSize, 1) || c.Given(dsm.ExtentSize, 1) {
		t.Error("the page cache has others than the page that was read")
	}
	for n, ok := c.NextNotice(); ok; n, ok = c.NextNotice() {
		c.Done(n)
	}
}

// TestTruncatedOnDemand: of a page that was truncated, and of which it was not known what the page cache had, the next daemon finds neither memory nor bytes. The page cache may have it.
func TestTruncatedOnDemand(t *testing.T) {
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	const size = 4 * dsm.PageSize
	m, a := heldOnDemand(t, size)
	c := NewCached(a)
	c.SetWriters(true)
	if _, _, err := a.Install(k, 3, fill(1), true); err != nil {
		t.Fatal(err)
	}
	c.Read(3*dsm.PageSize, make([]byte, dsm.PageSize))
	a = onDemandAgain(t, m, size, size, nil)
	c = ResumeCached(a, true, dsm.PageSize)
	for _, next := range []int64{dsm.PageSize, size} {
		c.BeforeShrink(next)
		if err := a.Resize(next); err != nil {
			t.Fatal(err)
		}
		c.Truncate(next)
	}
	a = onDemandAgain(t, m, size, size, nil)
	c = ResumeCached(a, true, math.MaxInt64)
	if !c.Given(3*dsm.PageSize, dsm.PageSize) || !c.Refuses(3) {
		t.Errorf("given %v, refuses stores %v", c.Given(3*dsm.PageSize, dsm.PageSize), c.Refuses(3))
	}
	if c.Given(0, dsm.PageSize) {
		t.Error("the page cache may have page 0, which was certain")
	}
}
