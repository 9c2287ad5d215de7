package uffd

import (
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestTrackRefuses gives Track what a wrong or hostile program could send. Each time
// the descriptor is closed and the program is as before: a good Track follows.
func TestTrackRefuses(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		a, other := newArea(t, 64), newArea(t, 64)
		c, stranger, dead := newClient(t, a.fd), newClient(t, a.fd), newClient(t, a.fd)
		addr := c.mmap(a.size, 0)
		theirs := stranger.mmap(a.size, 0)
		deadPid := dead.pidfd()
		deadUffd := dead.descriptor("uffd", 0)
		dead.ended()
		swapUffd := func(fd int) func(*Config) {
			return func(x *Config) {
				closeFD(x.UFFD)
				x.UFFD = fd
			}
		}
		cases := []struct {
			name, says string
			change     func(*Config)
		}{
			{"no length", "length is 0", func(x *Config) { x.Length = 0 }},
			{"odd address", "multiples", func(x *Config) { x.Addr++ }},
			{"odd length", "multiples", func(x *Config) { x.Length-- }},
			{"odd offset", "multiples", func(x *Config) { x.Off += 8 }},
			{"overflow", "too large", func(x *Config) { x.Addr = -pageSize; x.Length = 2 * pageSize }},
			{"beyond the address space", "nothing is mapped", func(x *Config) { x.Addr = 1 << 62 }},
			{"too long", "too large", func(x *Config) { x.Length = 1 << 63 }},
			{"negative offset", "too large", func(x *Config) { x.Off = -int64(pageSize) }},
			{"huge offset", "too large", func(x *Config) { x.Off = math.MaxInt64 &^ (int64(pageSize) - 1) }},
			{"mode", "takes no userfaultfd", func(x *Config) { x.Mode = Compare }},
			{"not mapped", "nothing is mapped", func(x *Config) { x.Addr = pageSize * 16 }},
			{"past the end", "at 0x", func(x *Config) { x.Length += 1 << 40 }},
			{"far past the end", "at 0x", func(x *Config) { x.Length = 1 << 62 }},
			{"wrong offset", "offset", func(x *Config) { x.Off = int64(pageSize); x.Length -= pageSize }},
			{"wrong inode", "another file", func(x *Config) { x.Ino = other.stat.Ino }},
			{"wrong device", "another file", func(x *Config) { x.Dev++ }},
			{"read-only", "want shared and writable", func(x *Config) {
				x.Addr = c.do("mmap", a.size, 0, unix.PROT_READ, unix.MAP_SHARED)
			}},
			{"private", "want shared and writable", func(x *Config) {
				x.Addr = c.do("mmap", a.size, 0, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
			}},
			{"a memfd", "no userfaultfd", func(x *Config) { swapUffd(c.descriptor("memfd"))(x) }},
			{"no descriptor", "no userfaultfd", func(x *Config) { swapUffd(1 << 20)(x) }},
			{"handshake done", "handshake", func(x *Config) { swapUffd(c.descriptor("uffd", 0, 1))(x) }},
			{"userfaultfd of a stranger", "", func(x *Config) { swapUffd(stranger.descriptor("uffd", 0))(x) }},
			{"userfaultfd of the dead", "", func(x *Config) { swapUffd(deadUffd)(x) }},
			{"dead process", "ended", func(x *Config) { x.PidFD = deadPid }},
			{"no pidfd", "pidfd", func(x *Config) { x.PidFD = a.fd }},
		}
		for _, tt := range cases {
			t.Run(tt.name, func(t *testing.T) {
				config := a.config(c, mode, addr, a.size, 0)
				tt.change(&config)
				expectRefused(t, config, tt.says)
			})
		}
		t.Run("stranger with the same address", func(t *testing.T) {
			if theirs != addr {
				// Both map the memfd where the other does, so that registering works.
				stranger.do("mremap", theirs, a.size, a.size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, addr)
			}
			config := a.config(c, mode, addr, a.size, 0)
			swapUffd(stranger.descriptor("uffd", 0))(&config)
			if r, err := Track(config); err == nil {
				_ = r.Close()
				t.Fatal("tracked")
			} else if !strings.Contains(err.Error(), "not of process") {
				t.Error(err)
			}
			stranger.store(addr, 1) // does not hang
		})
		t.Run("twice", func(t *testing.T) {
			r := a.trackAt(c, mode, addr, a.size, 0)
			if _, err := Track(a.config(c, mode, addr, a.size, 0)); !errs.Is(err, errs.Busy) || !strings.Contains(err.Error(), "already") {
				t.Error(err)
			}
			c.store(addr, 1)
			expect(t, r, "[0+1]", "")
		})
	})
}

