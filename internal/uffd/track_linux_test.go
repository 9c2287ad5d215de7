package uffd

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestStoresAreFoundOnce(t *testing.T) {
	trackModes(t, 700, func(t *testing.T, c *client, r *Range) {
		expect(t, r, "", "")
		for range 3 {
			c.store(c.addr, 1)
			c.store(c.at(5)+8, 2)
			c.store(c.at(6), 3)
			c.store(c.at(699), 4)
			c.do("load", c.at(300)) // is not a store
			expect(t, r, "[0+1][5+2][699+1]", "")
			expect(t, r, "", "")
		}
	})
}

func TestMunmap(t *testing.T) {
	trackModes(t, 64, func(t *testing.T, c *client, r *Range) {
		c.store(c.at(10), 1)
		c.store(c.at(20), 1)
		c.do("munmap", c.at(10), 5*pageSize)
		expect(t, r, map[Mode]string{Async: "[20+1]", Sync: "[10+1][20+1]"}[r.mode], "[10+5]")
		c.store(c.at(9), 1)
		c.store(c.at(15), 1)
		expect(t, r, "[9+1][15+1]", "")
		c.do("mmapfixed", c.addr, 2*pageSize)
		c.store(c.addr, 1)
		c.store(c.at(2), 1)
		expect(t, r, "[2+1]", "[0+2]")
		c.do("munmap", c.addr, 64*pageSize)
		expect(t, r, "", "[2+8][15+49]")
		expect(t, r, "", "")
	})
}

func TestMremap(t *testing.T) {
	trackModes(t, 64, func(t *testing.T, c *client, r *Range) {
		c.store(c.at(3), 1)
		// Where it stands it cannot grow, so it moves.
		c.do("occupy", c.at(64), pageSize)
		to := c.do("mremap", c.addr, 64*pageSize, 128*pageSize, unix.MREMAP_MAYMOVE)
		if to == c.addr {
			t.Fatal("the mapping did not move")
		}
		expect(t, r, map[Mode]string{Async: "[3+1]", Sync: "[0+64]"}[r.mode], "[0+64]")
		expect(t, r, "", "")
		c.store(to+7*pageSize, 1)
		expect(t, r, "[7+1]", "")
		// A part is moved out of the middle.
		part := c.do("mremap", to+20*pageSize, 4*pageSize, 8*pageSize, unix.MREMAP_MAYMOVE)
		expect(t, r, map[Mode]string{Async: "", Sync: "[20+4]"}[r.mode], "[20+4]")
		c.store(to+19*pageSize, 1)
		c.store(part+pageSize, 1)
		c.store(to+24*pageSize, 1)
		s := scan(t, r)
		if got := sorted(s.Written); got != "[19+1][21+1][24+1]" || len(s.Suspect) > 0 {
			t.Error(got, text(s.Suspect))
		}
		// It shrinks, which takes the end away.
		c.do("mremap", part, 4*pageSize, 2*pageSize, 0)
		expect(t, r, "", "[22+2]")
	})
}

func TestDontneed(t *testing.T) {
	trackModes(t, 2048, func(t *testing.T, c *client, r *Range) {
		c.store(c.at(3), 1)
		c.do("madvise", c.at(2), 3*pageSize, unix.MADV_DONTNEED)
		expect(t, r, "[3+1]", "")
		c.do("load", c.at(4))
		expect(t, r, "", "")
		// All pages of whole page tables: they are freed.
		c.do("store", c.addr, 2048*pageSize, pageSize, 7)
		c.do("madvise", c.addr, 2048*pageSize, unix.MADV_DONTNEED)
		expect(t, r, "[0+2048]", "")
		expect(t, r, "", "")
		c.store(c.at(1000), 1)
		expect(t, r, "[1000+1]", "")
		c.do("store", c.addr, 2048*pageSize, pageSize, 7)
		c.do("madvise", c.addr, 2048*pageSize, unix.MADV_DONTNEED)
		c.do("load", c.at(1000))
		expect(t, r, "[0+2048]", "")
		if r.mode == Async {
			// As on kernels where the first question does not find them.
			r.mu.scanner.tables = true
			expect(t, r, "", "")
			c.do("store", c.addr, 2048*pageSize, pageSize, 7)
			c.do("madvise", c.addr, 2048*pageSize, unix.MADV_DONTNEED)
			nowhere, n := uint64(pageIsPresent|pageIsSwapped), uint64(0)
			ask := scanArg{inverted: nowhere, mask: nowhere}
			if err := r.mu.scanner.ask(ask, c.addr, c.at(2048), func(from, to uint64) { n += (to - from) / pageSize }); err != nil {
				t.Fatal(err)
			}
			if n != 2048 {
				t.Errorf("the second question found %d pages", n)
			}
			expect(t, r, "", "")
		}
	})
}

