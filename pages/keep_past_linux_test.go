package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestPagePastTheEndIsKept: the page cache has something of a page that lies past the end. The next daemon knows that, exactly as long as it may be so: the area may grow over it.
func TestPagePastTheEndIsKept(t *testing.T) {
	const size, p = dsm.PageSize + 100, 2
	page := func() []byte { return make([]byte, dsm.PageSize) }
	drop := func(c *Cached) {
		for n, ok := c.NextNotice(); ok; n, ok = c.NextNotice() {
			c.Done(n)
		}
	}
	for _, x := range []struct {
		name  string
		then  func(c *Cached)
		given bool
	}{
		{"nothing", func(*Cached) {}, false},
		{"the last page is read", func(c *Cached) { c.Read(dsm.PageSize, page()) }, false},
		{"read", func(c *Cached) { c.Read(p*dsm.PageSize, page()) }, true},
		{"read by who only reads", func(c *Cached) { c.SetWriters(false); c.Read(p*dsm.PageSize, page()) }, true},
		{"read, and the file shared", func(c *Cached) { c.SetShared(true); c.Read(p*dsm.PageSize, page()) }, true},
		{"read, and dropped", func(c *Cached) { c.Read(p*dsm.PageSize, page()); drop(c) }, false},
		{"written", func(c *Cached) { c.NotTaken(p*dsm.PageSize, fill(7)) }, true},
		{"written, and dropped", func(c *Cached) { c.NotTaken(p*dsm.PageSize, fill(7)); drop(c) }, false},
		{"written while it is dropped", func(c *Cached) {
			c.Read(p*dsm.PageSize, page())
			n, _ := c.NextNotice()
			c.NotTaken(p*dsm.PageSize, fill(7))
			c.Done(n)
		}, true},
	} {
		m, _, c := newHeldReplica(t, size)
		x.then(c)
		a, _, next := nextDaemon(t, m, size, size)
		if err := a.Resize(3 * dsm.PageSize); err != nil {
			t.Fatal(err)
		}
		next.Truncate(3 * dsm.PageSize)
		if next.Refuses(p) != x.given {
			t.Errorf("%s: stores to the page are refused: %v", x.name, !x.given)
		}
		told := false
		for n, ok := next.NextNotice(); ok; n, ok = next.NextNotice() {
			told = told || n.Kind == NoticeInvalidate && n.Off <= p*dsm.PageSize && n.Off+n.Len > p*dsm.PageSize
			next.Done(n)
		}
		if told != x.given {
			t.Errorf("%s: the kernel is told to drop the page: %v", x.name, told)
		}
	}
}

// TestStoredToAPagePastTheEnd: the same page, after the area has grown, and before the kernel drops it. What a program stores there is taken, and nothing else.
func TestStoredToAPagePastTheEnd(t *testing.T) {
	const p = 2
	_, a, c := newHeldReplica(t, dsm.PageSize)
	c.Read(p*dsm.PageSize, make([]byte, dsm.PageSize))
	if err := a.Resize(3 * dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	c.Truncate(3 * dsm.PageSize)
	c.BeforeMerge(p)
	a.Working(p)[0] = 5
	stored := make([]byte, dsm.PageSize)
	stored[1] = 7
	_, _, ok := c.Wrote(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), p*dsm.PageSize, stored, true)
	if w := a.Working(p); !ok || w[0] != 5 || w[1] != 7 {
		t.Errorf("taken: %v; the page begins with %d, want 5 and 7", ok, w[:2])
	}
}
