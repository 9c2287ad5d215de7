package pages

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// A file that is open with FOPEN_DIRECT_IO, or O_DIRECT, is read and written past the page cache.
// Such a read leaves nothing in the page cache, so it needs no ledger: Area.ReadWorking serves it.

// WroteDirect takes a write(2) that did not go through the page cache into the working copy. To the
// ledger it is like an update from elsewhere: it keeps what the page cache was given, and makes
// notices pending. It returns the pages [from, to) that contain the range. The pages must be here.
//
// The kernel drops the range from its page cache around such a write, but a READ may bring pages
// back before the write is done. So answer the write only when the pages are Told: a program that
// stores to its mapping after the answer then stores on top of the written bytes. If it could still
// store the old bytes, the ledger would not recognize that as a store.
func (c *Cached) WroteDirect(off int64, data []byte) (from, to dsm.PageIndex) {
	from, to = pagesOf(off, int64(len(data)))
	for p := from; p < to; p++ {
		lo := int(max(off-int64(p)*dsm.PageSize, 0))
		n := min(dsm.PageSize-lo, len(data))
		c.BeforeMerge(p)
		e, i := p.Extent()
		if x := c.extents[e]; x != nil && x.pending.Has(i) {
			x.urgent.Add(i)
			c.enqueue(x)
		}
		w := c.area.Working(p)
		if c.shared {
			merge.OverwriteShared(w, lo, data[:n])
		} else {
			copy(w[lo:], data[:n])
		}
		data = data[n:]
	}
	return from, to
}

// Told reports whether no notice for a page of [off, off+n) is pending or in flight. Those that are paused do
// not count: they are of updates that came after the write.
func (c *Cached) Told(off, n int64) bool {
	from, to := pagesOf(off, n)
	for p := from; p < to; {
		e, i := p.Extent()
		end := min(i+int(to-p), dsm.ExtentPages)
		if x := c.extents[e]; x != nil {
			if set := x.pending.Minus(c.pausedPages(x)).Or(x.flying.Minus(x.quiet)).And(dsm.Range(i, end)); !set.Empty() {
				return false
			}
		}
		p += dsm.PageIndex(end - i)
	}
	return true
}

// pagesOf returns the pages [from, to) that contain [off, off+n).
func pagesOf(off, n int64) (from, to dsm.PageIndex) {
	return dsm.PageIndex(off / dsm.PageSize), dsm.PageIndex(wholePages(off+n) / dsm.PageSize)
}
