package uffd

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCloseMissing: who waits gets SIGBUS, and so does who comes later; pages that are there stay. So
// this is also the proof that a poisoned page stays so after the userfaultfd is closed.
func TestCloseMissing(t *testing.T) {
	missingModes(t, func(t *testing.T, mode Mode) {
		const pages = 700
		a := newArea(t, pages)
		c := newClient(t, a.fd)
		addr := c.mmap(a.size, 0)
		m := a.demand(c, mode, addr, nil)
		for _, page := range []int64{5, 6, 100, 512} {
			m.putOnly(page, uint64(page))
		}
		c.store(addr+5*pageSize, 50) // the others are not in the page table
		// A hole in the mapping, and a part of another protection, of which no event tells.
		c.do("munmap", addr+30*pageSize, 10*pageSize)
		c.do("mprotect", addr+200*pageSize, 20*pageSize, unix.PROT_READ)
		c.do("touch", addr+10*pageSize, 5, pageSize, 0)
		c.do("touch", addr+10*pageSize, 5, pageSize, 3)
		for range 5 {
			m.called()
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		expectTouched(t, c, 0, 10)
		c.do("touch", addr, 30, pageSize, 0)
		expectTouched(t, c, 2, 28)
		if v := c.do("sum"); v != 56 {
			t.Error("sum", v)
		}
		c.do("touch", addr+40*pageSize, pages-40, pageSize, 0)
		expectTouched(t, c, 2, pages-42)
		if v := c.do("sum"); v != 612 {
			t.Error("sum", v)
		}
		c.store(addr+6*pageSize, 60)
		if v := c.do("load", addr+6*pageSize); v != 60 {
			t.Error("loaded", v)
		}
		c.do("madvise", addr+6*pageSize, pageSize, unix.MADV_DONTNEED)
		if v := c.do("load", addr+6*pageSize); v != 60 {
			t.Error("loaded", v, "after MADV_DONTNEED")
		}
		m.Wake(0, a.size) // does nothing
		if n := len(m.calls); n > 0 {
			t.Error(n, "calls more")
		}
	})
}

// TestCloseMissingRaces closes while threads begin to wait, and while the program changes
// its mapping: nobody reads a zero, nobody waits for ever.
func TestCloseMissingRaces(t *testing.T) {
	missingModes(t, func(t *testing.T, mode Mode) {
		const pages = 64
		for i := range 20 {
			a := newArea(t, pages)
			c := newClient(t, a.fd)
			addr := c.mmap(a.size, 0)
			m := a.demand(c, mode, addr, nil)
			for page := range int64(8) {
				m.putOnly(page, 1)
			}
			c.begin("touch", addr, pages-8, pageSize, 0)
			if i%2 == 1 {
				c.begin("munmap", addr+(pages-8)*pageSize, 4*pageSize)
				c.begin("mprotect", addr+(pages-4)*pageSize, pageSize, unix.PROT_READ)
			}
			var scans sync.WaitGroup
			scans.Go(func() {
				var s Stores
				for m.Scan(&s) == nil {
					s.Reset()
				}
			})
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			for range 1 + i%2*2 {
				if _, _, errno := c.answer(); errno != 0 {
					t.Fatal(errno)
				}
			}
			expectTouched(t, c, 8, pages-16)
			if v := c.do("sum"); v != 8 {
				t.Error("sum", v)
			}
			scans.Wait()
			c.ended()
		}
	})
}

// TestPoisonWhatChanges: mappings that are not what was just seen are looked at again.
func TestPoisonWhatChanges(t *testing.T) {
	needMissing(t)
	a := newArea(t, 64)
	c := newClient(t, a.fd)
	addr := c.mmap(a.size, 0)
	m := a.demand(c, Compare, addr, nil)
	seen := []piece{{addr, addr + uint64(a.size), 0}}
	try := func(want bool) {
		t.Helper()
		if again, err := poisonHoles(m.uffd, c.cmd.Process.Pid, m.memory, seen); again != want || err != nil {
			t.Errorf("again is %v, want %v: %v", again, want, err)
		}
	}
	try(false)
	c.do("mprotect", addr+8*pageSize, pageSize, unix.PROT_READ)
	c.do("madvise", addr, a.size, unix.MADV_DONTNEED)
	try(true)
	var err error
	if seen, err = mapped(c.cmd.Process.Pid, a.stat.Dev, a.stat.Ino); err != nil || len(seen) != 3 {
		t.Fatal(seen, err)
	}
	try(false)
	c.do("touch", addr, 64, pageSize, 0)
	expectTouched(t, c, 0, 64)
	// What is not registered any more cannot be poisoned, and does not change.
	if err := unregister(m.uffd, seen[1].start, pageSize); err != nil {
		t.Fatal(err)
	}
	try(false)
}
