package pages

import (
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages/merge"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

func newTestDemandArea(t testing.TB, size int64) *Area {
	t.Helper()
	return openTestArea(t, NewDemandArea, size)
}

// install puts a page in place that is not here.
func install(t testing.TB, a *Area, p dsm.PageIndex, n []byte) {
	t.Helper()
	_, i := p.Extent()
	here, stored, err := a.Install(merge.Kernel{}, p, n, true)
	if err != nil || here != dsm.Range(i, i+len(n)/dsm.PageSize) || !stored.Empty() {
		t.Fatalf("install of %d bytes at page %d: %x here, %x stored, %v", len(n), p, here, stored, err)
	}
}

// resident fails the test unless exactly the pages of the set are here, in the copy.
func wantResident(t testing.TB, what string, c *areaCopy, want dsm.PageSet) {
	t.Helper()
	var got dsm.PageSet
	if err := c.data(0, c.len, func(off, n int64) {
		got = got.Or(dsm.Range(int(off/dsm.PageSize), int((off+n)/dsm.PageSize)))
	}); err != nil || got != want {
		t.Fatalf("%s: pages %x take memory, want %x (%v)", what, got, want, err)
	}
}

// TestInstall: pages and their base appear, zeroes too; nothing else does.
func TestInstall(t *testing.T) {
	a := newTestDemandArea(t, 20*dsm.PageSize)
	if err := a.Attachable(); err != nil {
		t.Skip(err)
	}
	if !a.InstallsAtOnce() {
		t.Error("it waits for somebody")
	}
	wantResident(t, "working copy", a.working, dsm.PageSet{})
	install(t, a, 3, slices.Concat(pagetest.PageOf(1), pagetest.PageOf(0), pagetest.PageOf(2)))
	wantResident(t, "working copy", a.working, dsm.Range(3, 6))
	for i, b := range []byte{1, 0, 2} {
		pagetest.WantPage(t, "working", a.Working(dsm.PageIndex(3+i)), pagetest.PageOf(b))
		if b > 0 {
			pagetest.WantPage(t, "base", a.Base(dsm.PageIndex(3+i)), pagetest.PageOf(b))
		}
	}
	wantResident(t, "base copy", a.base, dsm.Range(3, 4).Or(dsm.Range(5, 6)))
	a.BecomeHome(0)
	a.InstallHome(7, pagetest.PageOf(7), false)
	install(t, a, 7, a.Home(7))
	install(t, a, 8, pagetest.PageOf(0))
	pagetest.WantPage(t, "base", a.Base(7), pagetest.PageOf(7))
	if a.HasTwin(7) || a.HasTwin(8) || a.base.has(8, 9) {
		t.Error("a page that is the home's has a twin, or one of zeroes memory")
	}
	install(t, a, 9, pagetest.PageOf(9)) // older or newer than the home's
	pagetest.WantPage(t, "base", a.Base(9), pagetest.PageOf(9))
	pagetest.WantPage(t, "home", a.Home(9), pagetest.PageOf(0))
}

// TestInstallOnPlanted: what a program stored where nothing should be is merged.
func TestInstallOnPlanted(t *testing.T) {
	a := newTestDemandArea(t, 20*dsm.PageSize)
	if err := a.Attachable(); err != nil {
		t.Skip(err)
	}
	a.working.page(4)[5] = 1 // stored
	clear(a.working.page(5)) // only there
	k := mustKernel(t, dsm.MergeSum, dsm.DTypeU8, 0)
	here, stored, err := a.Install(k, 3, slices.Concat(pagetest.PageOf(1), pagetest.PageOf(2), pagetest.PageOf(3), pagetest.PageOf(4)), true)
	if err != nil || here != dsm.Range(3, 7) || stored != dsm.Range(4, 5) {
		t.Fatalf("%x here, %x stored, %v", here, stored, err)
	}
	for i := range 4 {
		want := pagetest.PageOf(byte(i + 1))
		pagetest.WantPage(t, "base", a.Base(dsm.PageIndex(3+i)), want)
		if i == 1 {
			want[5]++
		}
		pagetest.WantPage(t, "working", a.Working(dsm.PageIndex(3+i)), want)
	}
}

// TestResizeKeepsHoles: growing and shrinking touch no page.
func TestResizeKeepsHoles(t *testing.T) {
	a := newTestDemandArea(t, 3*dsm.PageSize+100)
	resize(t, a, 5*dsm.PageSize+7)
	resize(t, a, 3<<20+9)
	resize(t, a, 2*dsm.PageSize+50)
	resize(t, a, 2*dsm.PageSize+90)
	wantResident(t, "working copy", a.working, dsm.PageSet{})
	wantResident(t, "base copy", a.base, dsm.PageSet{})
	resize(t, a, 3<<20)
	install(t, a, dsm.ExtentPages*2+7, pagetest.PageOf(3))
	if n, err := a.ResidentBytes(); err != nil || n != 2*dsm.PageSize {
		t.Errorf("%d bytes for a page and its base (%v)", n, err)
	}
	copy(a.Working(dsm.ExtentPages*2 + 7)[90:], "stored past the end")
	resize(t, a, (dsm.ExtentPages*2+7)*dsm.PageSize+90)
	copy(a.Working(dsm.ExtentPages*2 + 7)[90:], "stored past the end")
	resize(t, a, 3<<20)
	pagetest.WantPage(t, "the tail", a.Working(dsm.ExtentPages*2 + 7)[90:], make([]byte, dsm.PageSize-90))
}

// TestWithoutUserfaultfd: the page-cache plane works.
func TestWithoutUserfaultfd(t *testing.T) {
	a := openTestArea(t, func(id dsm.AreaID, size int64) (*Area, error) {
		return newArea(id, size, &demand{none: errs.E(errs.Unsupported, "", "none")}, nil)
	}, 9*dsm.PageSize)
	if !errs.Is(a.Attachable(), errs.Unsupported) || newTestArea(t, 1).Attachable() != nil {
		t.Error("the wrong kind can be attached")
	}
	inFile := Area{working: &areaCopy{fd: 1}, demand: a.demand} // as the next daemon may find it
	if !a.InstallsAtOnce() || inFile.InstallsAtOnce() {
		t.Error("it says the wrong thing of who may have the lock of the file")
	}
	install(t, a, 3, slices.Concat(pagetest.PageOf(0), pagetest.PageOf(1)))
	wantResident(t, "working copy", a.working, dsm.Range(3, 5))
	pagetest.WantPage(t, "base", a.Base(4), pagetest.PageOf(1))
	if stored, err := a.Evict(merge.Kernel{}, 0, dsm.Range(3, 5), true); !errs.Is(err, errs.Unsupported) || stored != dsm.Range(3, 5) {
		t.Errorf("%x stay: %v", stored, err)
	}
	evict(t, a, dsm.Range(3, 5), false, dsm.PageSet{})
}

// TestInstallZeroes: zeroes become the base also where the base copy has something else, and take memory nowhere else.
func TestInstallZeroes(t *testing.T) {
	a := newTestDemandArea(t, 20*dsm.PageSize)
	if err := a.Attachable(); err != nil {
		t.Skip(err)
	}
	a.BecomeHome(0)
	for _, p := range []dsm.PageIndex{4, 7} {
		a.InstallHome(p, pagetest.PageOf(9), false)
	}
	install(t, a, 2, make([]byte, 8*dsm.PageSize))
	wantResident(t, "base copy", a.base, dsm.Range(4, 5).Or(dsm.Range(7, 8)))
	for p := range dsm.PageIndex(8) {
		pagetest.WantPage(t, "base", a.Base(2+p), pagetest.PageOf(0))
	}
}
