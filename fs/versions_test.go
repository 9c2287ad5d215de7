package fs

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// versioned makes an empty versioned file.
func (f *fixture) versioned(c *client, name string) *fakeArea {
	f.t.Helper()
	f.file(c, name, nil)
	c.must(clientCall{Op: "setxattr", Path: f.path(name), To: "user.dsm.mode", Data: []byte("versioned")})
	i, err := f.names.Lookup(f.t.Context(), dsm.RootIno, name)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.areas.area(i.Area())
}

// of returns n bytes that tell of which version they are.
func of(version byte, n int) []byte { return bytes.Repeat([]byte{version}, n) }

// TestOneReadIsOneVersion publishes versions between the pieces of reads: what a program reads from one end to the other is one version, what it
// reads anew is the newest one.
func TestOneReadIsOneVersion(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	a := f.versioned(c, "w")
	fd := c.open(f.path("w"), syscall.O_RDONLY)
	read := func(off int64, n int) []byte {
		t.Helper()
		return c.must(clientCall{Op: "pread", FD: fd, Off: off, Len: n}).Data
	}
	const size = 3 << 20
	c.must(clientCall{Op: "truncate", Path: f.path("w"), Off: size})
	a.version(0, make([]byte, size))
	if got := read(0, 100); !bytes.Equal(got, make([]byte, 100)) {
		t.Errorf("before the first publish: %x", got)
	}
	a.version(1, of(1, size))
	if got := read(100, 10); !bytes.Equal(got, make([]byte, 10)) {
		t.Errorf("what follows on nothing is %x", got)
	}
	if got := read(100, size); !bytes.Equal(got, of(1, size-100)) {
		t.Errorf("%d bytes", len(got))
	}
	if got := read(0, 1000); !bytes.Equal(got, of(1, 1000)) {
		t.Errorf("%x", got[:1])
	}
	for v := byte(2); v < 6; v++ {
		a.version(dsm.Version(v), of(v, size+1))
	}
	if got := read(1000, size); !bytes.Equal(got, of(1, size-1000)) {
		t.Errorf("the rest of version 1 is %d bytes, of version %d", len(got), got[0])
	}
	if got := read(size, 10); len(got) != 0 {
		t.Errorf("after the end of version 1 came %x", got)
	}
	if got := read(size, 10); !bytes.Equal(got, of(5, 1)) {
		t.Errorf("there %x, want what the newest version has more", got)
	}
	c.must(clientCall{Op: "close", FD: fd})
	if !a.await(clientTimeout, func() bool { return a.opens == 0 }) || a.pins() != 0 {
		t.Errorf("%d pins of a closed file", a.pins())
	}

	// A mapping shows the bytes of now.
	fd = c.open(f.path("w"), syscall.O_RDONLY)
	m := int(c.must(clientCall{Op: "mmap", FD: fd, Len: 4096, Flag: unix.PROT_READ}).N)
	a.update(func() { a.fitLocked(); a.data[0] = 77 })
	if got := c.must(clientCall{Op: "load", FD: m, Len: 1}).Data; got[0] != 77 {
		t.Errorf("mapped: %d", got[0])
	}
	if got := read(0, 1); got[0] != 5 {
		t.Errorf("read with a mapping: %d, want version 5", got[0])
	}
	live := c.open(f.path("w"), syscall.O_RDWR) // a program that stores reads what it has stored
	if got := c.must(clientCall{Op: "pread", FD: live, Len: 1}).Data; got[0] != 77 {
		t.Errorf("read by a descriptor for writing: %d", got[0])
	}
	c.must(clientCall{Op: "close", FD: live})
	c.must(clientCall{Op: "munmap", FD: m})
	c.must(clientCall{Op: "close", FD: fd})
}

// TestModeChangesUnderAHandle: a handle for reading that was opened while the file was versioned reads the file as it is now.
func TestModeChangesUnderAHandle(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	a := f.versioned(c, "w")
	fd := c.open(f.path("w"), syscall.O_RDONLY)
	c.must(clientCall{Op: "truncate", Path: f.path("w"), Off: 2})
	a.version(1, of(1, 2))
	if got := c.must(clientCall{Op: "pread", FD: fd, Len: 1}).Data; !bytes.Equal(got, of(1, 1)) {
		t.Errorf("of version 1: %x", got)
	}
	c.must(clientCall{Op: "truncate", Path: f.path("w"), Off: 0})
	c.must(clientCall{Op: "setxattr", Path: f.path("w"), To: "user.dsm.mode", Data: []byte("relaxed")})
	w := c.open(f.path("w"), syscall.O_WRONLY)
	c.must(clientCall{Op: "pwrite", FD: w, Data: of(9, 4)})
	for off := range int64(2) { // where the handle would go on, and elsewhere
		if got := c.must(clientCall{Op: "pread", FD: fd, Off: off, Len: 1}).Data; !bytes.Equal(got, of(9, 1)) {
			t.Errorf("relaxed, at %d: %x", off, got)
		}
	}
	c.must(clientCall{Op: "close", FD: w})
	c.must(clientCall{Op: "close", FD: fd})
	if !a.await(clientTimeout, func() bool { return a.opens == 0 }) || a.pins() != 0 {
		t.Errorf("%d pins of a closed file", a.pins())
	}
}

