package attach

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// givenArea is an area of two extents in which what is accumulated is counted.
type givenArea struct {
	idleArea
	took   atomic.Int64
	atCall func()         // before each piece is taken
	kept   []*wire.Shared // the pieces
}

func (*givenArea) Size() int64                                       { return 2 * dsm.ExtentSize }
func (*givenArea) MayAccumulate(context.Context, int64, int64) error { return nil }
func (*givenArea) AbandonRound(dsm.RoundID)                          {}
func (a *givenArea) Accumulate(_ context.Context, _ dsm.RoundID, _, n int64, piece func(at, size int64) (*wire.Shared, error)) error {
	for at := int64(0); at < n; at += dsm.ExtentSize {
		if a.atCall != nil {
			a.atCall()
		}
		p, err := piece(at, min(n-at, dsm.ExtentSize))
		if err != nil {
			return err
		}
		a.kept = append(a.kept, p)
		a.took.Add(int64(len(p.Bytes)))
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

func none(*testing.T) *os.File { return nil }

// filled returns a memfd all of which is there.
func filled(t *testing.T, size int64) *os.File {
	t.Helper()
	f := memory(t, size)
	if _, err := f.WriteAt(bytes.Repeat([]byte{1}, int(size)), 0); err != nil {
		t.Fatal(err)
	}
	return f
}

func sealed(t *testing.T, f *os.File, seals int) *os.File {
	t.Helper()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

// again opens a memfd once more.
func again(t *testing.T, f *os.File, how int) *os.File {
	t.Helper()
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), how, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// isMapped reports whether this process has mapped a memfd of memory.
func isMapped(t *testing.T) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(maps), "memfd:elements")
}

// check ends the round of an area: what was taken is there, and mapped if it is to be.
func (a *givenArea) check(t *testing.T, want bool) {
	t.Helper()
	if now := isMapped(t); now != want {
		t.Errorf("the memory is mapped: %t, want %t", now, want)
	}
	a.took.Load() // it was stored behind the last of these
	for _, p := range a.kept {
		if want && bytes.Count(p.Bytes, []byte{1}) != len(p.Bytes) {
			t.Error("the bytes are others")
		}
		p.Release()
	}
}

// TestMapped: memory stays mapped while it is used in each round, and while it is on its way.
func TestMapped(t *testing.T) {
	const n = 64 << 10
	c := conn{s: &Server{limits: defaultLimits}, user: &user{}}
	c.mu.Init("attach.conn")
	give := func(f *os.File, number uint64, n int64) *wire.Shared {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		s := c.mapped(f, &st, number, n)
		if s == nil || bytes.Count(s.Bytes[:n], []byte{1}) != int(n) {
			t.Fatalf("round %d: the bytes are others", number)
		}
		return s
	}
	first, second := filled(t, 2*n), filled(t, n)
	a, b := give(first, 1, n), give(second, 1, n)
	more := give(first, 3, n-8)
	if more != a {
		t.Error("it is mapped anew for the next round")
	}
	if larger := give(first, 3, 2*n); larger == a {
		t.Error("it is longer than before, and mapped as before")
	} else {
		larger.Release()
	}
	if give(second, 4, n) != b {
		t.Error("it was used in the round before the last, and is mapped anew")
	}
	b.Release()
	third := filled(t, n)
	for number := uint64(7); number < 9; number++ {
		give(third, number, n).Release()
	}
	if len(c.mu.mapped.list) != 1 {
		t.Errorf("%d files are mapped, want what was used last", len(c.mu.mapped.list))
	}
	c.unmapAll()
	a.Release()
	if !isMapped(t) {
		t.Error("what is on its way is not mapped any more")
	}
	more.Release()
	b.Release()
	if isMapped(t) {
		t.Error("something stays mapped")
	}
}

// TestMappedByAUser: the connections of a user together have so much mapped and no more, also of what is on its way.
func TestMappedByAUser(t *testing.T) {
	const n, most = 4 << 10, 3
	s, u := &Server{limits: limits{mapped: most}}, &user{}
	var conns [2]conn
	for i := range conns {
		conns[i].s, conns[i].user = s, u
		conns[i].mu.Init("attach.conn")
	}
	number := uint64(0)
	give := func(c *conn) *wire.Shared {
		t.Helper()
		f := filled(t, n)
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		number += 2
		return c.mapped(f, &st, number, n)
	}
	var sent []*wire.Shared
	for i := range most {
		if p := give(&conns[i%2]); p != nil {
			sent = append(sent, p)
		}
	}
	for i := range conns {
		if len(sent) != most || give(&conns[i]) != nil {
			t.Fatalf("%d are mapped, and another one", len(sent))
		}
		conns[i].unmapAll()
	}
	if give(&conns[0]) != nil {
		t.Error("what is on its way does not count")
	}
	for _, p := range sent {
		p.Release()
	}
	if p := give(&conns[0]); p == nil {
		t.Error("nothing is mapped any more")
	} else {
		p.Release()
	}
	conns[0].unmapAll()
	if u.mapped.Load() != 0 || isMapped(t) {
		t.Error("something stays mapped")
	}
}

// TestShrunkBeforeItIsSealed: memory that a program makes shorter, and seals then, while the daemon looks at it, is not mapped as long as it was.
func TestShrunkBeforeItIsSealed(t *testing.T) {
	const n = 64 << 10
	c := conn{s: &Server{limits: defaultLimits}, user: &user{}}
	c.mu.Init("attach.conn")
	shrunk := 0
	for i := range 5000 {
		f := filled(t, n)
		begin, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			<-begin
			err := f.Truncate(0)
			_, e := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
			ended <- errors.Join(err, e)
		}()
		close(begin)
		for range i % 200 { // it shrinks a bit earlier or later
		}
		g, err := c.newGiven(&request{file: f}, 1, n)
		if e := <-ended; e != nil {
			t.Fatal(e)
		}
		if err == nil && g.mapped != nil {
			shrunk++
		}
		if err == nil {
			g.close()
		}
		c.unmapAll()
		_ = f.Close()
	}
	if shrunk > 0 {
		t.Errorf("%d times memory is mapped that is not there", shrunk)
	}
}