// expectRefused: Track says that the config is invalid, and why, and closes the descriptor.
func expectRefused(t *testing.T, config Config, says string) {
	t.Helper()
	r, err := Track(config)
	if err == nil {
		_ = r.Close()
		t.Fatal("tracked")
	}
	if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), says) {
		t.Errorf("%v: %v", errs.KindOf(err), err)
	}
	if _, err := unix.FcntlInt(uintptr(config.UFFD), unix.F_GETFD, 0); err != unix.EBADF {
		t.Error("the descriptor is still open: ", err)
	}
}

func TestPartOfAnArea(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		a := newArea(t, 64)
		c := newClient(t, a.fd)
		page := int64(pageSize)
		addr := c.mmap(32*page, 16*page)
		r := a.trackAt(c, mode, addr+4*pageSize, 8*page, 20*page)
		second := a.trackAt(c, mode, addr+12*pageSize, 8*page, 28*page)
		c.store(addr+3*pageSize, 1)
		c.store(addr+4*pageSize, 1)
		c.store(addr+11*pageSize, 1)
		c.store(addr+12*pageSize, 1)
		expect(t, r, "[20+1][27+1]", "")
		expect(t, second, "[28+1]", "")
		c.do("munmap", addr, 32*page)
		expect(t, r, "", "[20+8]")
		expect(t, second, "", "[28+8]")
	})
}

func TestChoose(t *testing.T) {
	yes, no := Feature{OK: true}, Feature{Reason: "because"}
	all := Features{Async: yes, Dropped: yes, Sync: yes}
	cases := []struct {
		f      Features
		forced string
		want   Mode
		kind   errs.Kind
	}{
		{all, "", Async, 0}, {all, "async", Async, 0}, {all, "sync", Sync, 0}, {all, "compare", Compare, 0},
		{all, "fast", 0, errs.Invalid},
		{Features{Async: no, Sync: yes}, "", Sync, 0}, {Features{Async: no, Sync: yes}, "async", 0, errs.Unsupported},
		{Features{Async: yes, Dropped: no, Sync: yes}, "", Sync, 0}, {Features{Async: yes, Dropped: no}, "async", 0, errs.Unsupported},
		{Features{Async: no, Sync: no}, "", Compare, 0}, {Features{Sync: no}, "sync", 0, errs.Unsupported},
		{Features{}, "compare", Compare, 0},
	}
	for _, tt := range cases {
		got, err := Choose(tt.f, tt.forced)
		if got != tt.want || (err != nil) != (tt.kind != 0) || err != nil && !errs.Is(err, tt.kind) {
			t.Errorf("Choose(%+v, %q) = %v, %v", tt.f, tt.forced, got, err)
		}
	}
}

func TestParseMapping(t *testing.T) {
	m, err := parseMapping("7f2a00000000-7f2a00010000 rw-s 0001f000 00:01 1024      /memfd:an area (deleted)")
	if want := (mapping{0x7f2a00000000, 0x7f2a00010000, "rw-s", 0x1f000, unix.Mkdev(0, 1), 1024}); err != nil || m != want {
		t.Error(m, err)
	}
	for _, line := range []string{"", "7f2a-7f2b rw-s", "7f2a rw-s 0 00:01 1", "7f2a-7f2b rw-s 0 00 1", "7f2a-7f2b rw-s x 00:01 1", "7f2a-7f2b rw-s 0 00:01 x"} {
		if m, err := parseMapping(line); err == nil {
			t.Errorf("%q is taken for %+v", line, m)
		}
	}
}
