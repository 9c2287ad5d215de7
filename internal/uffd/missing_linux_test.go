package uffd

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// needMissing skips where pages on demand do not work.
func needMissing(t testing.TB) {
	if f := Probe(); !f.Missing.OK || !f.Poison.OK {
		t.Skip(f.Missing.Reason, f.Poison.Reason)
	}
}

// TestMissing: a thread waits until the page is filled, and a store after that is found.
func TestMissing(t *testing.T) {
	missingModes(t, func(t *testing.T, mode Mode) {
		a := newArea(t, 700)
		c := newClient(t, a.fd)
		addr := c.mmap(a.size, 0)
		m := a.demand(c, mode, addr, nil)
		c.do("touch", addr+5*pageSize, 1, 0, 0)
		if page := m.called(); page != 5 {
			t.Fatal("page", page)
		}
		m.put(5, 77)
		expectTouched(t, c, 1, 0)
		if v := c.do("sum"); v != 77 {
			t.Error("loaded", v)
		}
		// A store to a page that is missing, to one that came without a fault, and to one that was loaded.
		c.do("touch", addr+9*pageSize+8, 1, 0, 3)
		if page := m.called(); page != 9 {
			t.Fatal("page", page)
		}
		m.put(9, 1)
		expectTouched(t, c, 1, 0)
		m.putOnly(699, 1)
		c.store(addr+699*pageSize+8, 3)
		c.store(addr+5*pageSize, 3)
		found := map[Mode]string{Async: "[5+1][9+1][699+1]"}[mode]
		all := map[Mode]string{Compare: "[0+700]"}[mode]
		expect(t, m.Range, found, all)
		expect(t, m.Range, "", all)
		if len(m.calls) > 0 {
			t.Error("called for", <-m.calls)
		}
	})
}

// TestMissingOnce: many threads on one page make one call, and one that comes after the
// Wake another.
func TestMissingOnce(t *testing.T) {
	missingModes(t, func(t *testing.T, mode Mode) {
		a := newArea(t, 64)
		c := newClient(t, a.fd)
		addr := c.mmap(a.size, 0)
		m := a.demand(c, mode, addr, nil)
		c.do("touch", addr+3*pageSize, 40, 8, 0)
		for i := range 3 {
			if page := m.called(); page != 3 {
				t.Fatal("page", page)
			}
			if i < 2 {
				// They find nothing and wait again.
				m.Wake(0, a.size)
			}
		}
		m.putOnly(3, 7)
		m.Wake(3*int64(pageSize), int64(pageSize))
		expectTouched(t, c, 40, 0)
		if v := c.do("sum"); v != 7 {
			t.Error("sum", v)
		}
		// What comes now may have been read after the Wake, but is about that page.
		for len(m.calls) > 0 {
			if page := <-m.calls; page != 3 {
				t.Error("called for", page)
			}
		}
	})
}

// TestMissingMany: many threads on many pages.
func TestMissingMany(t *testing.T) {
	missingModes(t, func(t *testing.T, mode Mode) {
		const pages = 200
		a := newArea(t, pages)
		c := newClient(t, a.fd)
		addr := c.mmap(a.size, 0)
		m := a.demand(c, mode, addr, nil)
		c.do("touch", addr, pages, pageSize, 0)
		seen := map[int64]bool{}
		for len(seen) < pages {
			page := m.called()
			if seen[page] {
				t.Fatal("called twice for", page)
			}
			seen[page] = true
		}
		want := uint64(0)
		for page := range int64(pages) {
			want += uint64(page) * 3
			m.putOnly(page, uint64(page)*3)
			if page%64 == 0 {
				c.disturb() // who waits does so again, which is no reason for a call
			}
		}
		if n := len(m.calls); n > 0 {
			t.Error(n, "calls more")
		}
		m.Wake(0, a.size)
		expectTouched(t, c, pages, 0)
		if v := c.do("sum"); v != want {
			t.Error("sum", v, "want", want)
		}
	})
}

