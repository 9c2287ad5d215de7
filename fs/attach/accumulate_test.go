package attach

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// givenArea is an area of two extents in which what is accumulated is counted.
type givenArea struct {
	idleArea
	took   atomic.Int64
	atCall func() // before the first bytes are taken
}

func (*givenArea) Size() int64                                       { return 2 * dsm.ExtentSize }
func (*givenArea) MayAccumulate(context.Context, int64, int64) error { return nil }
func (*givenArea) AbandonRound(dsm.RoundID)                          {}
func (a *givenArea) Accumulate(_ context.Context, _ dsm.RoundID, _, n int64, read func(p []byte, at int64) error) error {
	for at := int64(0); at < n; at += dsm.ExtentSize {
		if a.atCall != nil {
			a.atCall()
		}
		p := make([]byte, min(n-at, dsm.ExtentSize))
		if err := read(p, at); err != nil {
			return err
		}
		a.took.Add(int64(len(p)))
	}
	return nil
}

type givenMount struct {
	openMount
	area *givenArea
}

func (m *givenMount) Open(context.Context, dsm.Ino, bool) (Area, error) { return m.area, nil }

// memory returns a memfd.
func memory(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("elements", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "elements")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestAccumulateFromBadMemory: whatever descriptor comes with an ACCUMULATE, and whatever becomes of it meanwhile, it is answered.
func TestAccumulateFromBadMemory(t *testing.T) {
	const n = 2 * dsm.ExtentSize
	for name, c := range map[string]struct {
		file   func(t *testing.T) *os.File
		length uint64
		cut    bool // the memory is cut off while it is read
		errno  unix.Errno
		text   string
		ends   bool // the connection, too
	}{
		"whole":   {file: func(t *testing.T) *os.File { return memory(t, n) }, length: n},
		"none":    {file: func(*testing.T) *os.File { return nil }, length: n, errno: unix.EINVAL, text: "no descriptor"},
		"short":   {file: func(t *testing.T) *os.File { return memory(t, n-1) }, length: n, errno: unix.EINVAL, text: "in memory of"},
		"empty":   {file: func(t *testing.T) *os.File { return memory(t, 0) }, length: 4, errno: unix.EINVAL, text: "in memory of 0"},
		"cut":     {file: func(t *testing.T) *os.File { return memory(t, n) }, length: n, cut: true, errno: unix.EINVAL, text: "cut off meanwhile"},
		"endless": {file: func(t *testing.T) *os.File { return memory(t, n) }, length: 1 << 63, errno: unix.EINVAL},
		"sealed": {file: func(t *testing.T) *os.File {
			f := memory(t, n)
			if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL); err != nil {
				t.Fatal(err)
			}
			return f
		}, length: n},
		"only for writing": {file: func(t *testing.T) *os.File {
			f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", memory(t, n).Fd()), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}, length: n, errno: unix.EINVAL, text: "cannot be read"},
		"a pipe": {file: func(t *testing.T) *os.File {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { w.Close() })
			return r
		}, length: n, errno: unix.EINVAL, text: "no memory", ends: true},
		"a file": {file: func(t *testing.T) *os.File {
			f, err := os.Open("/proc/self/comm")
			if err != nil {
				t.Fatal(err)
			}
			return f
		}, length: n, errno: unix.EINVAL, text: "no memory", ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			area := new(givenArea)
			f := c.file(t)
			if f != nil {
				defer f.Close()
			}
			if c.cut {
				area.atCall = func() {
					if err := f.Truncate(dsm.ExtentSize + 1); err != nil {
						t.Error(err)
					}
				}
			}
			m := &givenMount{area: area}
			t.Cleanup(m.background.Wait) // runs after the server has closed: until then it starts more
			p := listenForGroups(t, m)
			group := p.join()
			if h, text := p.call(header{op: opAttach, arg: [4]uint64{accessWrite}}, "/w"); h.errno != 0 {
				t.Fatal(text)
			}
			h, text := p.pass(header{op: opAccumulate, attachment: group, arg: [4]uint64{1, uint64(dsm.RootIno + 1), 0, c.length}}, f)
			if h.errno != c.errno || !strings.Contains(text, c.text) {
				t.Errorf("%v, %q: want %v, %q", h.errno, text, c.errno, c.text)
			}
			if c.errno == 0 && area.took.Load() != int64(c.length) {
				t.Errorf("%d bytes were taken, want %d", area.took.Load(), c.length)
			}
			if _, err := p.Write((&header{op: opLeave, attachment: group}).encode(nil)); !c.ends && err != nil {
				t.Errorf("the connection has ended: %v", err)
			} else if !c.ends {
				p.answer()
			}
		})
	}
}

// pass calls with a descriptor.
func (p testProgram) pass(q header, f *os.File) (header, string) {
	p.t.Helper()
	var rights []byte
	if f != nil {
		rights = unix.UnixRights(int(f.Fd()))
	}
	if _, _, err := p.WriteMsgUnix(q.encode(nil), rights, nil); err != nil {
		p.t.Fatal(err)
	}
	return p.answer()
}
