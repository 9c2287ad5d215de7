package fs

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"golang.org/x/sys/unix"
)

func TestWriteGrowsOnlyPastTheEnd(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	fd := c.open(f.path("w"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	c.must(clientCall{Op: "ftruncate", FD: fd, Off: 100})
	before := f.names.count("SetAttr")
	for off := range int64(5) {
		c.must(clientCall{Op: "pwrite", FD: fd, Off: off * 20, Data: bytes.Repeat([]byte("a"), 20)})
	}
	if n := f.names.count("SetAttr") - before; n != 0 {
		t.Errorf("%d changes of the catalog for writes inside the file", n)
	}
	c.must(clientCall{Op: "pwrite", FD: fd, Off: 95, Data: bytes.Repeat([]byte("b"), 10)})
	st := c.must(clientCall{Op: "fstat", FD: fd}).Stat
	if st.Size != 105 {
		t.Errorf("size %d", st.Size)
	}
	if got := string(c.must(clientCall{Op: "pread", FD: fd, Off: 90, Len: 100}).Data); got != "aaaaabbbbbbbbbb" {
		t.Errorf("read %q", got)
	}
	if r := c.must(clientCall{Op: "pread", FD: fd, Off: 200, Len: 10}); len(r.Data) != 0 {
		t.Errorf("%d bytes past the end", len(r.Data))
	}
}

// TestRefusedWrite: a write(2) that the data plane refuses, as it does where a type is missing, leaves the file as it was.
func TestRefusedWrite(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	for name, flags := range map[string]int{"written": 0, "appended": unix.O_APPEND, "past-the-page-cache": unix.O_DIRECT} {
		fd := c.open(f.path(name), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|flags)
		f.areas.area(dsm.AreaID(f.names.inoOf(name))).untyped.Store(true)
		c.wantErrno(syscall.EINVAL, clientCall{Op: "pwrite", FD: fd, Data: []byte("hi")})
		if st := c.must(clientCall{Op: "fstat", FD: fd}).Stat; st.Size != 0 {
			t.Errorf("%s: the file has %d bytes", name, st.Size)
		}
	}
}

// TestRefusedGrowth: a file for which the data plane has no room stays as it is, however a program would make it longer.
func TestRefusedGrowth(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	for name, flags := range map[string]int{"written": 0, "appended": unix.O_APPEND, "past-the-page-cache": unix.O_DIRECT} {
		fd := c.open(f.path(name), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|flags)
		c.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("held")})
		f.areas.area(dsm.AreaID(f.names.inoOf(name))).most.Store(6)
		c.wantErrno(syscall.ENOSPC, clientCall{Op: "pwrite", FD: fd, Off: 4, Data: []byte("past")})
		c.wantErrno(syscall.ENOSPC, clientCall{Op: "ftruncate", FD: fd, Off: 7})
		if st := c.must(clientCall{Op: "fstat", FD: fd}).Stat; st.Size != 4 {
			t.Errorf("%s: the file has %d bytes", name, st.Size)
		}
		c.must(clientCall{Op: "ftruncate", FD: fd, Off: 6})
		if got := string(c.must(clientCall{Op: "pread", FD: fd, Len: 10}).Data); got != "held\x00\x00" {
			t.Errorf("%s: read %q", name, got)
		}
	}
}

// TestWriteAfterTruncateElsewhere: the size that this node knew is not believed
// after it changed elsewhere.
func TestWriteAfterTruncateElsewhere(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.file(c, "w", bytes.Repeat([]byte("x"), 100))
	fd := c.open(f.path("w"), unix.O_RDWR)
	f.names.resizeElsewhere(f.names.inoOf("w"), 0)
	c.must(clientCall{Op: "pwrite", FD: fd, Off: 10, Data: []byte("hello")})
	if got := string(c.must(clientCall{Op: "readfile", Path: f.path("w")}).Data); got != strings.Repeat("\x00", 10)+"hello" {
		t.Errorf("read %q", got)
	}
}