// TestHugePages begins with memory that is mapped by huge pages, and asks for huge
// pages while it is tracked.
func TestHugePages(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		const huge = 512
		a := newArea(t, 4*huge)
		c := newClient(t, a.fd)
		// Address and offset agree modulo the huge page.
		room := c.do("mmap", a.size+huge*int64(pageSize), 0, unix.PROT_NONE, unix.MAP_SHARED)
		aligned := (room + huge*pageSize - 1) &^ (huge*pageSize - 1)
		addr := c.do("mremap", c.mmap(a.size, 0), a.size, a.size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, aligned)
		c.do("store", addr, a.size, pageSize, 1)
		c.begin("madvise", aligned, 2*huge*pageSize, unix.MADV_COLLAPSE)
		if _, _, errno := c.answer(); errno != 0 {
			t.Skip("MADV_COLLAPSE of shared memory: ", errno)
		}
		r := a.trackAt(c, mode, addr, a.size, 0)
		expect(t, r, "", "")
		const page = 100
		for range 3 {
			c.store(addr+page*pageSize, 2)
			// It does as it likes with what is tracked; a store is never lost.
			c.begin("madvise", aligned, 2*huge*pageSize, unix.MADV_COLLAPSE)
			c.answer()
			s := scan(t, r)
			if !covers(append(s.Written, s.Suspect...), page) {
				t.Errorf("page %d is not in %s %s", page, text(s.Written), text(s.Suspect))
			}
		}
		c.do("store", addr, a.size, pageSize, 3)
		expect(t, r, pagesOf(0, 4*huge), "")
	})
}

// TestSwap swaps pages out: clean ones stay clean, and stores to others are found.
func TestSwap(t *testing.T) {
	if s := swap(); !s.OK {
		t.Skip("swap is off")
	}
	modes(t, func(t *testing.T, mode Mode) {
		const pages = 2048
		a, c := newProgram(t, pages)
		c.do("store", c.addr, a.size, pageSize, 1)
		r := a.trackAt(c, mode, c.addr, a.size, 0)
		out := func() {
			c.do("madvise", c.addr, a.size, unix.MADV_PAGEOUT)
			var entry [8]byte
			if _, err := unix.Pread(r.pagemap, entry[:], int64(c.at(100)/pageSize*8)); err != nil {
				t.Fatal(err)
			}
			if entry[7]&0x80 != 0 {
				t.Skip("the pages stay in the page table")
			}
		}
		c.store(c.at(100), 2)
		out()
		expect(t, r, "[100+1]", "")
		expect(t, r, "", "")
		out()
		c.do("load", c.at(200))
		c.store(c.at(300), 2)
		expect(t, r, "[300+1]", "")
		c.do("store", c.addr, a.size, pageSize, 3)
		out()
		expect(t, r, pagesOf(0, pages), "")
	})
}

// TestUserModeOnly is what a program without privilege can make. Its system calls may
// store into tracked memory in Async; in Sync they fail.
func TestUserModeOnly(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		a, c := newProgram(t, 16)
		config := a.config(c, mode, c.addr, a.size, 0)
		closeFD(config.UFFD)
		config.UFFD = c.descriptor("uffd", userModeOnly)
		r, err := Track(config)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		expect(t, r, "", "[0+16]")
		zero := c.do("open")
		c.begin("sysread", c.at(3), pageSize, zero)
		n, _, errno := c.answer()
		if mode == Async {
			if n != pageSize || errno != 0 {
				t.Error("read", n, errno)
			}
			expect(t, r, "[3+1]", "")
		} else {
			if errno != unix.EFAULT {
				t.Error("read", n, errno)
			}
			expect(t, r, "", "")
		}
		c.store(c.at(4), 1)
		expect(t, r, "[4+1]", "")
	})
}

// TestSystemCallsStore is the same with a userfaultfd that stops the kernel too.
func TestSystemCallsStore(t *testing.T) {
	trackModes(t, 16, func(t *testing.T, c *client, r *Range) {
		if n := c.do("sysread", c.at(3), 2*pageSize, c.do("open")); n != 2*pageSize {
			t.Error("read", n)
		}
		expect(t, r, "[3+2]", "")
	})
}

func TestDisarm(t *testing.T) {
	trackModes(t, 16, func(t *testing.T, c *client, r *Range) {
		c.store(c.addr, 1)
		for _, err := range []error{r.Disarm(), r.Disarm()} {
			if err != nil {
				t.Fatal(err)
			}
		}
		c.store(c.at(1), 1)
		expect(t, r, "", "[0+16]")
		c.do("munmap", c.at(15), pageSize)
		expect(t, r, "", "[15+1][0+15]")
		for _, err := range []error{r.Arm(), r.Arm()} {
			if err != nil {
				t.Fatal(err)
			}
		}
		c.store(c.at(2), 1)
		expect(t, r, "[2+1]", "[0+15]")
		expect(t, r, "", "")
	})
}

func covers(runs []Run, page int64) bool {
	for _, r := range runs {
		if at := page * int64(pageSize); r.Off <= at && at < r.Off+r.Len {
			return true
		}
	}
	return false
}
