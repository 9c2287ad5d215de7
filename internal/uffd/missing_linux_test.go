package uffd

import (
	"testing"

	"golang.org/x/sys/unix"
)

// needMissing skips where pages on demand do not work.
func needMissing(t testing.TB) {
	if f := Probe(); !f.Missing.OK || !f.Poison.OK {
		t.Skip(f.Missing.Reason, f.Poison.Reason)
	}
}

// TestMissing: a thread waits until the page is filled, and a store after that is found.
func TestMissing(t *testing.T) {
	demandModes(t, 700, func(t *testing.T, c *client, m *missing) {
		c.do("touch", c.at(5), 1, 0, 0)
		m.expectCall(5)
		m.put(5, 77)
		c.expectTouched(1, 0)
		c.expectSum(77)
		// A store to a page that is missing, to one that came without a fault, and to one that was loaded.
		c.do("touch", c.at(9)+8, 1, 0, 3)
		m.expectCall(9)
		m.put(9, 1)
		c.expectTouched(1, 0)
		m.putOnly(699, 1)
		c.store(c.at(699)+8, 3)
		c.store(c.at(5), 3)
		m.expectStored("[5+1][9+1][699+1]")
		m.expectStored("")
		if len(m.calls) > 0 {
			t.Error("called for", <-m.calls)
		}
	})
}

// TestMissingOnce: many threads on one page make one call, and one that comes after the
// Wake another.
func TestMissingOnce(t *testing.T) {
	demandModes(t, 64, func(t *testing.T, c *client, m *missing) {
		c.do("touch", c.at(3), 40, 8, 0)
		for i := range 3 {
			m.expectCall(3)
			if i < 2 {
				// They find nothing and wait again.
				m.Wake(0, m.length)
			}
		}
		m.putOnly(3, 7)
		m.Wake(3*int64(pageSize), int64(pageSize))
		c.expectTouched(40, 0)
		c.expectSum(7)
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
	const pages = 200
	demandModes(t, pages, func(t *testing.T, c *client, m *missing) {
		c.do("touch", c.addr, pages, pageSize, 0)
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
		m.Wake(0, m.length)
		c.expectTouched(pages, 0)
		c.expectSum(want)
	})
}

// TestPunched takes a page out of the memfd while it is mapped and protected.
func TestPunched(t *testing.T) {
	demandModes(t, 64, func(t *testing.T, c *client, m *missing) {
		for i := range uint64(3) {
			m.putOnly(7, 1)
			c.store(c.at(7)+8, i+1)
			m.expectStored("[7+1]")
			c.area.punch(7, 1)
			c.do("touch", c.at(7), 1, 0, 0)
			m.expectCall(7)
			m.put(7, 100+i)
			c.expectTouched(1, 0)
			c.expectSum(100 + i)
			m.expectStored("")
			c.store(c.at(7), 3)
			m.expectStored("[7+1]")
			c.area.punch(7, 1)
			m.expectStored("")
		}
	})
}

// TestPoison: SIGBUS for who waits and who comes later, until MADV_DONTNEED.
func TestPoison(t *testing.T) {
	demandModes(t, 64, func(t *testing.T, c *client, m *missing) {
		page := int64(pageSize)
		m.putOnly(4, 1)
		c.store(c.at(4), 9)
		c.do("touch", c.at(5), 3, 8, 0)
		m.called()
		late := m.poison(3*page, 4*page)
		c.expectTouched(0, 3)
		late()
		c.do("touch", c.at(3), 4, pageSize, 0)
		c.expectTouched(1, 3)
		c.expectSum(9)
		for range 2 { // scans leave it poisoned
			scan(t, m.Range)
			c.do("touch", c.at(5), 1, 0, 5)
			c.expectTouched(0, 1)
		}
		// A page that is there cannot be poisoned, and who waits for it goes on.
		c.do("touch", c.at(8), 1, 8, 0)
		m.called()
		m.putOnly(8, 80)
		c.store(c.at(8)+8, 1)
		if err := m.Poison(8*page, page); err != nil {
			t.Fatal(err)
		}
		c.expectTouched(1, 0)
		c.expectSum(80)
		// Filled, it is poisoned still.
		m.putOnly(5, 50)
		c.do("touch", c.at(5), 1, 0, 0)
		c.expectTouched(0, 1)
		c.do("madvise", c.at(5), 2*pageSize, unix.MADV_DONTNEED)
		c.do("touch", c.at(5), 1, 0, 0)
		c.expectTouched(1, 0)
		c.expectSum(50)
		scan(t, m.Range)
		c.do("touch", c.at(5), 2, pageSize, 60)
		m.expectCall(6)
		m.put(6, 1)
		c.expectTouched(2, 0)
		m.expectStored("[5+2]")
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
			c.expectTouched(4, 0)
			c.expectSum(want)
			// A page that is there shows what is stored by others.
			if _, err := unix.Pwrite(a.fd, []byte{200}, 5*int64(pageSize)); err != nil {
				t.Fatal(err)
			}
			c.expectWord(addr+5*pageSize, 200)
			expect(t, m.Range, "", "")
			if err := m.Poison(20*int64(pageSize), int64(pageSize)); err != nil {
				t.Fatal(err)
			}
			c.do("touch", addr+20*pageSize, 1, 0, 0)
			c.expectTouched(0, 1)
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
			expectRefused(t, config, tt.says)
		})
	}
}
