package pages

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages/merge"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

func newTestArea(t testing.TB, size int64) *Area {
	t.Helper()
	return openTestArea(t, NewArea, size)
}

// openTestArea makes an area that ends with the test.
func openTestArea(t testing.TB, newArea func(dsm.AreaID, int64) (*Area, error), size int64) *Area {
	t.Helper()
	a, err := newArea(42, size)
	if err == nil {
		err = a.BeginReplica()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// opened makes the working copy a memfd, as for a program that has it.
func opened(t testing.TB, a *Area) {
	t.Helper()
	f, err := a.OpenWorking(true)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCloseUnmaps(t *testing.T) {
	a := newTestArea(t, 1)
	mapped := func(name string) bool {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(maps), name)
	}
	resize(t, a, 5<<20)
	if !mapped("dsmfs:42:w") {
		t.Error("the working copy has another name")
	}
	if err := a.Close(); err != nil || mapped("dsmfs:42:") {
		t.Errorf("still mapped after Close (%v)", err)
	}
}

func resize(t testing.TB, a *Area, size int64) {
	t.Helper()
	if err := a.Resize(size); err != nil {
		t.Fatal(err)
	}
	if a.Size() != size {
		t.Fatalf("size is %d, want %d", a.Size(), size)
	}
}

func mustKernel(t testing.TB, rule dsm.MergeRule, dt dsm.DType, head int64) merge.Kernel {
	t.Helper()
	k, err := merge.KernelFor(rule, dsm.Layout{DType: dt, DataOffset: head})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestShrinkAndGrowReadsZero(t *testing.T) {
	a := newTestArea(t, 10*dsm.PageSize)
	a.BecomeHome(0)
	for p := range dsm.PageIndex(10) {
		copy(a.Working(p), pagetest.PageOf(1))
		a.SetBase(p, pagetest.PageOf(2))
		a.InstallHome(p, pagetest.PageOf(3), true)
	}
	resize(t, a, 4*dsm.PageSize+100)
	if got, want := twinBytes(a), int64(5*dsm.PageSize); got != want {
		t.Errorf("twins take %d bytes, want %d", got, want)
	}
	resize(t, a, 3<<20) // past the mapping's length
	for p := range dsm.PageIndex(3 << 20 / dsm.PageSize) {
		w, h, b := pagetest.PageOf(1), pagetest.PageOf(3), pagetest.PageOf(2)
		switch {
		case p == 4:
			clear(w[100:])
			clear(h[100:])
			clear(b[100:])
		case p > 4:
			w, h, b = pagetest.PageOf(0), pagetest.PageOf(0), pagetest.PageOf(0)
		}
		pagetest.WantPage(t, "working", a.Working(p), w)
		pagetest.WantPage(t, "base", a.Base(p), b)
		if p < dsm.ExtentPages {
			pagetest.WantPage(t, "home", a.Home(p), h)
		}
	}
}

func TestReadWorking(t *testing.T) {
	a := newTestArea(t, dsm.PageSize+10)
	copy(a.Working(0), pagetest.PageOf(1))
	a.Working(1)[9] = 7
	for _, c := range []struct {
		off  int64
		n    int
		want int
	}{{0, 100, 100}, {dsm.PageSize, 100, 10}, {dsm.PageSize + 9, 1, 1}, {dsm.PageSize + 10, 1, 0}, {1 << 40, 1, 0}, {0, 1 << 20, dsm.PageSize + 10}} {
		dst := make([]byte, c.n)
		if got := a.ReadWorking(dst, c.off); got != c.want {
			t.Errorf("%d bytes at %d: read %d, want %d", c.n, c.off, got, c.want)
		}
		if c.want > 0 && dst[c.want-1] == 0 {
			t.Errorf("%d bytes at %d: the last is missing", c.n, c.off)
		}
	}
}

func TestResizeRefuses(t *testing.T) {
	a := newTestArea(t, 5)
	for _, size := range []int64{-1, dsm.MaxAreaSize + 1} {
		if err := a.Resize(size); !errs.Is(err, errs.TooLarge) {
			t.Errorf("size %d: %v", size, err)
		}
	}
	resize(t, a, 0)
	resize(t, a, 1<<30) // takes no memory
	if n, err := a.ResidentBytes(); err != nil || n != 0 {
		t.Errorf("an area that nobody touched takes %d bytes (%v)", n, err)
	}
	a.Working(1000)[0] = 1
	if n, err := a.ResidentBytes(); err != nil || n < dsm.PageSize {
		t.Errorf("an area with one page takes %d bytes (%v)", n, err)
	}
	resize(t, a, dsm.PageSize)
	if n, err := a.ResidentBytes(); err != nil || n != 0 {
		t.Errorf("a truncated area takes %d bytes (%v)", n, err)
	}
}

// twinModel is what base.go promises, kept as three plain copies.
type twinModel struct {
	homed      bool
	base, home []byte
}

// TestTwins does random operations on a few pages beside the model.
func TestTwins(t *testing.T) {
	rng := pagetest.Rand(t)
	const n = 5
	a := newTestArea(t, n*dsm.PageSize)
	var m [n]twinModel
	for i := range m {
		m[i] = twinModel{base: pagetest.PageOf(0), home: pagetest.PageOf(0)}
	}
	for range 5000 {
		i, b := rng.IntN(n), pagetest.PageOf(byte(rng.IntN(3)))
		p, own := dsm.PageIndex(i), rng.IntN(3) > 0
		x := &m[i]
		switch op := rng.IntN(5); {
		case op == 0:
			a.SetBase(p, b)
			x.base = b
			if !x.homed {
				x.home = b
			}
		case op == 1 && x.homed:
			a.SetBase(p, a.Home(p))
			x.base = append([]byte(nil), x.home...)
		case op == 2 && x.homed:
			follows := own && string(x.base) == string(x.home) // with a twin of the same bytes it need not
			if rode := a.BeforeHomeWrite(p, own); rode && !follows {
				t.Fatalf("the base of page %d follows, and was not the home's value", p)
			} else if rode {
				x.base = b
			}
			copy(a.Home(p), b)
			x.home = b
		case op == 3 && x.homed:
			a.InstallHome(p, b, true)
			x.home = b
		case op == 4 && rng.IntN(20) == 0:
			homed := x.homed
			if homed {
				a.ResignHome(0)
			} else {
				a.BecomeHome(0)
			}
			for i := range m {
				m[i].homed = !homed
				m[i].home = m[i].base
			}
		}
		twins := int64(0)
		for i := range m {
			p := dsm.PageIndex(i)
			pagetest.WantPage(t, "base", a.Base(p), m[i].base)
			if _, ok := a.twins[p]; ok {
				twins++
			}
			if a.Homed(0) {
				pagetest.WantPage(t, "home", a.Home(p), m[i].home)
			}
		}
		if twinBytes(a) != twins*dsm.PageSize || !a.Homed(0) && twins != 0 {
			t.Fatalf("%d twins of %d bytes, homed %v", twins, twinBytes(a), a.Homed(0))
		}
	}
}

func TestHomeElsewherePanics(t *testing.T) {
	a := newTestArea(t, dsm.PageSize)
	defer func() {
		if recover() == nil {
			t.Error("Home of an extent that is homed elsewhere")
		}
	}()
	a.Home(0)
}

func TestFrames(t *testing.T) {
	rng := pagetest.Rand(t)
	var f frames
	var used []frame
	for range 20000 {
		if rng.IntN(1000) == 0 {
			for _, x := range used {
				f.put(x)
			}
			used = used[:0]
		}
		if len(used) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(used))
			if used[i].mem[0] != used[i].i {
				t.Fatal("a frame is used twice")
			}
			f.put(used[i])
			used[i] = used[len(used)-1]
			used = used[:len(used)-1]
			continue
		}
		for range 1 + rng.IntN(2) {
			x := f.take()
			x.mem[0] = x.i
			used = append(used, x)
		}
		if f.bytes() != int64(len(used))*dsm.PageSize || f.idle > 1 || len(f.all) > 1+len(used) {
			t.Fatalf("%d frames used: %d bytes, %d idle slabs of %d", len(used), f.bytes(), f.idle, len(f.all))
		}
	}
	f.close()
	if f.take().mem == nil {
		t.Error("closed frames are not ready again")
	}
	f.close()
}

// twinBytes returns the memory that twins take.
func twinBytes(a *Area) int64 { return int64(len(a.twins)) * dsm.PageSize }

// TestForgetOneByOne: to forget the extents of an empty copy one by one took a look at all that follow, each time: 17 s for 100 GiB. Those at the
// beginning take as long as those at the end.
func TestForgetOneByOne(t *testing.T) {
	const extents = 100_000
	a := newTestArea(t, extents*dsm.ExtentSize)
	for e := dsm.ExtentIndex(0); e < extents; e += groupExtents {
		a.base.page(pageOfExtent(e, 0))[0] = 1
		if err := a.Forget(e); err != nil {
			t.Fatal(err)
		}
	}
	least := map[dsm.ExtentIndex]time.Duration{0: time.Hour, extents - 1: time.Hour}
	for range 100 {
		for e := range least {
			began := time.Now()
			if err := a.Forget(e); err != nil {
				t.Fatal(err)
			}
			least[e] = min(least[e], time.Since(began))
		}
	}
	if least[0] > 10*least[extents-1] {
		t.Errorf("the first extent takes %v, the last one %v", least[0], least[extents-1])
	}
}
