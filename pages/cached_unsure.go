package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// A write(2) that goes through the page cache puts its bytes into the page, if that is up to date, unlocks it, and
// then sends the WRITE. In between an invalidation may drop the page, and a READ bring it back as it was before. So when
// the WRITE comes the page cache holds the bytes of after the write or those of before it: no order of requests tells which.
//
// That takes an invalidation and then a READ of the page, both since the write(2) before this one was taken: the kernel
// lets one write(2) to a file in at a time, so this one has begun after that. (Nothing else drops the page but what
// KernelDrops and KernelTold tell of: while the WRITE is on its way the kernel holds on to it.) Without
// them it is sure what the page cache holds, and the write(2) costs nothing more.
//
// Such a page is unsure. Both values are kept. What a WRITE of a mapping brings as either of them is not taken for a
// store, or the bytes of before would undo the write. But a program may store just those, after its write. So
// the page gets an invalidation at once, and the write(2) is answered when the page is Sure: then it is
// gone from the page cache, and read again with the bytes of after.
//
// A page that was not up to date stays locked until the WRITE is answered. Then it does not hold the bytes of before, and
// the invalidation does not end before the answer: whoever waits for Sure must not wait for long.

// window is what happened to the pages of an extent since the last write(2) was taken.
type window struct {
	dropped dsm.PageSet // an invalidation ended
	back    dsm.PageSet // a READ was served after an invalidation began
}

// EndWrite says that a write(2) has been taken, but for pages that are not here: the next one begins after it.
func (c *Cached) EndWrite() {
	c.punchOver()
	c.shaken = c.drops > 0
	clear(c.windows)
}

// KernelDrops says that the page cache is about to be made drop pages without a notice of this ledger; ended is
// called when it has.
func (c *Cached) KernelDrops() (ended func()) {
	c.drops++
	c.shaken = true
	return func() { c.drops-- }
}

// windowOf returns the window of the extent of x, making it.
func (c *Cached) windowOf(x *cachedExtent) *window {
	w := c.windows[x.extent]
	if w == nil {
		w = &window{}
		c.windows[x.extent] = w
	}
	return w
}

// wentAway takes note that an invalidation of page i ended.
func (c *Cached) wentAway(x *cachedExtent, i int) {
	if c.writers {
		c.windowOf(x).dropped.Add(i)
	}
}

// cameBack takes note of a READ of page i.
func (c *Cached) cameBack(x *cachedExtent, i int) {
	if !c.writers {
		return
	}
	if w := c.windows[x.extent]; c.shaken || x.flying.Has(i) || w != nil && w.dropped.Has(i) {
		c.windowOf(x).back.Add(i)
	}
}

// notBack takes note that the page cache does not hold page i of a READ.
func (c *Cached) notBack(x *cachedExtent, i int) {
	if w := c.windows[x.extent]; w != nil {
		w.back.Remove(i)
	}
}

// isBack reports whether a READ may have brought page i back since a write(2) that is taken now put its bytes there.
func (c *Cached) isBack(x *cachedExtent, i int) bool {
	w := c.windows[x.extent]
	return w != nil && w.back.Has(i)
}

// beforeWrite makes page i, which may have come back, unsure before the bytes at lo are written, and
// returns what the page cache was given. ok is false if that is not known.
func (c *Cached) beforeWrite(x *cachedExtent, i, lo int, data []byte) (g frame, ok bool) {
	p := x.page(i)
	if g, ok = c.given[p]; !ok {
		if !c.writers || x.blind.Has(i) || x.storing.Has(i) || x.doubtful.Has(i) || string(c.area.Working(p)[lo:lo+len(data)]) == string(data) {
			return g, false
		}
		g = c.keep(x, i)
		c.snapshot(g.mem, p)
		c.remove(&x.bare, i, &c.unready)
	}
	if string(g.mem[lo:lo+len(data)]) == string(data) {
		return g, true
	}
	o := c.area.frames.take()
	copy(o.mem, g.mem)
	c.others[p] = append(c.others[p], o)
	x.unsure.Add(i)
	c.want(x, i)
	return g, true
}

// Sure reports whether it is known what the page cache holds of [off, off+n), after a write(2).
func (c *Cached) Sure(off, n int64) bool {
	if len(c.others) == 0 {
		return true
	}
	from, to := pagesOf(off, n)
	for p := from; p < to; p++ {
		if len(c.others[p]) > 0 {
			return false
		}
	}
	return true
}

// sure ends that page i is unsure.
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