// TestPunched takes a page out of the memfd while it is mapped and protected.
func TestPunched(t *testing.T) {
	missingModes(t, func(t *testing.T, mode Mode) {
		a := newArea(t, 64)
		c := newClient(t, a.fd)
		addr := c.mmap(a.size, 0)
		m := a.demand(c, mode, addr, nil)
		all := map[Mode]string{Compare: "[0+64]"}[mode]
		for i := range uint64(3) {
			m.putOnly(7, 1)
			c.store(addr+7*pageSize+8, i+1)
			found := map[Mode]string{Async: "[7+1]"}[mode]
			expect(t, m.Range, found, all)
			punch(t, a, 7, 1)
			c.do("touch", addr+7*pageSize, 1, 0, 0)
			if page := m.called(); page != 7 {
				t.Fatal("page", page)
			}
			m.put(7, 100+i)
			expectTouched(t, c, 1, 0)
			if v := c.do("sum"); v != 100+i {
				t.Error("loaded", v)
			}
			expect(t, m.Range, "", all)
			c.store(addr+7*pageSize, 3)
			expect(t, m.Range, found, all)
			punch(t, a, 7, 1)
			expect(t, m.Range, "", all)
		}
	})
}

func punch(t testing.TB, a *area, page, n int64) {
	t.Helper()
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := unix.Fallocate(a.fd, mode, page*int64(pageSize), n*int64(pageSize)); err != nil {
		t.Fatal(err)
	}
}

// TestPoison: SIGBUS for who waits and who comes later, until MADV_DONTNEED.
func TestPoison(t *testing.T) {
	missingModes(t, func(t *testing.T, mode Mode) {
		a := newArea(t, 64)
		c := newClient(t, a.fd)
		addr := c.mmap(a.size, 0)
		m := a.demand(c, mode, addr, nil)
		page := int64(pageSize)
		m.putOnly(4, 1)
		c.store(addr+4*pageSize, 9)
		c.do("touch", addr+5*pageSize, 3, 8, 0)
		m.called()
		if err := m.Poison(3*page, 4*page); err != nil {
			t.Fatal(err)
		}
		expectTouched(t, c, 0, 3)
		c.do("touch", addr+3*pageSize, 4, pageSize, 0)
		expectTouched(t, c, 1, 3)
		if v := c.do("sum"); v != 9 {
			t.Error("the page that was there has", v)
		}
		for range 2 { // scans leave it poisoned
			if err := m.Scan(new(Stores)); err != nil {
				t.Fatal(err)
			}
			c.do("touch", addr+5*pageSize, 1, 0, 5)
			expectTouched(t, c, 0, 1)
		}
		// A page that is there cannot be poisoned, and who waits for it goes on.
		c.do("touch", addr+8*pageSize, 1, 8, 0)
		m.called()
		m.putOnly(8, 80)
		c.store(addr+8*pageSize+8, 1)
		if err := m.Poison(8*page, page); err != nil {
			t.Fatal(err)
		}
		expectTouched(t, c, 1, 0)
		if v := c.do("sum"); v != 80 {
			t.Error("loaded", v)
		}
		// Filled, it is poisoned still.
		m.putOnly(5, 50)
		c.do("touch", addr+5*pageSize, 1, 0, 0)
		expectTouched(t, c, 0, 1)
		c.do("madvise", addr+5*pageSize, 2*pageSize, unix.MADV_DONTNEED)
		c.do("touch", addr+5*pageSize, 1, 0, 0)
		expectTouched(t, c, 1, 0)
		if v := c.do("sum"); v != 50 {
			t.Error("loaded", v)
		}
		if err := m.Scan(new(Stores)); err != nil {
			t.Fatal(err)
		}
		c.do("touch", addr+5*pageSize, 2, pageSize, 60)
		if p := m.called(); p != 6 {
			t.Error("called for", p)
		}
		m.put(6, 1)
		expectTouched(t, c, 2, 0)
		found := map[Mode]string{Async: "[5+2]"}[mode]
		expect(t, m.Range, found, map[Mode]string{Compare: "[0+64]"}[mode])
	})
}

