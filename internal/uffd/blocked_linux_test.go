package uffd

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestMissingKilled ends the program while its threads wait.
func TestMissingKilled(t *testing.T) {
	demandModes(t, 64, func(t *testing.T, c *client, m *missing) {
		if !m.Mapped() {
			t.Error("nothing is mapped at the begin")
		}
		c.do("touch", c.addr, 8, pageSize, 0)
		for range 8 {
			m.called()
		}
		c.ended()
		<-m.Unmapped()
		<-m.Gone()
		if m.Mapped() {
			t.Error("it is mapped after the end")
		}
		m.put(3, 1)
		if err := m.Poison(0, m.length); err != nil {
			t.Error(err)
		}
		expect(t, m.Range, "", "[0+64]")
		expect(t, m.Range, "", "")
		for range 2 {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := m.Poison(0, m.length); !errs.Is(err, errs.Closed) {
			t.Error(err)
		}
		m.Wake(0, m.length)
	})
}

// TestMissingExec: the memory goes and the process stays.
func TestMissingExec(t *testing.T) {
	needMissing(t)
	a, c := newProgram(t, 64)
	m := a.demand(c, Compare, c.addr, nil)
	c.exec()
	if m.Mapped() {
		t.Error("it is mapped after exec")
	}
	<-m.Unmapped()
}

// expectEnded waits for threads of which the memory has gone. Mostly that is SIGSEGV, which is
// counted too, but the runtime of the client may have mapped something else there by then. (That no
// page was planted shows in that it can be filled.)
func (c *client) expectEnded(n uint64) {
	c.t.Helper()
	if v := c.do("touched"); v&0xffffffff+v>>32 != n {
		c.t.Errorf("%d touched and %d did not, want %d", v&0xffffffff, v>>32, n)
	}
}

// TestMunmapWhileBlocked: the threads go on, which is their end, as it is without us.
func TestMunmapWhileBlocked(t *testing.T) {
	demandModes(t, 64, func(t *testing.T, c *client, m *missing) {
		c.do("touch", c.at(5), 3, 8, 0)
		c.do("touch", c.at(40), 1, 8, 0)
		m.called()
		m.called()
		c.do("munmap", c.addr, 10*pageSize)
		m.put(40, 1)
		c.expectEnded(4)
		if !m.Mapped() {
			t.Error("what is left is not mapped")
		}
		// The page can be asked for again, through what is left or not at all.
		m.put(5, 1)
		c.do("munmap", c.at(10), 54*pageSize)
		<-m.Unmapped()
		if m.Mapped() {
			t.Error("it is mapped")
		}
	})
}

// TestMremapWhileBlocked: threads that wait at the old address end, those at the new one are served,
// also when the page was asked for before.
func TestMremapWhileBlocked(t *testing.T) {
	demandModes(t, 64, func(t *testing.T, c *client, m *missing) {
		c.do("touch", c.at(5), 3, 8, 0)
		m.called()
		to := c.do("mmap", 128*pageSize, 0, unix.PROT_NONE, unix.MAP_SHARED)
		c.do("mremap", c.addr, 64*pageSize, 64*pageSize, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to)
		c.expectEnded(3)
		c.do("touch", to+5*pageSize, 3, 8, 0)
		c.do("touch", to+6*pageSize, 1, 8, 0)
		m.expectCall(6)
		m.put(5, 7)
		m.put(6, 1)
		c.expectTouched(4, 0)
		c.expectSum(8)
		expect(t, m.Range, "", "[0+64]"+map[Mode]string{Compare: "[0+64]"}[m.mode])
		c.store(to+6*pageSize, 1)
		m.expectStored("[6+1]")
	})
}

// TestGrownMapping: nobody fills what the program has added by itself; it is no zero and no hang.
func TestGrownMapping(t *testing.T) {
	needMissing(t)
	a := newArea(t, 64)
	c := newClient(t, a.fd)
	half := a.size / 2
	addr := c.mmap(half, 0)
	m := a.demand(c, Compare, addr, func(x *Config) { x.Length = uint64(half) })
	at := c.do("mremap", addr, half, a.size, unix.MREMAP_MAYMOVE)
	c.do("touch", at+40*pageSize, 2, pageSize, 3)
	c.expectTouched(0, 2)
	c.do("touch", at+31*pageSize, 1, 0, 0)
	m.put(m.called(), 1)
	c.expectTouched(1, 0)
}

// TestRemovedByTheProgram: MADV_REMOVE makes a page missing that was there.
func TestRemovedByTheProgram(t *testing.T) {
	needMissing(t)
	a, c := newProgram(t, 64)
	m := a.demand(c, Compare, c.addr, nil)
	m.putOnly(3, 5)
	c.store(c.at(3), 6)
	c.do("madvise", c.at(3), pageSize, unix.MADV_REMOVE)
	c.do("touch", c.at(3), 1, 0, 0)
	m.put(m.called(), 8)
	c.expectTouched(1, 0)
	c.expectSum(8)
}

// TestMissingWithoutTracking: missing pages are served while stores are not found, and when
// tracking has failed.
func TestMissingWithoutTracking(t *testing.T) {
	demandModes(t, 64, func(t *testing.T, c *client, m *missing) {
		serve := func(page uint64) {
			t.Helper()
			for _, at := range []uint64{page, page + 1} {
				c.do("touch", c.at(at), 1, 0, at%2)
				m.put(m.called(), 1)
				c.expectTouched(1, 0)
			}
		}
		if err := m.Disarm(); err != nil {
			t.Fatal(err)
		}
		serve(0)
		expect(t, m.Range, "", "[0+64]")
		if err := m.Arm(); err != nil {
			t.Fatal(err)
		}
		serve(10)
		m.mu.Lock()
		m.failLocked(errs.E(errs.Other, "test", "lost"))
		m.mu.Unlock()
		serve(20)
	})
}

// TestWakeDuringScan: Wake needs nothing that a Scan has which waits for the memory map. What a
// Scan has read is handed on though it holds the lock.
func TestWakeDuringScan(t *testing.T) {
	demandModes(t, 64, func(t *testing.T, c *client, m *missing) {
		m.mu.Lock()
		c.begin("touch", c.at(5), 3, 8, 0)
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(m.uffd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		c.answer()
		for len(m.calls) == 0 {
			m.drainLocked()
			runtime.Gosched()
		}
		var other sync.WaitGroup
		other.Go(func() {
			m.put(m.called(), 3)
			c.expectTouched(3, 0)
		})
		other.Wait()
		m.mu.Unlock()
	})
}

// TestMissingStress lets threads of two programs load and store at random while pages are
// served, punched out and scanned. No load may show anything but what a page was filled with, and
// in rest every store is found.
func TestMissingStress(t *testing.T) {
	missingModes(t, func(t *testing.T, mode Mode) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 5))
		const pages = 256
		a := newArea(t, pages)
		type program struct {
			*client
			*missing
		}
		var programs []program
		for range 2 {
			c := a.program()
			m := a.demand(c, mode, c.addr, nil)
			programs = append(programs, program{c, m})
			defer m.serve()()
		}
		for _, p := range programs {
			p.do("roam", p.addr, a.size, 3, random.Uint64()>>1)
		}
		rounds := 600
		if testing.Short() {
			rounds = 100
		}
		for range rounds {
			page, n := random.Int64N(pages-8), 1+random.Int64N(8)
			a.punch(page, n)
			for _, p := range programs {
				if random.IntN(4) == 0 {
					if err := p.Scan(new(Stores)); err != nil {
						t.Error(err)
					}
				}
			}
			runtime.Gosched()
		}
		for _, p := range programs {
			p.do("rest")
			if v := p.do("sum"); v != 0 {
				t.Error(v, " loads showed other bytes")
			}
			if v := p.do("touched"); v == 0 {
				t.Error("nothing was touched")
			}
			if err := p.Scan(new(Stores)); err != nil {
				t.Error(err)
			}
		}
		for range 50 {
			p, page := programs[random.IntN(2)], random.Int64N(pages)
			p.store(p.at(uint64(page))+8, 1)
			var s Stores
			if err := p.Scan(&s); err != nil || !covers(append(s.Written, s.Suspect...), page) {
				t.Errorf("seed %d: page %d is not in %s %s: %v", seed, page, text(s.Written), text(s.Suspect), err)
			}
		}
		for _, p := range programs {
			if err := p.Failure(); err != nil {
				t.Error(err)
			}
		}
	})
}

// BenchmarkMissing is the time of a load of a missing page, which a goroutine here fills.
func BenchmarkMissing(b *testing.B) {
	needMissing(b)
	const pages = 4096
	a, c := newProgram(b, pages)
	m := a.demand(c, Async, c.addr, nil)
	defer m.serve()()
	var sum, n uint64
	for b.Loop() {
		a.punch(0, pages)
		sum += c.do("latencies", c.addr, pages, pageSize)
		n++
	}
	b.ReportMetric(float64(sum)/float64(n), "ns/fault(p50)")
}