// TestAccumulateFromBadMemory: whatever descriptor comes with an ACCUMULATE, and whatever becomes of it meanwhile, it is answered.
func TestAccumulateFromBadMemory(t *testing.T) {
	const n = 2 * dsm.ExtentSize
	for name, c := range map[string]struct {
		file   func(t *testing.T) *os.File
		packet string // what is in the packet
		length uint64
		shrunk bool // the memory shrinks while it is read
		mapped bool
		errno  unix.Errno
		text   string
		ends   bool // the connection, too
	}{
		"whole":             {file: func(t *testing.T) *os.File { return memory(t, n) }, length: n},
		"none":              {file: none, length: n, errno: unix.EINVAL, text: "no descriptor"},
		"packet":            {file: none, packet: "\x00\x00\x80\x3f", length: 4},
		"packet, too short": {file: none, packet: "\x00\x00\x80\x3f", length: 8, errno: unix.EINVAL, text: "4 bytes in place of 8"},
		"packet, too long":  {file: none, packet: "\x00\x00\x80\x3f", length: 2, errno: unix.EINVAL, text: "4 bytes in place of 2"},
		"short":             {file: func(t *testing.T) *os.File { return memory(t, n-1) }, length: n, errno: unix.EINVAL, text: "in memory of"},
		"empty":             {file: func(t *testing.T) *os.File { return memory(t, 0) }, length: 4, errno: unix.EINVAL, text: "in memory of 0"},
		"shrunk":            {file: func(t *testing.T) *os.File { return memory(t, n) }, length: n, shrunk: true, errno: unix.EINVAL, text: "became shorter meanwhile"},
		"endless":           {file: func(t *testing.T) *os.File { return memory(t, n) }, length: 1 << 63, errno: unix.EINVAL},
		"sealed": {file: func(t *testing.T) *os.File {
			return sealed(t, filled(t, n), unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL) // with F_SEAL_WRITE some kernels map nothing
		}, length: n, mapped: true},
		"sealed against shrinking": {file: func(t *testing.T) *os.File { return sealed(t, filled(t, n), unix.F_SEAL_SHRINK) }, length: n - 8, mapped: true},
		"sealed against the wrong": {file: func(t *testing.T) *os.File { return sealed(t, filled(t, n), unix.F_SEAL_GROW) }, length: n},
		"sealed with holes":        {file: func(t *testing.T) *os.File { return sealed(t, memory(t, n), unix.F_SEAL_SHRINK) }, length: n},
		"sealed, only for writing": {file: func(t *testing.T) *os.File {
			return again(t, sealed(t, filled(t, n), unix.F_SEAL_SHRINK), os.O_WRONLY)
		}, length: n, errno: unix.EINVAL, text: "cannot be read"},
		"only for writing": {file: func(t *testing.T) *os.File { return again(t, memory(t, n), os.O_WRONLY) }, length: n, errno: unix.EINVAL, text: "cannot be read"},
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
			if c.shrunk {
				area.atCall = func() {
					if err := f.Truncate(dsm.ExtentSize + 1); err != nil {
						t.Error(err)
					}
				}
			}
			m := &givenMount{area: area}
			t.Cleanup(func() { // runs after the server has closed: until then it starts more
				m.background.Wait()
				if isMapped(t) {
					t.Error("the memory stays mapped")
				}
			})
			p := listenForGroups(t, m)
			group := p.join()
			if h, text := p.call(header{op: opAttach, arg: [4]uint64{accessWrite}}, "/w"); h.errno != 0 {
				t.Fatal(text)
			}
			h, text := p.pass(header{op: opAccumulate, attachment: group, arg: [4]uint64{1, uint64(dsm.RootIno + 1), 0, c.length}}, c.packet, f)
			if h.errno != c.errno || !strings.Contains(text, c.text) {
				t.Errorf("%v, %q: want %v, %q", h.errno, text, c.errno, c.text)
			}
			if c.errno == 0 && area.took.Load() != int64(c.length) {
				t.Errorf("%d bytes were taken, want %d", area.took.Load(), c.length)
			}
			area.check(t, c.mapped)
			if _, err := p.Write((&header{op: opLeave, attachment: group}).encode(nil)); !c.ends && err != nil {
				t.Errorf("the connection has ended: %v", err)
			} else if !c.ends {
				p.answer()
			}
		})
	}
}

// pass calls with a payload and a descriptor.
func (p testProgram) pass(q header, payload string, f *os.File) (header, string) {
	p.t.Helper()
	var rights []byte
	if f != nil {
		rights = unix.UnixRights(int(f.Fd()))
	}
	if _, _, err := p.WriteMsgUnix(q.encode([]byte(payload)), rights, nil); err != nil {
		p.t.Fatal(err)
	}
	return p.answer()
}
