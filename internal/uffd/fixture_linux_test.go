package uffd

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

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

// modes runs a test in each mode that works here.
func modes(t *testing.T, f func(t *testing.T, mode Mode)) {
	for _, mode := range []Mode{Async, Sync} {
		t.Run(mode.String(), func(t *testing.T) {
			if _, err := Choose(Probe(), mode.String()); err != nil {
				t.Skip(err)
			}
			f(t, mode)
		})
	}
}