func TestSizeOverTheBudget(t *testing.T) {
	f := mountTest(t)
	f.names.setBudget(1 << 20)
	c := startClient(t)
	fd := c.open(f.path("w"), unix.O_RDWR|unix.O_CREAT)
	c.wantErrno(syscall.ENOSPC, clientCall{Op: "ftruncate", FD: fd, Off: 2 << 20})
	c.wantErrno(syscall.ENOSPC, clientCall{Op: "pwrite", FD: fd, Off: 2 << 20, Data: []byte("x")})
	c.wantErrno(syscall.ENOSPC, clientCall{Op: "fallocate", FD: fd, Off: 1 << 20, Len: 1})
	c.wantErrno(syscall.EFBIG, clientCall{Op: "ftruncate", FD: fd, Off: dsm.MaxAreaSize + 1})

	c.must(clientCall{Op: "ftruncate", FD: fd, Off: 1 << 20})
	st := c.must(clientCall{Op: "statfs", Path: f.mnt}).Statfs
	if st.Bsize != 4096 || st.Blocks != 256 || st.Bfree != 0 || st.Bavail != 0 || st.Type != unix.FUSE_SUPER_MAGIC || st.Namelen != 255 {
		t.Errorf("%+v", st)
	}

	// A file that was just removed gives its memory back at once.
	for range 20 {
		c.must(clientCall{Op: "unlink", Path: f.path("w")})
		c.must(clientCall{Op: "close", FD: fd})
		fd = c.open(f.path("w"), unix.O_RDWR|unix.O_CREAT)
		c.must(clientCall{Op: "ftruncate", FD: fd, Off: 1 << 20})
	}
}

func TestUnlinkedFileLivesWhileOpen(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	a := f.file(c, "w", []byte("data"))
	ino := f.names.inoOf("w")
	fd, m := f.mapFile(c, "w", 4)
	c.must(clientCall{Op: "unlink", Path: f.path("w")})
	c.must(clientCall{Op: "close", FD: fd})
	c.must(clientCall{Op: "store", FD: m, Data: []byte("DATA")})
	c.must(clientCall{Op: "msync", FD: m})
	if !a.await(clientTimeout, func() bool { return string(a.published) == "DATA" }) {
		t.Error("store to an unlinked file lost")
	}
	c.must(clientCall{Op: "munmap", FD: m})
	eventually(t, "the inode is gone", func() bool {
		f.names.mu.Lock()
		defer f.names.mu.Unlock()
		return f.names.nodes[ino] == nil
	})
	c.wantErrno(syscall.ENOENT, clientCall{Op: "stat", Path: f.path("w")})
}

// TestClaimOncePerArea: the first open claims, the last close lets go, and what is reopened meanwhile stays claimed.
func TestClaimOncePerArea(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.file(c, "w", []byte("x"))
	ino := f.names.inoOf("w")
	eventually(t, "let go", func() bool { return !f.names.claimed(ino) })
	for range 200 {
		fd := c.open(f.path("w"), unix.O_RDWR)
		if !f.names.claimed(ino) {
			t.Fatal("open and not claimed")
		}
		fd2 := c.open(f.path("w"), unix.O_RDONLY)
		c.must(clientCall{Op: "close", FD: fd})
		c.must(clientCall{Op: "close", FD: fd2})
	}
	eventually(t, "let go", func() bool { return !f.names.claimed(ino) })
	a := f.areas.area(dsm.AreaID(ino))
	if s := a.state(); s.opens != 0 || s.writers != 0 {
		t.Errorf("%d handles, %d writers left in the data plane", s.opens, s.writers)
	}
}

// TestUnclaimIsTriedAgain: a catalog that does not answer at the last close does
// not keep the claim for good.
func TestUnclaimIsTriedAgain(t *testing.T) {
	f := mountTest(t, func(c *Config) { c.FaultTimeout = 50 * time.Millisecond })
	c := startClient(t)
	f.names.failWith("Unclaim", errs.E(errs.Timeout, "fake", ""))
	f.file(c, "w", []byte("x"))
	ino := f.names.inoOf("w")
	eventually(t, "tried twice", func() bool { return f.names.count("Unclaim") >= 2 })
	f.names.failWith("Unclaim", nil)
	eventually(t, "let go", func() bool { return !f.names.claimed(ino) })
}

