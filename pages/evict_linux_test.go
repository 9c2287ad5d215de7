package pages

import (
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages/merge"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// evict evicts pages of extent 0, of which those of stored stay.
func evict(t testing.TB, a *Area, set dsm.PageSet, shared bool, stored dsm.PageSet) {
	t.Helper()
	if got, err := a.Evict(merge.Kernel{}, 0, set, shared); err != nil || got != stored {
		t.Fatalf("evict %x, shared %v: %x stay, want %x (%v)", set, shared, got, stored, err)
	}
}

// TestEvict: clean pages go, with base and twin; what was stored to stays, and so does what is the home's.
func TestEvict(t *testing.T) {
	for _, homed := range []bool{false, true} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("homed %v, shared %v", homed, shared), func(t *testing.T) {
				a := newTestDemandArea(t, dsm.ExtentSize+100)
				if err := a.Attachable(); err != nil && shared {
					t.Skip(err)
				}
				all := make([]byte, dsm.ExtentSize)
				for i := range dsm.ExtentPages {
					all[i*dsm.PageSize+i] = byte(i)
				}
				if homed {
					a.BecomeHome(0)
					for p := range dsm.PageIndex(dsm.ExtentPages) {
						if p > 0 {
							a.InstallHome(p, all[p*dsm.PageSize:][:dsm.PageSize], false)
						}
					}
				}
				install(t, a, 0, all)
				home := dsm.PageSet{}
				if homed {
					home = dsm.Range(1, 256)
					a.BeforeHomeWrite(9, false)
					a.Home(9)[1]++
				}
				stored := dsm.PageSet{}
				if shared { // else nobody can
					a.Working(0)[7] = 1
					a.Working(9)[7] = 1
					a.Working(200)[200] = 0
					stored = dsm.Range(0, 1).Or(dsm.Range(9, 10)).Or(dsm.Range(200, 201))
				}
				set := dsm.Range(0, 100).Or(dsm.Range(150, 256))
				evict(t, a, set, shared, stored)
				left := dsm.AllPages.Minus(set).Or(stored)
				wantResident(t, "working copy", a.working, left)
				want := left.And(dsm.Range(1, 256)).Or(home)
				wantResident(t, "base copy", a.base, want) // of page 0 it has zeroes
				if got := a.HasTwin(9); got != (homed && shared) {
					t.Errorf("twin %v", got)
				}
				if shared && (a.Working(0)[7] != 1 || a.Working(9)[7] != 1 || a.Working(9)[9] != 9 || a.Working(200)[200] != 0) {
					t.Error("a store is lost")
				}
				install(t, a, 1, all[dsm.PageSize:][:8*dsm.PageSize])
				pagetest.WantPage(t, "a page that came again", a.Working(7), all[7*dsm.PageSize:][:dsm.PageSize])
			})
		}
	}
}

// TestEvictLastPage: what programs store past the end keeps nothing here.
func TestEvictLastPage(t *testing.T) {
	a := newTestDemandArea(t, 2*dsm.PageSize+100)
	if err := a.Attachable(); err != nil {
		t.Skip(err)
	}
	opened(t, a)
	install(t, a, 2, append(pagetest.PageOf(1)[:100:100], make([]byte, dsm.PageSize-100)...))
	a.Working(2)[100] = 1
	evict(t, a, dsm.Range(2, 9), true, dsm.PageSet{})
	wantResident(t, "working copy", a.working, dsm.PageSet{})
	install(t, a, 2, pagetest.PageOf(0))
	a.Working(2)[99] = 1
	evict(t, a, dsm.Range(2, 3), true, dsm.Range(2, 3))
}