// TestReadOnly maps a descriptor for reading, shared and private.
func TestReadOnly(t *testing.T) {
	needMissing(t)
	for name, flags := range map[string]int{"shared": unix.MAP_SHARED, "private": unix.MAP_PRIVATE} {
		t.Run(name, func(t *testing.T) {
			a := newArea(t, 64)
			c := newClient(t, a.fd)
			addr := c.do("mmap", a.size, 0, unix.PROT_READ, flags)
			m := a.demand(c, Compare, addr, func(x *Config) { x.ReadOnly = true })
			c.do("touch", addr+5*pageSize, 4, pageSize, 0)
			want := uint64(0)
			for range 4 {
				page := m.called()
				m.put(page, uint64(page))
				want += uint64(page)
			}
			expectTouched(t, c, 4, 0)
			if v := c.do("sum"); v != want {
				t.Error("sum", v)
			}
			// A page that is there shows what is stored by others.
			if _, err := unix.Pwrite(a.fd, []byte{200}, 5*int64(pageSize)); err != nil {
				t.Fatal(err)
			}
			if v := c.do("load", addr+5*pageSize); v != 200 {
				t.Error("loaded", v)
			}
			expect(t, m.Range, "", "")
			if err := m.Poison(20*int64(pageSize), int64(pageSize)); err != nil {
				t.Fatal(err)
			}
			c.do("touch", addr+20*pageSize, 1, 0, 0)
			expectTouched(t, c, 0, 1)
			c.do("munmap", addr, a.size)
			<-m.Unmapped()
			expect(t, m.Range, "", "")
		})
	}
}

// TestMissingRefuses gives Track what has no pages on demand.
func TestMissingRefuses(t *testing.T) {
	needMissing(t)
	a, other := newArea(t, 64), newArea(t, 64)
	readonly := &area{t: t, size: a.size, stat: a.stat}
	var err error
	if readonly.fd, err = reopen(Config{Memfd: a.fd, Dev: a.stat.Dev, Ino: a.stat.Ino}); err != nil {
		t.Fatal(err)
	}
	defer closeFD(readonly.fd)
	c, reader := newClient(t, a.fd), newClient(t, readonly.fd)
	addr := c.mmap(a.size, 0)
	readOnlyAt := func(c *client) uint64 { return c.do("mmap", a.size, 0, unix.PROT_READ, unix.MAP_SHARED) }
	cases := []struct {
		name, says string
		c          *client
		addr       uint64
		change     func(*Config)
	}{
		{"sync", "use compare", c, addr, func(x *Config) { x.Mode, x.ReadOnly = Sync, false }},
		{"never writable", "can never be made writable", reader, readOnlyAt(reader), func(x *Config) {}},
		{"another memfd", "another file", c, addr, func(x *Config) { x.Memfd = other.fd }},
		{"no memfd", "the memfd", c, addr, func(x *Config) { x.Memfd = 1 << 20 }},
		{"read-only with a mode", "ReadOnly is for", c, addr, func(x *Config) { x.Mode = Async }},
		{"not read-only", "want shared and writable", c, readOnlyAt(c), func(x *Config) { x.ReadOnly = false }},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			config := a.config(tt.c, Compare, tt.addr, a.size, 0)
			config.Memfd, config.Missing, config.ReadOnly = a.fd, func(int64) {}, true
			tt.change(&config)
			r, err := Track(config)
			if err == nil {
				_ = r.Close()
				t.Fatal("tracked")
			}
			if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), tt.says) {
				t.Error(errs.KindOf(err), err)
			}
		})
	}
}
