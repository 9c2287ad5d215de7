package uffd

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	var s Stores
	if err := m.Scan(&s); err != nil {
		a.t.Fatal(err)
	}
	return m
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

// expectTouched waits for the threads of the client.
func expectTouched(t testing.TB, c *client, done, faulted uint64) {
	t.Helper()
	if v := c.do("touched"); v != faulted<<32|done {
		t.Errorf("%d touched and %d got SIGBUS, want %d and %d", v&0xffffffff, v>>32, done, faulted)
	}
}

// track maps all of the area in the client and tracks it. The first scan, of all as
// suspect, is taken.
func (a *area) track(c *client, mode Mode) (*Range, uint64) {
	a.t.Helper()
	addr := c.mmap(a.size, 0)
	return a.trackAt(c, mode, addr, a.size, 0), addr
}

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

// expect scans and compares.
func expect(t testing.TB, r *Range, written, suspect string) {
	t.Helper()
	var s Stores
	if err := r.Scan(&s); err != nil {
		t.Fatal(err)
	}
	if got := text(s.Written); got != written {
		t.Errorf("written %q, want %q", got, written)
	}
	if got := text(s.Suspect); got != suspect {
		t.Errorf("suspect %q, want %q", got, suspect)
	}
	if err := r.Lost(); err != nil {
		t.Errorf("tracking is lost: %v", err)
	}
}

// modes runs a test in each mode that works here and tracks.
func modes(t *testing.T, f func(t *testing.T, mode Mode)) { inModes(t, f, Async, Sync) }

// missingModes runs a test in each mode that works here with Missing.
func missingModes(t *testing.T, f func(t *testing.T, mode Mode)) {
	needMissing(t)
	inModes(t, f, Async, Compare)
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
