package pages

import (
	"fmt"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Problem describes what is inconsistent in the ledger, and returns "" if nothing is. It is for tests
// and for builds that check invariants.
func (c *Cached) Problem() string {
	var open, unready, backlog, voids int
	for e, x := range c.extents {
		told := x.flying.Minus(x.quiet)
		open += x.pending.Len() + told.Len()
		unready += x.blind.Len() + x.storing.Len() + x.doubtful.Len() + x.bare.Len()
		backlog += x.backlog.Len()
		if s := x.storing.Minus(x.flying); !s.Empty() {
			return fmt.Sprintf("extent %d: pages %v are stored by no notice", e, s)
		}
		if ready := c.ready(x); !ready.Empty() && !x.queued {
			return fmt.Sprintf("extent %d: pages %v wait for a notice that nobody will ask for", e, ready)
		}
	}
	for e, x := range c.extents {
		if set := c.pausedPages(x); !set.Empty() && !x.waits && !x.queued {
			return fmt.Sprintf("extent %d: pages %v are paused, and nobody will look", e, set)
		}
	}
	for e, x := range c.extents {
		if s := x.void.Minus(x.doubtful.And(x.given)).Or(x.mixed.Minus(x.void)).Or(x.early.Minus(x.flying)); !s.Empty() {
			return fmt.Sprintf("extent %d: pages %v are void, and not doubtful; or mixed, and not void; or early, and there is no notice", e, s)
		}
		voids -= x.void.Len()
	}
	if voids += c.voids; voids != 0 {
		return fmt.Sprintf("%d pages more are counted as void than are", voids)
	}
	if open != c.open || unready != c.unready || backlog != c.backlog {
		return fmt.Sprintf("pages that wait for a notice, are not ready, and are in the backlog: %d, %d, %d; counted as %d, %d, %d", open, unready, backlog, c.open, c.unready, c.backlog)
	}
	for p := range c.given {
		if e, i := p.Extent(); c.extents[e] == nil || !c.extents[e].given.Has(i) {
			return fmt.Sprintf("page %d: bytes are kept that the page cache was not given", p)
		}
	}
	for p := range c.since {
		e, i := p.Extent()
		if _, kept := c.given[p]; !kept || c.extents[e] == nil || !c.extents[e].doubtful.Has(i) {
			return fmt.Sprintf("page %d: what came since a shrink is kept, and it is not doubtful or has no g", p)
		}
	}
	return ""
}

// Believed returns the bytes that the page cache has of page p according to the ledger, without the
// stores that were not delivered yet; known is false if the ledger does not know. It is for tests.
func (c *Cached) Believed(p dsm.PageIndex) (b []byte, known bool) {
	e, i := p.Extent()
	x := c.extent(e)
	if x == nil || !x.given.Has(i) || x.flying.Has(i) || x.expected.Has(i) || x.blind.Has(i) || x.doubtful.Has(i) || x.unsure.Has(i) || int64(p)*dsm.PageSize >= c.area.size {
		return nil, false
	}
	if g, ok := c.given[p]; ok {
		return g.mem, true
	}
	if c.shared || x.away(i) {
		return nil, false
	}
	return c.area.Working(p), true
}
