package pages

import (
	"bytes"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestHoleIsKept: the next daemons know which part of a page the kernel may still clear because of a hole, exactly as long as it may.
func TestHoleIsKept(t *testing.T) {
	const size = 3 * dsm.PageSize
	drop := func(c *Cached, p dsm.PageIndex) {
		c.want(c.page(p))
		for {
			n, ok := c.NextNotice()
			if !ok {
				return
			}
			c.Done(n)
		}
	}
	for _, c := range []struct {
		name string
		then func(c *Cached, over func())
		want map[dsm.PageIndex][2]int // the hole
	}{
		{"nothing", func(*Cached, func()) {}, map[dsm.PageIndex][2]int{0: {100, dsm.PageSize}, 2: {0, 50}}},
		{"a page is dropped", func(c *Cached, _ func()) { drop(c, 0) }, map[dsm.PageIndex][2]int{2: {0, 50}}},
		{"stores to the hole", func(c *Cached, _ func()) { c.Delivered(2*dsm.PageSize, fill(7), true) }, map[dsm.PageIndex][2]int{0: {100, dsm.PageSize}}},
		{"the thread goes on", func(_ *Cached, over func()) { over() }, nil},
		{"another punch", func(c *Cached, _ func()) { c.KernelLocks() }, nil},
		{"another punch, of the same page", func(c *Cached, _ func()) {
			answered, _ := c.KernelPunches(8, 8)
			answered(time.Now())
		}, map[dsm.PageIndex][2]int{0: {8, 16}}},
		{"another punch, not answered", func(c *Cached, _ func()) {
			answered, _ := c.KernelPunches(0, 8)
			c.KernelPunches(8, 8)
			answered(time.Now())
		}, nil},
		{"no writer", func(c *Cached, _ func()) { c.SetWriters(false) }, nil},
		{"another ledger", func(c *Cached, _ func()) { NewCached(c.area) }, nil},
	} {
		m, _, ledger := newHeldReplica(t, size)
		answered, over := ledger.KernelPunches(100, 2*dsm.PageSize-50)
		answered(time.Now())
		c.then(ledger, over)
		for daemon := range 2 {
			var a *Area
			a, _, ledger = nextDaemon(t, m, size, size)
			for p := range dsm.PageIndex(3) {
				copy(a.Working(p), fill(5))
				want := fill(5)
				if in, ok := c.want[p]; ok {
					clear(want[in[0]:in[1]])
				}
				got := make([]byte, dsm.PageSize)
				if ledger.Read(int64(p)*dsm.PageSize, got); !bytes.Equal(got, want) {
					t.Errorf("%s: daemon %d: a READ of page %d brings %d at 50 and %d at 100", c.name, daemon, p, got[50], got[100])
				}
			}
		}
		ledger.TellPunched(time.Now())
		for p := range c.want {
			drop(ledger, p)
			got := make([]byte, dsm.PageSize)
			if ledger.Read(int64(p)*dsm.PageSize, got); !bytes.Equal(got, fill(5)) {
				t.Errorf("%s: when it is dropped, a READ of page %d brings %d and %d", c.name, p, got[40], got[100])
			}
		}
		if _, _, ledger = nextDaemon(t, m, dsm.PageSize, dsm.PageSize); ledger.punched != nil {
			t.Errorf("%s: a hole is left", c.name)
		}
	}
}

// TestHoleIsTruncated: nothing is left of a hole in pages that are past the end when the next daemon begins.
func TestHoleIsTruncated(t *testing.T) {
	m, _, c := newHeldReplica(t, 3*dsm.PageSize)
	answered, _ := c.KernelPunches(2*dsm.PageSize+8, 8)
	answered(time.Now())
	a, _, c := nextDaemon(t, m, dsm.PageSize, dsm.PageSize)
	if c.punched != nil || a.frames.used > 0 {
		t.Errorf("%+v, and %d frames are left", c.punched, a.frames.used)
	}
}