// TestStreamsAreIdle: what nobody goes on to read costs nothing after a while. Who goes on later gets the same version, or an error.
func TestStreamsAreIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := newFakeAreas(nil)
		a := plane.area(1)
		open := newOpenArea(1)
		open.mu.area = a
		h := newFileHandle(open, false)
		h.streams = newStreams(h.sweep)
		a.version(1, of(1, 100))
		p := make([]byte, 10)
		want := func(tid uint32, off int64, v byte) {
			t.Helper()
			if n, err := h.readWhole(context.Background(), tid, p, off); n != 10 || err != nil || p[0] != v {
				t.Errorf("thread %d at %d: %d bytes of version %d, %v; want version %d", tid, off, n, p[0], err, v)
			}
		}
		want(7, 0, 1)
		a.version(2, of(2, 100))
		want(8, 0, 2)
		want(7, 10, 1)
		want(8, 10, 2)
		if a.pins() != 2 {
			t.Errorf("%d pins", a.pins())
		}
		time.Sleep(streamIdle * 2)
		synctest.Wait()
		if a.pins() != 0 {
			t.Errorf("%d pins for threads that do not read", a.pins())
		}
		want(7, 20, 1)
		time.Sleep(streamIdle * 2)
		a.version(3, of(3, 100))
		if n, err := h.readWhole(context.Background(), 7, p, 30); !errs.Is(err, errs.Dropped) {
			t.Errorf("%d, %v: want that version 1 is dropped", n, err)
		}
		want(7, 30, 3) // it has been told
		want(7, 0, 3)
		want(8, 20, 2)
		a.version(4, of(4, 100))
		want(9, 30, 2) // another thread goes on
		want(8, 40, 2)
		want(9, 30, 4)
		h.endStreams()
		if a.pins() != 0 {
			t.Errorf("%d pins of a closed file", a.pins())
		}
	})
}

// TestForgottenVersions: what the kernel has forgotten takes no memory.
func TestForgottenVersions(t *testing.T) {
	b := newBridge(Config{Log: slog.New(slog.DiscardHandler)})
	i := dsm.Inode{Ino: dsm.RootIno + 1}
	n := b.versions.tell(i, VersionInfo{Version: 7, Size: 5})
	if again := b.versions.tell(i, VersionInfo{Version: 7, Size: 5}); again != n {
		t.Errorf("told again it is %d, first it was %d", again, n)
	}
	node := control.VersionFile(n).ID()
	b.Forget(node, 1)
	if f, err := b.versions.find(node); err != nil || f.size != 5 {
		t.Errorf("the kernel knows it, and it has %d bytes, %v", f.size, err)
	}
	b.Forget(node, 1)
	if len(b.versions.mu.files)+len(b.versions.mu.byArea) != 0 {
		t.Errorf("%d files, %d versions are left", len(b.versions.mu.files), len(b.versions.mu.byArea))
	}
	if next := b.versions.tell(i, VersionInfo{Version: 7}); next == n {
		t.Error("a number is used twice")
	}
}

