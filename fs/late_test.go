package fs

import (
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestOpenToTruncate: a file of which bytes are lost can be opened with O_TRUNC, and for ftruncate, and then has what is written. Until it is truncated nothing is read or written by such a descriptor.
func TestOpenToTruncate(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	a := f.file(c, "w", []byte("lost"))
	lose := func() {
		eventually(t, "closed", func() bool { return a.state().opens == 0 })
		c.must(clientCall{Op: "writefile", Path: f.path("w"), Data: []byte("lost")})
		eventually(t, "closed", func() bool { return a.state().opens == 0 })
		a.lost.Store(true)
	}
	has := func(want string) {
		t.Helper()
		a.lost.Store(false) // what was lost is truncated
		if got := c.must(clientCall{Op: "readfile", Path: f.path("w")}); string(got.Data) != want {
			t.Errorf("%q, want %q", got.Data, want)
		}
	}
	lose()
	c.wantErrno(syscall.EIO, clientCall{Op: "open", Path: f.path("w"), Flag: unix.O_RDONLY})
	c.wantErrno(syscall.EIO, clientCall{Op: "open", Path: f.path("w"), Flag: unix.O_WRONLY | unix.O_APPEND})
	fd := c.open(f.path("w"), unix.O_RDWR)
	other := c.open(f.path("w"), unix.O_WRONLY)
	c.wantErrno(syscall.EIO, clientCall{Op: "pread", FD: fd, Len: 1})
	c.wantErrno(syscall.EIO, clientCall{Op: "pwrite", FD: fd, Data: []byte("x")})
	c.wantErrno(syscall.EIO, clientCall{Op: "fallocate", FD: fd, Len: 100})
	f.wantLog("level=WARN", "are lost", "area=")
	c.must(clientCall{Op: "ftruncate", FD: fd})
	c.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("new")})
	c.must(clientCall{Op: "pwrite", FD: other, Off: 3, Data: []byte("er")})
	c.must(clientCall{Op: "fsync", FD: fd})
	has("newer")
	c.must(clientCall{Op: "close", FD: fd})
	c.must(clientCall{Op: "close", FD: other})
	lose()
	fd = c.open(f.path("w"), unix.O_WRONLY|unix.O_TRUNC)
	c.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("anew")})
	c.must(clientCall{Op: "close", FD: fd})
	has("anew")
	lose()
	c.must(clientCall{Op: "close", FD: c.open(f.path("w"), unix.O_WRONLY)}) // and does nothing
	c.must(clientCall{Op: "truncate", Path: f.path("w")})
	has("")
	eventually(t, "closed", func() bool { return a.state().opens == 0 })
}

// TestLateHandleIsClosed: a program closes its descriptor while another one truncates the file. Then it has it open no more, and the next daemon does not open it again.
func TestLateHandleIsClosed(t *testing.T) {
	mem, names, i := newHeldFile(t)
	areas := newFakeAreas(names)
	a := areas.area(dsm.AreaID(i.Ino))
	b := newBridge(Config{Names: names, Areas: areas, FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(b.background.close)
	t.Cleanup(b.releases.close)
	b.held.journal, b.notify.server = mem.Files(), slowCache{func() {}}
	for n := range uint64(2000) {
		a.lost.Store(true)
		if _, err := names.SetAttr(t.Context(), i.Ino, dsm.SetAttr{Size: new(int64(5))}); err != nil {
			t.Fatal(err)
		}
		var out fuse.OpenOut
		if st := b.Open(nil, &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: uint64(i.Ino), Unique: 2 * (n + 1)}, Flags: uint32(os.O_RDWR)}, &out); !st.Ok() {
			t.Fatal(st)
		}
		a.lost.Store(false)
		var both sync.WaitGroup
		both.Go(func() {
			r := b.begin(nil, &fuse.InHeader{NodeId: uint64(i.Ino), Unique: 1})
			defer r.end()
			b.enterLate(r, i.Ino)
		})
		both.Go(func() { b.Release(nil, &fuse.ReleaseIn{Fh: out.Fh}) })
		both.Wait()
	}
	eventually(t, "closed", func() bool { return a.state().opens == 0 })
	eventually(t, "recorded as closed", func() bool {
		b.held.mu.Lock()
		defer b.held.mu.Unlock()
		return len(b.held.mu.handles) == 0
	})
	if left, late := b.handles.mu.open, b.handles.mu.late; len(left) > 0 || late != 0 {
		t.Errorf("%d handles are left, %d of them counted as late", len(left), late)
	}
}