func TestClosePublishes(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", []byte("written"))
	if got := a.state().published; got != "written" { // close(2) has returned
		t.Errorf("published %q at close", got)
	}
	a.update(func() { a.syncErr = syscall.ENOLINK })
	fd := c.open(f.path("w"), unix.O_RDWR)
	c.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("W")})
	c.wantErrno(syscall.ENOLINK, clientCall{Op: "close", FD: fd})
	a.update(func() {
		a.syncErr = nil
		if a.lasts != 2 {
			t.Errorf("of two closes %d do not wait again for homes that a sync has waited for", a.lasts)
		}
	})

	n := a.state().publishes
	fd = c.open(f.path("w"), unix.O_RDONLY)
	c.must(clientCall{Op: "close", FD: fd})
	if a.state().publishes > n+1 { // the release of the writer may still publish
		t.Error("a reader's close publishes")
	}
}

func TestRenameFlags(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.file(c, "a", []byte("a"))
	f.file(c, "b", []byte("b"))
	a, b := f.path("a"), f.path("b")
	c.wantErrno(syscall.EEXIST, clientCall{Op: "rename", Path: a, To: b, Flag: unix.RENAME_NOREPLACE})
	c.must(clientCall{Op: "rename", Path: a, To: b, Flag: unix.RENAME_EXCHANGE})
	if got := string(c.must(clientCall{Op: "readfile", Path: a}).Data); got != "b" {
		t.Errorf("a has %q after the exchange", got)
	}
	c.wantErrno(syscall.EINVAL, clientCall{Op: "rename", Path: a, To: b, Flag: unix.RENAME_WHITEOUT})
	c.must(clientCall{Op: "rename", Path: a, To: b})
	c.wantErrno(syscall.ENOENT, clientCall{Op: "rename", Path: a, To: b})
}

