package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// Where updates enter memory in sync calls only, those that a sync has brought into the working copy may not reach the page cache after
// that sync has ended: a program that has loaded an element, and stores it back now, would undo them. Such notices are on hold until
// the next sync. The page cache keeps what it was given, which the ledger keeps too, so stores on top of it are exact.
//
// On hold are notices of updates only. A page that is cut, that leaves, or of which a write(2) has to be seen is invalidated at any time.

// SetHold says whether notices of updates are on hold.
func (c *Cached) SetHold(on bool) {
	if c.hold == on {
		return
	}
	c.hold = on
	c.lineUp()
}

// lineUp looks again at what was on hold.
func (c *Cached) lineUp() {
	waiting := c.waiting
	c.waiting = nil
	for _, x := range waiting {
		x.waits = false
		c.enqueue(x)
	}
}

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

// LastNotice returns which notice was the last to be handed out.
func (c *Cached) LastNotice() uint64 { return c.area.notices }

// DoneUpTo reports whether all notices up to that one are done.
func (c *Cached) DoneUpTo(last uint64) bool {
	for _, f := range c.flights {
		if f.id <= last {
			return false
		}
	}
	return true
}
