package coherence

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
)

// evict has a node of an area on demand give up pages, whether it is short of room or not.
func (n *simNode) evict() {
	set := make(map[dsm.ExtentIndex]dsm.PageSet)
	for _, p := range hot {
		if n.sim.rng.IntN(3) > 0 {
			continue
		}
		e, i := p.Extent()
		s := set[e]
		s.Add(i)
		set[e] = s
	}
	n.area.step(func() {
		for _, e := range []dsm.ExtentIndex{0, 1, 2, 3} {
			n.area.evict(e, set[e], n.sim.rng.IntN(2) == 0)
		}
	})
}

// here reports whether page p is here for an attached program, which waits for it if not.
func (n *simNode) here(p dsm.PageIndex) (ok bool) {
	off := int64(p) * dsm.PageSize
	n.area.step(func() {
		if ok = n.area.present(off, dsm.PageSize); !ok {
			n.area.fetch(off, dsm.PageSize)
		}
	})
	return ok
}

// page brings page p to the node, at rest, and returns what the working copy and the page cache
// have of it.
func (n *simNode) page(p dsm.PageIndex) (working []byte, cached *cachedPage) {
	for !n.here(p) {
		n.sim.drain()
	}
	return n.area.mu.mem.Working(p), n.kernel.fault(p)
}