// TestNamesChangedElsewhere: no name and no attribute is remembered.
func TestNamesChangedElsewhere(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.file(c, "w", []byte("x"))
	ctx := t.Context()
	c.must(clientCall{Op: "stat", Path: f.path("w")})
	if err := f.names.Rename(ctx, dsm.RootIno, "w", dsm.RootIno, "v", dsm.RenameReplace, 0); err != nil {
		t.Fatal(err)
	}
	c.wantErrno(syscall.ENOENT, clientCall{Op: "stat", Path: f.path("w")})
	c.must(clientCall{Op: "stat", Path: f.path("v")})
	perm := uint32(0o600)
	if _, err := f.names.SetAttr(ctx, f.names.inoOf("v"), dsm.SetAttr{Perm: &perm}); err != nil {
		t.Fatal(err)
	}
	if got := c.must(clientCall{Op: "stat", Path: f.path("v")}).Stat.Mode; got != syscall.S_IFREG|0o600 {
		t.Errorf("mode %o", got)
	}
	if err := f.names.Unlink(ctx, dsm.RootIno, "v"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.names.Create(ctx, dsm.RootIno, "v", dsm.Inode{Kind: dsm.KindDir, Perm: 0o755}, false); err != nil {
		t.Fatal(err)
	}
	if got := c.must(clientCall{Op: "stat", Path: f.path("v")}).Stat.Mode; got != syscall.S_IFDIR|0o755 {
		t.Errorf("mode %o", got)
	}
}

func TestWhatIsRefused(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.file(c, "w", []byte("x"))
	w, n := f.path("w"), f.path("n")
	for _, kind := range []uint32{syscall.S_IFIFO, syscall.S_IFSOCK, syscall.S_IFCHR, syscall.S_IFBLK} {
		c.wantErrno(syscall.EPERM, clientCall{Op: "mknod", Path: n, Mode: kind | 0o644})
	}
	c.must(clientCall{Op: "mknod", Path: n, Mode: syscall.S_IFREG | 0o644})
	c.wantErrno(syscall.EEXIST, clientCall{Op: "open", Path: w, Flag: unix.O_CREAT | unix.O_EXCL})
	c.wantErrno(syscall.ENAMETOOLONG, clientCall{Op: "mkdir", Path: f.path(strings.Repeat("x", 256))})
	c.wantErrno(syscall.ENAMETOOLONG, clientCall{Op: "stat", Path: f.path(strings.Repeat("x", 256))})
	fd := c.open(w, unix.O_RDWR)
	c.wantErrno(syscall.EOPNOTSUPP, clientCall{Op: "fallocate", FD: fd, Flag: unix.FALLOC_FL_COLLAPSE_RANGE, Len: 4096})
	c.wantErrno(syscall.EOPNOTSUPP, clientCall{Op: "fallocate", FD: fd, Flag: unix.FALLOC_FL_ZERO_RANGE, Len: 4096})
}

func TestPunchHole(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	f.file(c, "w", bytes.Repeat([]byte("x"), 3*dsm.PageSize))
	fd, m := f.mapFile(c, "w", 3*dsm.PageSize)
	c.must(clientCall{Op: "store", FD: m, Off: 5000, Data: []byte("dirty")})
	c.must(clientCall{Op: "fallocate", FD: fd, Flag: unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, Off: 100, Len: 2 * dsm.PageSize})
	c.must(clientCall{Op: "fallocate", FD: fd, Flag: unix.FALLOC_FL_KEEP_SIZE, Off: 0, Len: 1 << 20})
	want := slices.Concat(bytes.Repeat([]byte("x"), 100), make([]byte, 2*dsm.PageSize), bytes.Repeat([]byte("x"), dsm.PageSize-100))
	if got := c.must(clientCall{Op: "load", FD: m, Len: 3 * dsm.PageSize}).Data; !bytes.Equal(got, want) {
		t.Error("the mapping is not zero where the hole is, or elsewhere")
	}
	if got := c.must(clientCall{Op: "fstat", FD: fd}).Stat.Size; got != 3*dsm.PageSize {
		t.Errorf("size %d", got)
	}
}

// TestThreadGoesOn: which requests show that a thread which has punched a hole has gone on.
func TestThreadGoesOn(t *testing.T) {
	const opGetattr = 3
	b := newBridge(Config{FaultTimeout: time.Minute})
	over := 0
	request := func(tid, op uint32) {
		h := headerOf(tid)
		h.Opcode = op
		b.begin(nil, h).end()
	}
	for _, c := range []struct {
		name     string
		punched  uint32
		tid, op  uint32
		wantOver int
	}{
		{"another thread", 7, 8, opGetattr, 0},
		{"a READ, which may read ahead, and be from before", 7, 7, opRead, 0},
		{"nobody knows which thread", 0, 0, opGetattr, 0},
		{"the thread", 7, 7, opGetattr, 1},
	} {
		over = 0
		b.punched.Store(&punch{c.punched, func() { over++ }})
		request(c.tid, c.op)
		request(c.tid, c.op)
		if over != c.wantOver {
			t.Errorf("%s: over %d times, want %d", c.name, over, c.wantOver)
		}
	}
}

// TestModificationTime: a write that makes the file longer has the time of that, another store shows, a time that is set stays (cp -p), a chmod
// or an unlink changes nothing, and the time is kept after the close.
func TestModificationTime(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", []byte("x"))
	mtime := func() int64 { st := c.must(clientCall{Op: "stat", Path: f.path("w")}).Stat; return st.Mtim.Nano() }
	modTime := func() int64 { return a.ModTime().UnixNano() }
	eventually(t, "closed", func() bool { return a.state().opens == 0 })
	if n := f.names.count("SetAttr"); n != 1 {
		t.Errorf("a file was written and closed with %d changes of its attributes, want 1: its growth", n)
	}
	grown, err := f.names.Getattr(t.Context(), f.names.inoOf("w"))
	if got := mtime(); err != nil || got != grown.Mtime.UnixNano() || got > modTime() {
		t.Errorf("after the first write: %d, want %d, when the file grew; %d is when it was written; %v", got, grown.Mtime.UnixNano(), modTime(), err)
	}
	fd := c.open(f.path("w"), unix.O_RDWR)
	c.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("y")})
	c.must(clientCall{Op: "chmod", Path: f.path("w"), Mode: 0o600})
	if got := mtime(); got != modTime() {
		t.Errorf("after write and chmod: %d, want %d", got, modTime())
	}
	const past = 1e18
	c.must(clientCall{Op: "utimes", Path: f.path("w"), Off: past})
	if got := mtime(); got != past {
		t.Errorf("after utimes: %d", got)
	}
	c.must(clientCall{Op: "close", FD: fd})
	eventually(t, "closed", func() bool { return a.state().opens == 0 })
	if got := mtime(); got != past {
		t.Errorf("after utimes and close: %d", got)
	}
	fd = c.open(f.path("w"), unix.O_RDWR)
	if got := mtime(); got != past {
		t.Errorf("after utimes, close and open: %d", got)
	}
	c.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("z")})
	c.must(clientCall{Op: "close", FD: fd})
	eventually(t, "kept in the catalog", func() bool {
		i, err := f.names.Getattr(t.Context(), f.names.inoOf("w"))
		return err == nil && i.Mtime.UnixNano() == modTime()
	})
}

