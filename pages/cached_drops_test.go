package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// cameBackUnheard is a write(2) of a page that the kernel may have dropped since the write(2) before, and has read again.
func cameBackUnheard(t *testing.T, c *Cached, b byte) (sure bool) {
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	c.Read(0, make([]byte, dsm.PageSize))
	c.Wrote(k, 0, []byte{b}, false)
	c.EndWrite()
	return c.Sure(0, 1)
}

// TestDropsOutliveTheLedger: what began to drop pages of the page cache while the ledger before this one was there may do so
// until it ends.
func TestDropsOutliveTheLedger(t *testing.T) {
	for what, begin := range map[string]func(c *Cached) (end func(c *Cached)){
		"KernelDrops": func(c *Cached) func(*Cached) {
			ended := c.KernelDrops()
			return func(*Cached) { ended() }
		},
		"a notice": func(c *Cached) func(*Cached) {
			c.BeforeMerge(0)
			c.area.Working(0)[2] = 2
			n, ok := c.NextNotice()
			if !ok {
				t.Fatal("no notice")
			}
			return func(c *Cached) { c.Done(n) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			c, _ := unsurePage(t)
			end := begin(c)
			c = NewCached(c.area)
			c.SetWriters(true)
			c.Read(0, make([]byte, dsm.PageSize))
			c.EndWrite()
			if cameBackUnheard(t, c, 5) {
				t.Error("sure of a page that may have been dropped and read since the write(2) before")
			}
			end(c)
			for n, ok := c.NextNotice(); ok; n, ok = c.NextNotice() {
				c.Done(n)
			}
			c.EndWrite()
			if !cameBackUnheard(t, c, 6) {
				t.Error("unsure of a page that nothing can have dropped")
			}
		})
	}
}
