package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// With apply=sync, updates may enter a program's memory only in its sync calls. If one reached the
// page cache later, a program that had loaded an element before it and stores it back now would undo
// the update. So when a sync call ends, notices of updates that are left over are on hold until the
// next one. The page cache keeps what it was given, and so does the ledger: stores on top of it are
// merged exactly.
//
// Only notices of updates are put on hold. A page is invalidated at any time if it is cut, if it
// leaves, or if a write(2) must become visible.

// SetHold says whether notices of updates are on hold. It matters only while there are writers and
// the working copy is not shared.
func (c *Cached) SetHold(on bool) {
	if c.hold == on {
		return
	}
	c.hold = on
	c.lineUp()
}

// lineUp enqueues again the extents with pages that were on hold.
func (c *Cached) lineUp() {
	waiting := c.waiting
	c.waiting = nil
	for _, x := range waiting {
		x.waits = false
		c.enqueue(x)
	}
}

// Holds reports whether there are notices on hold.
func (c *Cached) Holds() bool { return c.hold && c.holds() > 0 }

// onHold returns the pages of x whose notices are on hold.
func (c *Cached) onHold(x *cachedExtent) dsm.PageSet {
	if !c.hold || c.shared || !c.writers {
		return dsm.PageSet{}
	}
	free := x.flying.Or(x.leaving).Or(x.urgent).Or(x.doubtful).Or(x.unsure).Or(x.late)
	return x.pending.And(x.held).Minus(free)
}

// holds returns how many notices are on hold.
func (c *Cached) holds() (n int) {
	for _, x := range c.waiting {
		set := c.onHold(x)
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
