package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// A write(2) that goes through the page cache puts its bytes into the page, if that is up to date,
// and unlocks it. Only then does the kernel send the WRITE. In between, an invalidation may drop the
// page, and a READ may bring it back as it was before the write. So when the WRITE comes, the page
// cache holds the page either with the write or without it, and no order of requests tells which.
//
// The kernel does one write(2) to a file at a time, so this one began after the one before it was
// taken. So the page can be without the write only if it was invalidated, and then read, since that
// one was taken. (Apart from invalidations, only what KernelDrops and KernelTold report can drop the
// page: the kernel keeps it until the WRITE is answered.) If that did not happen, it is known
// what the page cache has, and the write(2) costs nothing more.
//
// If it did happen the page is unsure, and both values are kept. A later WRITE of a mapping may bring
// an element with either value. Neither counts as a store, else the old value would undo the write.
// But a program may really store the old value, after its write(2). So the page gets an
// invalidation at once, and the write(2) is answered when the page is Sure. Then the page is gone
// from the page cache, and the next READ brings it with the write.
//
// If the page was not up to date, it stays locked until the WRITE is answered. Then it cannot have the
// old bytes, but the invalidation does not end before the answer either. So wait for Sure only for a
// short time.

// window is what happened to the pages of an extent since the last write(2) was taken.
type window struct {
	dropped dsm.PageSet // an invalidation ended
	back    dsm.PageSet // a READ was served after an invalidation began
}

// EndWrite records that a write(2) has been taken, except for its pages that are not here. The next
// write(2) begins after it.
func (c *Cached) EndWrite() {
	c.shaken, c.again = c.area.drops.Under(), false
	clear(c.windows)
}

// KernelDrops must be called before something makes the page cache drop pages without a notice of
// this ledger. Call ended when that is over.
func (c *Cached) KernelDrops() (ended func()) {
	c.shaken = true
	return c.area.drops.Begin()
}

// windowOf returns the window of the extent of x, and makes it if there is none.
func (c *Cached) windowOf(x *cachedExtent) *window {
	w := c.windows[x.extent]
	if w == nil {
		w = &window{}
		c.windows[x.extent] = w
	}
	return w
}

// wentAway records that an invalidation of page i ended.
func (c *Cached) wentAway(x *cachedExtent, i int) {
	if c.writers {
		c.windowOf(x).dropped.Add(i)
	}
}

// cameBack records a READ of page i.
func (c *Cached) cameBack(x *cachedExtent, i int) {
	if !c.writers {
		return
	}
	if w := c.windows[x.extent]; c.shaken || x.flying.Has(i) || w != nil && w.dropped.Has(i) {
		c.windowOf(x).back.Add(i)
	}
}

// notBack records that the page cache does not have what a READ of page i brought.
func (c *Cached) notBack(x *cachedExtent, i int) {
	if w := c.windows[x.extent]; w != nil {
		w.back.Remove(i)
	}
}

// isBack reports whether a READ may have brought page i back after a write(2) that is taken now put
// its bytes there.
func (c *Cached) isBack(x *cachedExtent, i int) bool {
	w := c.windows[x.extent]
	return c.again || w != nil && w.back.Has(i) // what the daemon before has seen is not known
}

// beforeWrite is called before data is written at lo of page i, which a READ may have brought back.
// It makes the page unsure if data changes it, and returns g. ok is false if there is no g and none is
// needed, because data changes nothing, or if g cannot be known.
func (c *Cached) beforeWrite(x *cachedExtent, i, lo int, data []byte) (g frame, ok bool) {
	p := x.page(i)
	if g, ok = c.given[p]; !ok {
		if !c.writers || x.blind.Has(i) || x.storing.Has(i) || x.doubtful.Has(i) || string(c.area.Working(p)[lo:lo+len(data)]) == string(data) {
			return g, false
		}
		g = c.keep(x, i)
		c.snapshot(g.mem, p)
		c.keepsGiven(x, i)
		c.remove(&x.bare, i, &c.unready)
	}
	if string(g.mem[lo:lo+len(data)]) == string(data) {
		return g, true
	}
	o := c.area.frames.take()
	copy(o.mem, g.mem)
	c.area.frames.tag(o, frameOther, uint64(p), 0)
	c.others[p] = append(c.others[p], o)
	x.unsure.Add(i)
	c.want(x, i)
	return g, true
}

// Sure reports whether no page of [off, off+n) is unsure, or void. A write(2) waits for it.
func (c *Cached) Sure(off, n int64) bool {
	if len(c.others) == 0 && c.voids == 0 {
		return true
	}
	from, to := pagesOf(off, n)
	for p := from; p < to; p++ {
		e, i := p.Extent()
		if x := c.extents[e]; len(c.others[p]) > 0 || x != nil && x.void.Has(i) {
			return false
		}
	}
	return true
}

// sure records that page i is not unsure any more.
func (c *Cached) sure(x *cachedExtent, i int) {
	if x.unsure.Has(i) {
		x.unsure.Remove(i)
		c.dropOthers(x.page(i))
	}
}

func (c *Cached) dropOthers(p dsm.PageIndex) {
	for _, o := range c.others[p] {
		c.area.frames.put(o)
	}
	delete(c.others, p)
}
