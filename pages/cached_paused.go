package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// With apply=sync, updates may enter a program's memory only in its sync calls. If one reached the
// page cache later, a program that had loaded an element before it and stores it back now would undo
// the update. So when a sync call ends, notices of updates that are left over are paused until the
// next one. The page cache keeps what it was given, and so does the ledger: stores on top of it are
// merged exactly.
//
// Only notices of updates are paused. A page is invalidated at any time if it is truncated, if it
// leaves, or if a write(2) must become visible.

// SetPaused says whether notices of updates are paused. It matters only while there are writers and
// the working copy is not shared.
func (c *Cached) SetPaused(on bool) {
	if c.paused == on {
		return
	}
	c.paused = on
	c.lineUp()
}

// lineUp enqueues again the extents with pages that were paused.
func (c *Cached) lineUp() {
	waiting := c.waiting
	c.waiting = nil
	for _, x := range waiting {
		x.waits = false
		c.enqueue(x)
	}
}

// HasPaused reports whether there are paused notices.
func (c *Cached) HasPaused() bool { return c.paused && c.countPaused() > 0 }

// pausedPages returns the pages of x whose notices are paused.
func (c *Cached) pausedPages(x *cachedExtent) dsm.PageSet {
	if !c.paused || c.shared || !c.writers {
		return dsm.PageSet{}
	}
	free := x.flying.Or(x.leaving).Or(x.urgent).Or(x.doubtful).Or(x.unsure).Or(x.late)
	return x.pending.And(x.backlog).Minus(free)
}

// countPaused returns how many notices are paused.
func (c *Cached) countPaused() (n int) {
	for _, x := range c.waiting {
		set := c.pausedPages(x)
		n += set.Len()
	}
	return n
}

// LastNotice returns the number of the notice that was handed out last.
func (c *Cached) LastNotice() uint64 { return c.area.drops.last }

// DoneUpTo reports whether the notice with the number last is done, and all before it.
func (c *Cached) DoneUpTo(last uint64) bool {
	for _, f := range c.flights {
		if f.id <= last {
			return false
		}
	}
	return true
}
