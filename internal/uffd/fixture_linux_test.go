package uffd

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// area is a memfd.
type area struct {
	t    testing.TB
	fd   int
	size int64
	stat unix.Stat_t
}

func newArea(t testing.TB, pages int64) *area {
	t.Helper()
	a := &area{t: t, size: pages * int64(pageSize)}
	var err error
	if a.fd, err = unix.MemfdCreate("area", unix.MFD_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(a.fd) })
	if err := unix.Ftruncate(a.fd, a.size); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstat(a.fd, &a.stat); err != nil {
		t.Fatal(err)
	}
	return a
}

// punch takes n pages out.
func (a *area) punch(page, n int64) {
	a.t.Helper()
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := unix.Fallocate(a.fd, mode, page*int64(pageSize), n*int64(pageSize)); err != nil {
		a.t.Fatal(err)
	}
}

// config is what a client says of a mapping, with a new userfaultfd.
func (a *area) config(c *client, mode Mode, addr uint64, length, off int64) Config {
	a.t.Helper()
	return Config{
		UFFD: c.descriptor("uffd", 0), PidFD: c.pidfd(), Addr: addr, Length: uint64(length), Off: off,
		Dev: a.stat.Dev, Ino: a.stat.Ino, Mode: mode,
	}
}

// missing is a Range with Missing, and what is called.
type missing struct {
	*Range
	t     testing.TB
	fill  *Filler
	calls chan int64 // page numbers
}

// demand tracks a mapping of which pages can be missing. The first scan is taken.
func (a *area) demand(c *client, mode Mode, addr uint64, change func(*Config)) *missing {
	a.t.Helper()
	config := a.config(c, mode, addr, a.size, 0)
	m := &missing{t: a.t, calls: make(chan int64, 1<<16)}
	config.Memfd, config.Missing = a.fd, func(off int64) { m.calls <- off / int64(pageSize) }
	if change != nil {
		change(&config)
	}
	var err error
	if m.Range, err = Track(config); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		if err := m.Close(); err != nil {
			a.t.Error(err)
		}
	})
	if m.fill, err = NewFiller(a.fd, a.size); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = m.fill.Close() })
	scan(a.t, m.Range)
	return m
}