// TestEvictPunched: a program that gave a page back has stored zeroes.
func TestEvictPunched(t *testing.T) {
	a := newTestDemandArea(t, 4*dsm.PageSize)
	if err := a.Attachable(); err != nil {
		t.Skip(err)
	}
	opened(t, a)
	install(t, a, 0, pagetest.PageOf(1))
	install(t, a, 1, pagetest.PageOf(0))
	if err := a.working.zero(0, 2*dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	evict(t, a, dsm.Range(0, 2), true, dsm.Range(0, 1))
	pagetest.WantPage(t, "working", a.Working(0), pagetest.PageOf(0))
	wantResident(t, "working copy", a.working, dsm.Range(0, 1))
}

// TestKeepBase: when another node has become the home, the base of what is not here goes.
func TestKeepBase(t *testing.T) {
	a := newTestDemandArea(t, dsm.ExtentSize)
	a.BecomeHome(0)
	for p := range dsm.PageIndex(6) {
		a.InstallHome(p, pagetest.PageOf(byte(p+1)), false)
	}
	install(t, a, 2, a.Home(2))
	install(t, a, 3, a.Home(3))
	a.BeforeHomeWrite(3, false)
	a.Home(3)[0] = 77
	a.ResignHome(0)
	if err := a.KeepBase(0, dsm.Range(2, 4)); err != nil {
		t.Fatal(err)
	}
	wantResident(t, "base copy", a.base, dsm.Range(2, 4))
	pagetest.WantPage(t, "base", a.Base(2), pagetest.PageOf(3))
	pagetest.WantPage(t, "base", a.Base(3), pagetest.PageOf(4))
	evict(t, a, dsm.Range(2, 4), true, dsm.PageSet{})
	wantResident(t, "base copy", a.base, dsm.PageSet{})
}

// TestEvictSmallPipe: where the pipe takes less than the run it goes in pieces.
func TestEvictSmallPipe(t *testing.T) {
	v, err := newEvictor()
	if err != nil {
		t.Fatal(err)
	}
	size, err := unix.FcntlInt(uintptr(v.w), unix.F_SETPIPE_SZ, 8*dsm.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	v.room = size / dsm.PageSize
	for len(idleEvictors) > 0 {
		if err := (<-idleEvictors).close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.put(); err != nil {
		t.Fatal(err)
	}
	a := newTestDemandArea(t, dsm.ExtentSize)
	if err := a.Attachable(); err != nil {
		t.Skip(err)
	}
	install(t, a, 0, make([]byte, dsm.ExtentSize))
	a.Working(30)[0] = 1
	evict(t, a, dsm.Range(1, 250), true, dsm.Range(30, 31))
	wantResident(t, "working copy", a.working, dsm.Range(0, 1).Or(dsm.Range(30, 31)).Or(dsm.Range(250, 256)))
	if v = <-idleEvictors; v.room != 8 {
		t.Errorf("another evictor was used, with room for %d pages", v.room)
	}
	if err := v.close(); err != nil {
		t.Fatal(err)
	}
}

// TestEvictHugePage: pages that a program has made a huge page of stay, all bytes of them.
func TestEvictHugePage(t *testing.T) {
	a := newTestDemandArea(t, 4*dsm.ExtentSize)
	if err := a.Attachable(); err != nil {
		t.Skip(err)
	}
	for e := range dsm.PageIndex(4) {
		install(t, a, e*dsm.ExtentPages, make([]byte, dsm.ExtentSize))
	}
	// A huge page is mapped at an address that is a multiple of its size.
	room, err := unix.MmapPtr(-1, 0, nil, 2*blockBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.MunmapPtr(room, 2*blockBytes); err != nil {
			t.Error(err)
		}
	}()
	at := unsafe.Add(room, -uintptr(room)%blockBytes)
	if _, err := unix.MmapPtr(a.working.fd, 0, at, blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		t.Fatal(err)
	}
	mem := unsafe.Slice((*byte)(at), blockBytes)
	if err := unix.Madvise(mem, unix.MADV_COLLAPSE); err != nil {
		t.Skip("no huge page to be had: ", err)
	}
	mem[5*dsm.PageSize]++
	if stored, err := a.Evict(merge.Kernel{}, 0, dsm.Range(3, 9), true); !errs.Is(err, errs.Busy) || stored != dsm.Range(3, 9) {
		t.Errorf("%x stay: %v", stored, err)
	}
	if mem[5*dsm.PageSize] != 1 {
		t.Error("a store is lost")
	}
	if stored, err := a.Evict(merge.Kernel{}, 2, dsm.Range(3, 9), true); err != nil || stored != (dsm.PageSet{}) {
		t.Errorf("of small pages beside it %x stay: %v", stored, err)
	}
	// What is left of a huge page can be of large pages, too.
	for e, set := range []dsm.PageSet{dsm.Range(17, 23), dsm.Range(100, 101)} {
		if stored, err := a.Evict(merge.Kernel{}, dsm.ExtentIndex(e), set, false); err != nil || stored != (dsm.PageSet{}) {
			t.Fatalf("%x stay: %v", stored, err)
		}
	}
	for i := range mem {
		mem[i] = 5
	}
	for e := range dsm.ExtentIndex(2) {
		for i := range dsm.ExtentPages {
			set := dsm.Range(i, i+1)
			if stored, err := a.Evict(merge.Kernel{}, e, set, true); stored != set {
				t.Fatalf("page %d of extent %d is gone, %v", i, e, err)
			}
			pagetest.WantPage(t, "page", a.working.page(pageOfExtent(e, i)), pagetest.PageOf(5))
		}
	}
}

// BenchmarkEvict takes pages out and puts them back, in runs.
func BenchmarkEvict(b *testing.B) {
	all := make([]byte, dsm.ExtentSize)
	for _, shared := range []bool{false, true} {
		for _, run := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("shared=%v/run=%d", shared, run), func(b *testing.B) {
				a := newTestDemandArea(b, 4*dsm.ExtentSize)
				if err := a.Attachable(); err != nil && shared {
					b.Skip(err)
				}
				mem, err := unix.Mmap(a.working.fd, 0, dsm.ExtentSize, unix.PROT_READ, unix.MAP_SHARED)
				if err != nil {
					b.Fatal(err)
				}
				defer unix.Munmap(mem)
				for e := 0; b.Loop(); e = (e + 1) % 4 {
					b.StopTimer()
					install(b, a, dsm.PageIndex(e)*dsm.ExtentPages, all[:run*dsm.PageSize])
					sum := byte(0)
					for i := 0; i < run && e == 0; i++ {
						sum += mem[i*dsm.PageSize] // a program has it mapped
					}
					b.StartTimer()
					if _, err := a.Evict(merge.Kernel{}, dsm.ExtentIndex(e), dsm.Range(0, run), shared); err != nil {
						b.Fatal(sum, err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*run), "ns/page")
			})
		}
	}
}

// BenchmarkInstall fills holes.
func BenchmarkInstall(b *testing.B) {
	all := make([]byte, dsm.ExtentSize)
	for i := range all {
		all[i] = byte(i)
	}
	for _, run := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("run=%d", run), func(b *testing.B) {
			a := newTestDemandArea(b, dsm.ExtentSize)
			for b.Loop() {
				install(b, a, 0, all[:run*dsm.PageSize])
				b.StopTimer()
				if _, err := a.Evict(merge.Kernel{}, 0, dsm.Range(0, run), false); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*run), "ns/page")
		})
	}
}
