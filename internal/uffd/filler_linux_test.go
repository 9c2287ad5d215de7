package uffd

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

func newFiller(t testing.TB, a *area, length int64) *Filler {
	t.Helper()
	needMissing(t)
	f, err := NewFiller(a.fd, length)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// pattern is n pages, each full of its number from first on.
func pattern(first byte, n int) []byte {
	var p []byte
	for i := range n {
		p = append(p, bytes.Repeat([]byte{first + byte(i)}, int(pageSize))...)
	}
	return p
}

func (a *area) expectBytes(off int64, want []byte) {
	a.t.Helper()
	got := make([]byte, len(want))
	if _, err := unix.Pread(a.fd, got, off); err != nil {
		a.t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		a.t.Error("other bytes in pages ", differing(got, want), " from offset ", off)
	}
}

func TestFill(t *testing.T) {
	a := newArea(t, 64)
	f := newFiller(t, a, a.size)
	page := int64(pageSize)
	if n, err := f.Fill(10*page, pattern(1, 1)); n != int(page) || err != nil {
		t.Fatal(n, err)
	}
	// It stops before the page that is there.
	if n, err := f.Fill(8*page, pattern(8, 4)); n != int(2*page) || !errs.Is(err, errs.Exist) {
		t.Error(n, err)
	}
	if n, err := f.Fill(10*page, pattern(9, 1)); n != 0 || !errs.Is(err, errs.Exist) {
		t.Error(n, err)
	}
	a.expectBytes(7*page, append(append(make([]byte, page), pattern(8, 2)...), append(pattern(1, 1), make([]byte, page)...)...))
	// A page that came without it, and one that left.
	if _, err := unix.Pwrite(a.fd, []byte{1}, 20*page); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Fill(20*page, pattern(1, 1)); n != 0 || !errs.Is(err, errs.Exist) {
		t.Error(n, err)
	}
	a.punch(10, 1)
	if n, err := f.Fill(10*page, pattern(3, 2)); n != int(2*page) || err != nil {
		t.Error(n, err)
	}
	a.expectBytes(10*page, pattern(3, 2))
	// A source on a stack.
	var onStack [4096]byte
	onStack[0] = 5
	if n, err := f.Fill(30*page, onStack[:page]); n != int(page) || err != nil {
		t.Error(n, err)
	}
	a.expectBytes(30*page, onStack[:page])
}

func TestFillRefuses(t *testing.T) {
	a := newArea(t, 64)
	f := newFiller(t, a, 32*int64(pageSize))
	page := int64(pageSize)
	for _, tt := range []struct{ off, n int64 }{{1, page}, {0, page - 1}, {-page, page}, {31 * page, 2 * page}, {32 * page, page}, {1 << 62, page}} {
		if n, err := f.Fill(tt.off, make([]byte, tt.n)); n != 0 || !errs.Is(err, errs.Invalid) {
			t.Errorf("%+v: %d, %v", tt, n, err)
		}
	}
	if n, err := f.Fill(31*page, pattern(1, 1)); n != int(page) || err != nil {
		t.Error(n, err)
	}
	if n, err := f.Fill(page, nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	// It may be longer than the memfd, which grows later.
	if err := f.Resize(128 * page); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Fill(63*page, pattern(1, 2)); n != int(page) || !errs.Is(err, errs.Invalid) {
		t.Error(n, err)
	}
	if err := unix.Ftruncate(a.fd, 128*page); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Fill(64*page, pattern(2, 2)); n != int(2*page) || err != nil {
		t.Error(n, err)
	}
	a.expectBytes(63*page, pattern(1, 3))
	for _, length := range []int64{-page, 1, 1 << 62} {
		if err := f.Resize(length); !errs.Is(err, errs.Invalid) {
			t.Error(length, err)
		}
	}
	if n, err := f.Fill(70*page, pattern(2, 1)); n != int(page) || err != nil {
		t.Error("after a Resize that failed: ", n, err)
	}
	if err := f.Resize(0); err != nil {
		t.Error(err)
	}
	if _, err := f.Fill(0, pattern(1, 1)); !errs.Is(err, errs.Invalid) {
		t.Error(err)
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.Fill(0, pattern(1, 1)); !errs.Is(err, errs.Closed) {
		t.Error(err)
	}
	if err := f.Resize(page); !errs.Is(err, errs.Closed) {
		t.Error(err)
	}
	if _, err := NewFiller(1<<20, page); !errs.Is(err, errs.Invalid) {
		t.Error(err)
	}
	readonly, err := reopen(Config{Memfd: a.fd, Dev: a.stat.Dev, Ino: a.stat.Ino})
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(readonly)
	if _, err := NewFiller(readonly, page); !errs.Is(err, errs.Invalid) {
		t.Error(err)
	}
}

// TestFillRace fills the same pages from several goroutines while the Filler is resized: each
// page is filled once and whole.
func TestFillRace(t *testing.T) {
	const pages = 512
	a := newArea(t, pages)
	f := newFiller(t, a, a.size)
	var filled atomic.Int64
	var done sync.WaitGroup
	for g := range 4 {
		done.Go(func() {
			for page := range int64(pages) {
				n, err := f.Fill(page*int64(pageSize), pattern(byte(g), 1))
				if err != nil && !errs.Is(err, errs.Exist) {
					t.Error(err)
				}
				filled.Add(int64(n))
			}
		})
	}
	for i := range int64(20) {
		if err := f.Resize(a.size + i*int64(pageSize)); err != nil {
			t.Error(err)
		}
	}
	done.Wait()
	if filled.Load() != a.size {
		t.Error("filled ", filled.Load())
	}
	got := make([]byte, a.size)
	if _, err := unix.Pread(a.fd, got, 0); err != nil {
		t.Fatal(err)
	}
	for page := 0; page < len(got); page += int(pageSize) {
		if p := got[page:][:pageSize]; !bytes.Equal(p, bytes.Repeat(p[:1], len(p))) {
			t.Error("page ", page/int(pageSize), " is mixed")
		}
	}
}

func TestFillerLeavesNothing(t *testing.T) {
	needMissing(t)
	a := newArea(t, 8)
	before := descriptors(t)
	for _, fd := range []int{a.fd, 1 << 20} {
		f, err := NewFiller(fd, a.size)
		if (err == nil) != (fd == a.fd) {
			t.Fatal(err)
		}
		if err == nil {
			err = f.Close()
		}
		if fd == a.fd && err != nil {
			t.Error(err)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func BenchmarkFill(b *testing.B) {
	for _, run := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(run), func(b *testing.B) {
			const pages = 16384
			a := newArea(b, pages)
			f := newFiller(b, a, a.size)
			src := pattern(1, run)
			page := 0
			for b.Loop() {
				if page+run > pages {
					b.StopTimer()
					a.punch(0, pages)
					page = 0
					b.StartTimer()
				}
				if _, err := f.Fill(int64(page)*int64(pageSize), src); err != nil {
					b.Fatal(err)
				}
				page += run
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(run), "ns/page")
		})
	}
}