// serve fills the pages that are called for, each with its number plus one, until stop.
func (m *missing) serve() (stop func()) {
	var serving sync.WaitGroup
	done := make(chan struct{})
	serving.Go(func() {
		src := make([]byte, pageSize)
		for {
			select {
			case page := <-m.calls:
				binary.NativeEndian.PutUint64(src, uint64(page)+1)
				if _, err := m.fill.Fill(page*int64(pageSize), src); err != nil && !errs.Is(err, errs.Exist) {
					m.t.Error(err)
				}
				m.Wake(page*int64(pageSize), int64(pageSize))
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		serving.Wait()
	}
}

// poison poisons pages, and again when Missing is called, until stop is called. A thread that has found nothing in the page table, and is not in the
// kernel's queue yet, waits beside the poison: for the kernel it is nothing too (userfaultfd_must_wait).
func (m *missing) poison(off, n int64) (stop func()) {
	m.t.Helper()
	if err := m.Poison(off, n); err != nil {
		m.t.Fatal(err)
	}
	var serving sync.WaitGroup
	done := make(chan struct{})
	serving.Go(func() {
		for {
			select {
			case page := <-m.calls:
				if err := m.Poison(page*int64(pageSize), int64(pageSize)); err != nil {
					m.t.Error(err)
				}
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		serving.Wait()
	}
}

// called waits for a call and returns its page.
func (m *missing) called() int64 {
	m.t.Helper()
	select {
	case page := <-m.calls:
		return page
	case <-time.After(30 * time.Second):
		m.t.Fatal("Missing is not called")
		return 0
	}
}

// expectCall waits for a call, which must be for the page.
func (m *missing) expectCall(page int64) {
	m.t.Helper()
	if got := m.called(); got != page {
		m.t.Fatalf("called for page %d, want %d", got, page)
	}
}

// put fills a page with a word, which is the first of it, and wakes.
func (m *missing) put(page int64, value uint64) {
	m.t.Helper()
	m.putOnly(page, value)
	m.Wake(page*int64(pageSize), int64(pageSize))
}

func (m *missing) putOnly(page int64, value uint64) {
	m.t.Helper()
	src := make([]byte, pageSize)
	binary.NativeEndian.PutUint64(src, value)
	if n, err := m.fill.Fill(page*int64(pageSize), src); err != nil || n != len(src) {
		m.t.Fatal(n, err)
	}
}

// expectStored scans: these pages were stored to, which Compare cannot tell.
func (m *missing) expectStored(pages string) {
	m.t.Helper()
	if m.mode == Compare {
		expect(m.t, m.Range, "", pagesOf(0, m.length/int64(pageSize)))
	} else {
		expect(m.t, m.Range, pages, "")
	}
}

// newProgram returns a new area and a client that has all of it mapped.
func newProgram(t testing.TB, pages int64) (*area, *client) {
	t.Helper()
	a := newArea(t, pages)
	return a, a.program()
}

// program returns a new client that has all of the area mapped.
func (a *area) program() *client {
	a.t.Helper()
	c := newClient(a.t, a.fd)
	c.area, c.addr = a, c.mmap(a.size, 0)
	return c
}

// trackAt tracks a mapping. The first scan, of all as suspect, is taken.
func (a *area) trackAt(c *client, mode Mode, addr uint64, length, off int64) *Range {
	a.t.Helper()
	r, err := Track(a.config(c, mode, addr, length, off))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			a.t.Error(err)
		}
	})
	expect(a.t, r, "", pagesOf(off/int64(pageSize), length/int64(pageSize)))
	return r
}

func pagesOf(from, n int64) string { return fmt.Sprintf("[%d+%d]", from, n) }

// text writes runs in pages: "[0+1][7+2]".
func text(runs []Run) string {
	s := ""
	for _, r := range runs {
		s += pagesOf(r.Off/int64(pageSize), r.Len/int64(pageSize))
	}
	return s
}

// sorted is text in the order of offsets.
func sorted(runs []Run) string {
	runs = slices.Clone(runs)
	slices.SortFunc(runs, func(x, y Run) int { return cmp.Compare(x.Off, y.Off) })
	return text(runs)
}

func scan(t testing.TB, r *Range) (s Stores) {
	t.Helper()
	if err := r.Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// expect scans and compares.
func expect(t testing.TB, r *Range, written, suspect string) {
	t.Helper()
	s := scan(t, r)
	if got := text(s.Written); got != written {
		t.Errorf("written %q, want %q", got, written)
	}
	if got := text(s.Suspect); got != suspect {
		t.Errorf("suspect %q, want %q", got, suspect)
	}
	if err := r.Failure(); err != nil {
		t.Errorf("tracking has failed: %v", err)
	}
}

// modes runs a test in each mode that works here and tracks.
func modes(t *testing.T, f func(t *testing.T, mode Mode)) { inModes(t, f, Async, Sync) }

// missingModes runs a test in each mode that works here with Missing.
func missingModes(t *testing.T, f func(t *testing.T, mode Mode)) {
	needMissing(t)
	inModes(t, f, Async, Compare)
}

// trackModes is modes with a program whose mapping of a new area is tracked.
func trackModes(t *testing.T, pages int64, f func(t *testing.T, c *client, r *Range)) {
	modes(t, func(t *testing.T, mode Mode) {
		a, c := newProgram(t, pages)
		f(t, c, a.trackAt(c, mode, c.addr, a.size, 0))
	})
}

// demandModes is missingModes with a program in whose mapping of a new area all pages are missing.
func demandModes(t *testing.T, pages int64, f func(t *testing.T, c *client, m *missing)) {
	missingModes(t, func(t *testing.T, mode Mode) {
		a, c := newProgram(t, pages)
		f(t, c, a.demand(c, mode, c.addr, nil))
	})
}

func inModes(t *testing.T, f func(t *testing.T, mode Mode), modes ...Mode) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			if _, err := Choose(Probe(), mode.String()); err != nil {
				t.Skip(err)
			}
			f(t, mode)
		})
	}
}