// TestVersionFiles reads, maps and lists versions by number.
func TestVersionFiles(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	a := f.versioned(c, "w")
	const size = 2<<20 + 5
	at := func(v dsm.Version) string { return f.path(".dsm", "areas", "w", "versions", fmt.Sprint(v)) }
	list := func() []string {
		return c.must(clientCall{Op: "readdir", Path: f.path(".dsm", "areas", "w", "versions")}).Names
	}
	if got := list(); len(got) != 0 {
		t.Errorf("before the first publish there is %q", got)
	}
	v1, v2 := dsm.VersionAt(time.Unix(1e9, 0)), dsm.VersionAt(time.Unix(2e9, 0))
	a.version(v1, of(1, size))
	a.version(v2, of(2, size+1))
	if got, want := list(), []string{fmt.Sprint(v1), fmt.Sprint(v2)}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := string(c.must(clientCall{Op: "readfile", Path: f.path(".dsm", "areas", "w", "history")}).Data), fmt.Sprintf(
		"%d time=1000000000.000000 size=%d writer=two\n%d time=2000000000.000000 size=%d writer=two\n", v1, size, v2, size+1); got != want {
		t.Errorf("history is %q, want %q", got, want)
	}
	s1, s2 := c.must(clientCall{Op: "stat", Path: at(v1)}).Stat, c.must(clientCall{Op: "stat", Path: at(v2)}).Stat
	if s1.Ino == s2.Ino || s1.Size != size || s2.Size != size+1 || s1.Mtim.Sec != 1e9 || s1.Mode != syscall.S_IFREG|0o444 {
		t.Errorf("%+v, %+v", s1, s2)
	}
	fd := c.open(at(v1), syscall.O_RDONLY)
	m := int(c.must(clientCall{Op: "mmap", FD: fd, Len: size, Flag: unix.PROT_READ}).N)
	if got := c.must(clientCall{Op: "load", FD: m, Len: 5000}).Data; !bytes.Equal(got, of(1, 5000)) {
		t.Error("the first pages are not of version 1")
	}
	for v := byte(3); v < 6; v++ {
		a.version(v2+dsm.Version(v), of(v, size))
	}
	if got := c.must(clientCall{Op: "load", FD: m, Len: size}).Data; !bytes.Equal(got, of(1, size)) {
		t.Error("the mapping is not of version 1")
	}
	if got := c.must(clientCall{Op: "pread", FD: fd, Len: size + 10}).Data; !bytes.Equal(got, of(1, size)) {
		t.Error("the file is not version 1")
	}
	c.must(clientCall{Op: "close", FD: fd}) // the mapping still has it
	if got := c.must(clientCall{Op: "readfile", Path: at(v1)}).Data; !bytes.Equal(got, of(1, size)) {
		t.Error("opened again, it is another")
	}
	c.wantErrno(syscall.ESTALE, clientCall{Op: "stat", Path: at(v2)})
	c.wantErrno(syscall.ESTALE, clientCall{Op: "readfile", Path: at(v2)})
	f.wantLog("level=WARN", "the oldest is "+fmt.Sprint(v1))
	c.wantErrno(syscall.ENOENT, clientCall{Op: "readfile", Path: at(v2 + 10)})
	c.wantErrno(syscall.ENOENT, clientCall{Op: "readfile", Path: f.path(".dsm", "areas", "w", "versions", "0"+fmt.Sprint(v1))})
	c.wantErrno(syscall.EACCES, clientCall{Op: "open", Path: at(v1), Flag: syscall.O_RDWR})
	c.wantErrno(syscall.EPERM, clientCall{Op: "truncate", Path: at(v1), Off: 1})
	c.must(clientCall{Op: "munmap", FD: m})
	if !a.await(clientTimeout, func() bool { return a.opens == 0 }) || a.pins() != 0 {
		t.Errorf("%d opens, %d pins, when nobody has it", a.state().opens, a.pins())
	}
	c.wantErrno(syscall.ESTALE, clientCall{Op: "readfile", Path: at(v1)})
}

// TestOwner moves an area by its control file and its attribute.
func TestOwner(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.versioned(c, "w")
	f.file(c, "r", nil)
	owner := func(want string) {
		t.Helper()
		if got := string(c.must(clientCall{Op: "readfile", Path: f.path(".dsm", "areas", "w", "owner")}).Data); got != want+"\n" {
			t.Errorf("the owner is %q, want %s", got, want)
		}
		if got := string(c.must(clientCall{Op: "getxattr", Path: f.path("w"), To: "user.dsm.owner"}).Data); got != want {
			t.Errorf("user.dsm.owner is %q, want %s", got, want)
		}
	}
	write := func(value string) clientCall {
		return clientCall{Op: "writefile", Path: f.path(".dsm", "areas", "w", "owner"), Data: []byte(value)}
	}
	owner("-")
	c.must(write("here\n"))
	owner("one")
	c.must(write("two\n"))
	owner("two")
	c.wantErrno(syscall.EINVAL, write("three\n"))
	f.wantLog("level=WARN", "want here, or one of one two")
	c.must(clientCall{Op: "setxattr", Path: f.path("w"), To: "user.dsm.owner", Data: []byte("one")})
	owner("one")
	if got := c.must(clientCall{Op: "readfile", Path: f.path(".dsm", "areas", "r", "owner")}).Data; len(got) > 0 {
		t.Errorf("a relaxed area has the owner %q", got)
	}
	c.wantErrno(syscall.EINVAL, clientCall{Op: "writefile", Path: f.path(".dsm", "areas", "r", "owner"), Data: []byte("here\n")})
	f.wantLog("level=WARN", "only a versioned area has an owner")
	c.wantErrno(syscall.ENODATA, clientCall{Op: "getxattr", Path: f.path("r"), To: "user.dsm.owner"})
}