// TestBlocks: st_blocks is what the homes count when the file is closed or synced; until then at least what is in memory.
func TestBlocks(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	c.must(clientCall{Op: "mknod", Path: f.path("w"), Mode: syscall.S_IFREG | 0o644})
	blocks := func() int64 { return c.must(clientCall{Op: "stat", Path: f.path("w")}).Stat.Blocks }
	if got := blocks(); got != 0 {
		t.Errorf("empty: %d blocks", got)
	}
	c.must(clientCall{Op: "truncate", Path: f.path("w"), Off: 1 << 20})
	if got := blocks(); got != 1 {
		t.Errorf("no data: %d blocks, want 1 for tar -S", got)
	}
	f.areas.pages.Store(3)
	fd := c.open(f.path("w"), unix.O_RDWR)
	c.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("x")})
	if got := blocks(); got < 8 {
		t.Errorf("stored and not published: %d blocks", got)
	}
	c.must(clientCall{Op: "fsync", FD: fd})
	eventually(t, "the pages to be counted", func() bool { return blocks() == 3*dsm.PageSize/512 })
	f.areas.pages.Store(2)
	c.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("y")})
	c.must(clientCall{Op: "close", FD: fd})
	eventually(t, "the pages to be counted at close", func() bool { return blocks() == 2*dsm.PageSize/512 })
	c.must(clientCall{Op: "truncate", Path: f.path("w"), Off: 5})
	if got := blocks(); got > 8 {
		t.Errorf("one page is left: %d blocks", got)
	}
}

