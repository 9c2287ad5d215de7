package uffd

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCloseMissing: who waits gets SIGBUS, and so does who comes later; pages that are there stay. So
// this is also the proof that a poisoned page stays so after the userfaultfd is closed.
func TestCloseMissing(t *testing.T) {
	const pages = 700
	demandModes(t, pages, func(t *testing.T, c *client, m *missing) {
		for _, page := range []int64{5, 6, 100, 512} {
			m.putOnly(page, uint64(page))
		}
		c.store(c.at(5), 50) // the others are not in the page table
		// A hole in the mapping, and a part of another protection, of which no event tells.
		c.do("munmap", c.at(30), 10*pageSize)
		c.do("mprotect", c.at(200), 20*pageSize, unix.PROT_READ)
		c.do("touch", c.at(10), 5, pageSize, 0)
		c.do("touch", c.at(10), 5, pageSize, 3)
		for range 5 {
			m.called()
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		c.expectTouched(0, 10)
		c.do("touch", c.addr, 30, pageSize, 0)
		c.expectTouched(2, 28)
		c.expectSum(56)
		c.do("touch", c.at(40), pages-40, pageSize, 0)
		c.expectTouched(2, pages-42)
		c.expectSum(612)
		c.store(c.at(6), 60)
		c.expectWord(c.at(6), 60)
		c.do("madvise", c.at(6), pageSize, unix.MADV_DONTNEED)
		if v := c.do("load", c.at(6)); v != 60 {
			t.Error("loaded", v, "after MADV_DONTNEED")
		}
		m.Wake(0, m.length) // does nothing
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
			a, c := newProgram(t, pages)
			m := a.demand(c, mode, c.addr, nil)
			for page := range int64(8) {
				m.putOnly(page, 1)
			}
			c.begin("touch", c.addr, pages-8, pageSize, 0)
			if i%2 == 1 {
				c.begin("munmap", c.at(pages-8), 4*pageSize)
				c.begin("mprotect", c.at(pages-4), pageSize, unix.PROT_READ)
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
			c.expectTouched(8, pages-16)
			c.expectSum(8)
			scans.Wait()
			c.ended()
		}
	})
}

// TestPoisonWhatChanges: mappings that are not what was just seen are looked at again.
func TestPoisonWhatChanges(t *testing.T) {
	needMissing(t)
	a, c := newProgram(t, 64)
	m := a.demand(c, Compare, c.addr, nil)
	seen := []piece{{c.addr, c.addr + uint64(a.size), 0}}
	try := func(want bool) {
		t.Helper()
		if again, err := poisonHoles(m.uffd, c.cmd.Process.Pid, m.memory, seen); again != want || err != nil {
			t.Errorf("again is %v, want %v: %v", again, want, err)
		}
	}
	try(false)
	c.do("mprotect", c.at(8), pageSize, unix.PROT_READ)
	c.do("madvise", c.addr, a.size, unix.MADV_DONTNEED)
	try(true)
	var err error
	if seen, err = mapped(c.cmd.Process.Pid, a.stat.Dev, a.stat.Ino); err != nil || len(seen) != 3 {
		t.Fatal(seen, err)
	}
	try(false)
	c.do("touch", c.addr, 64, pageSize, 0)
	c.expectTouched(0, 64)
	// What is not registered any more cannot be poisoned, and does not change.
	if err := unregister(m.uffd, seen[1].start, pageSize); err != nil {
		t.Fatal(err)
	}
	try(false)
}
