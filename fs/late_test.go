package fs

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
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