func TestXattrs(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.file(c, "w", []byte("x"))
	w := f.path("w")
	get := func(path, name string) string {
		return string(c.must(clientCall{Op: "getxattr", Path: path, To: name}).Data)
	}
	for name, want := range map[string]string{
		"mode": "relaxed", "merge": "last", "dtype": "auto", "apply": "auto", "interval": "100ms",
		"residency": "full", "access": "cached", "locks": "meet", "placement": "auto", "staleness": "none", "retain": "2", "replicas": "2",
		"version": "4711", "home": "000000000000000a\n000000000000000b source=000000000000000c,000000000000000d backups=000000000000000e filling=000000000000000a,000000000000000f", "subscribers": "000000000000000c",
	} {
		if got := get(w, dsmPrefix+name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for name, value := range map[string]string{"merge": "sum", "dtype": "f32", "apply": "sync", "interval": "2s", "mode": "relaxed", "residency": "demand", "staleness": "1s"} {
		c.must(clientCall{Op: "setxattr", Path: w, To: dsmPrefix + name, Data: []byte(value)})
		if got := get(w, dsmPrefix+name); got != value {
			t.Errorf("%s is %q after it was set to %q", name, got, value)
		}
	}

	set := func(name, value string) clientCall {
		return clientCall{Op: "setxattr", Path: w, To: name, Data: []byte(value)}
	}
	c.wantErrno(syscall.EINVAL, set("user.dsm.merge", "average"))
	f.wantLog("level=WARN", "user.dsm.merge", "average", "want one of last sum")
	c.wantErrno(syscall.EINVAL, set("user.dsm.color", "red"))
	f.wantLog("level=WARN", "unknown attribute user.dsm.color", "mode merge dtype apply interval")
	c.wantErrno(syscall.EINVAL, clientCall{Op: "getxattr", Path: w, To: "user.dsm.colour"})
	f.wantLog("level=WARN", "unknown attribute user.dsm.colour", "mode merge dtype apply interval")
	c.wantErrno(syscall.EINVAL, set("user.dsm.version", "1"))
	f.wantLog("level=WARN", "user.dsm.version cannot be set")
	c.wantErrno(syscall.EPERM, clientCall{Op: "removexattr", Path: w, To: "user.dsm.merge"})
	c.wantErrno(syscall.EOPNOTSUPP, set("security.x", "x"))
	c.wantErrno(syscall.EOPNOTSUPP, clientCall{Op: "getxattr", Path: w, To: "security.capability"})
	for _, op := range []string{"setxattr", "getxattr", "removexattr"} {
		for _, space := range []string{"user.", "trusted."} { // without a name in it
			c.wantErrno(syscall.EINVAL, clientCall{Op: op, Path: w, To: space})
		}
	}

	// A directory's settings are for what is made in it; it has no version.
	c.must(clientCall{Op: "mkdir", Path: f.path("d"), Mode: 0o755})
	c.must(clientCall{Op: "setxattr", Path: f.path("d"), To: "user.dsm.merge", Data: []byte("sum")})
	f.file(c, "d/w", nil)
	if got := get(f.path("d", "w"), "user.dsm.merge"); got != "sum" {
		t.Errorf("inherited %q", got)
	}
	c.wantErrno(syscall.ENODATA, clientCall{Op: "getxattr", Path: f.path("d"), To: "user.dsm.version"})

	// The program's own.
	c.must(clientCall{Op: "setxattr", Path: w, To: "user.note", Data: []byte("hi"), Flag: unix.XATTR_CREATE})
	c.wantErrno(syscall.EEXIST, clientCall{Op: "setxattr", Path: w, To: "user.note", Data: []byte("ho"), Flag: unix.XATTR_CREATE})
	c.wantErrno(syscall.ENODATA, clientCall{Op: "setxattr", Path: w, To: "user.nix", Flag: unix.XATTR_REPLACE})
	if got := c.must(clientCall{Op: "listxattr", Path: w}).Names; !slices.Equal(got, []string{"user.note"}) {
		t.Errorf("listed: %q, want the program's own only", got)
	}

	// Those that only root can read are listed for root only.
	if os.Geteuid() == 0 {
		c.must(clientCall{Op: "setxattr", Path: w, To: "trusted.note", Data: []byte("hi")})
		opened := fmt.Sprintf("/proc/self/fd/%d", c.open(w, unix.O_RDONLY)) // the other user cannot get to the mount
		for uid, want := range map[int][]string{0: {"trusted.note", "user.note"}, 65534: {"user.note"}} {
			c.must(clientCall{Op: "setfsuid", Flag: uid})
			if got := c.must(clientCall{Op: "listxattr", Path: opened}).Names; !slices.Equal(got, want) {
				t.Errorf("listed for user %d: %q, want %q", uid, got, want)
			}
		}
		c.must(clientCall{Op: "setfsuid", Flag: 0})
	}
}

// TestIntervalChanges: the loop takes over a new interval, also from zero.
func TestIntervalChanges(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", make([]byte, 8))
	_, m := f.mapFile(c, "w", 8)
	c.must(clientCall{Op: "store", FD: m, Data: []byte("x")})
	c.must(clientCall{Op: "setxattr", Path: f.path("w"), To: "user.dsm.interval", Data: []byte("10ms")})
	if !a.await(clientTimeout, func() bool { return len(a.published) > 0 && a.published[0] == 'x' }) {
		t.Error("not published")
	}
}

// TestListingBringsAttributes lists a directory while the kernel may keep what it is told, as a
// node's lease allows: nothing more is asked about the entries.
func TestListingBringsAttributes(t *testing.T) {
	// Else what the daemon takes too long for, as on a busy machine, is not kept.
	f := mountTest(t, func(c *Config) { c.keepLimit = time.Hour })
	c := startClient(t)
	c.must(clientCall{Op: "mkdir", Path: f.path("d"), Mode: 0o755})
	const files = 64
	for i := range files {
		f.file(c, "d/"+strconv.Itoa(i), nil)
	}
	f.names.kept.Store(int64(time.Hour))
	listed := f.names.count("Stat")
	if n := len(c.must(clientCall{Op: "readdir", Path: f.path("d")}).Names); n != files {
		t.Errorf("%d entries", n)
	}
	listed = f.names.count("Stat") - listed
	asked := -f.names.count("Lookup") - f.names.count("Getattr")
	for i := range files {
		if mode := c.must(clientCall{Op: "stat", Path: f.path("d", strconv.Itoa(i))}).Stat.Mode; mode&syscall.S_IFREG == 0 {
			t.Errorf("mode %o", mode)
		}
	}
	if asked += f.names.count("Lookup") + f.names.count("Getattr"); asked > 4 {
		t.Errorf("%d questions about %d files that were listed", asked, files)
	}
	if listed > 2 {
		t.Errorf("the catalog was asked %d times for the attributes of one listing", listed)
	}
}

// TestOpenKeepsAttributes reads files that were listed, as grep -r and tar do: the kernel goes on to know their attributes, and what it kept of their pages
// is dropped all the same.
func TestOpenKeepsAttributes(t *testing.T) {
	f := mountTest(t, func(c *Config) { c.keepLimit = time.Hour })
	c := startClient(t)
	c.must(clientCall{Op: "mkdir", Path: f.path("d"), Mode: 0o755})
	const files = 64
	areas := make([]*fakeArea, files)
	for i := range files {
		areas[i] = f.file(c, "d/"+strconv.Itoa(i), []byte("old"))
	}
	for _, a := range areas {
		eventually(t, "closed", func() bool { return a.state().opens == 0 })
		a.update(func() { copy(a.data, "new") })
	}
	f.names.kept.Store(int64(time.Hour))
	c.must(clientCall{Op: "readdir", Path: f.path("d")})
	asked := -f.names.count("Getattr")
	for i := range files {
		fd := c.open(f.path("d", strconv.Itoa(i)), unix.O_RDONLY)
		c.must(clientCall{Op: "fstat", FD: fd})
		if got := string(c.must(clientCall{Op: "pread", FD: fd, Len: 10}).Data); got != "new" {
			t.Errorf("file %d reads %q", i, got)
		}
		c.must(clientCall{Op: "close", FD: fd})
	}
	if asked += f.names.count("Getattr"); asked >= files { // some for other ends
		t.Errorf("%d questions about %d files that were listed and opened", asked, files)
	}
}

// TestRemovedDirectoryKeepsItsAttributes: who has a directory open that another node removes sees what it was last, not what it
// was when it was opened.
func TestRemovedDirectoryKeepsItsAttributes(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	c.must(clientCall{Op: "mkdir", Path: f.path("d"), Mode: 0o755})
	fd := c.open(f.path("d"), unix.O_RDONLY|unix.O_DIRECTORY)
	c.must(clientCall{Op: "chmod", Path: f.path("d"), Mode: 0o700})
	if err := f.names.Rmdir(t.Context(), dsm.RootIno, "d", 0); err != nil {
		t.Fatal(err)
	}
	if mode := c.must(clientCall{Op: "fstat", FD: fd}).Stat.Mode; mode != syscall.S_IFDIR|0o700 {
		t.Errorf("mode %o", mode)
	}
}
