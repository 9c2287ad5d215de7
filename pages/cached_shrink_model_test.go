package pages

import (
	"maps"
	"math"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// modelVoid is the part of a page, as offsets in the file, of which stores do not count: it was truncated on another node after the page cache got it.
type modelVoid struct {
	from, to int64
	mixed    bool // a program of this node has made the file longer since: a WRITE that changes the part is refused
}

func (v *modelVoid) has(off int64) bool { return v != nil && v.from <= off && off < v.to }

// voided follows a shrink on another node: what programs have stored to a mapping past the end, and was not delivered, does not count, nor what they store there
// before the kernel hears of it.
func (m *ledgerModel) voided(size int64) {
	for p, c := range m.cache {
		if at := int64(p) * dsm.PageSize; at+dsm.PageSize > size && (c.data != nil || c.reply != nil) {
			v := m.void[p]
			if v == nil || v.from >= max(at, size) {
				v = &modelVoid{from: max(at, size)}
			}
			v.to, m.void[p] = at+dsm.PageSize, v
		}
	}
}

// mix follows a truncate(2) of this node: the kernel drops what is past the size, and a program may store to what is before it.
func (m *ledgerModel) mix(size int64) {
	for p, v := range m.void {
		if v.to = min(v.to, size); v.from >= v.to {
			delete(m.void, p)
		}
		v.mixed = true
	}
}

// truncate changes the size, here or on another node. No write(2) there is under way, and for a truncate(2) of this node the kernel has WRITEs answered first.
func (m *ledgerModel) truncate() {
	size := m.area.Size() - int64(m.rng.IntN(3*dsm.PageSize))&^7
	if m.rng.IntN(2) == 0 {
		size = m.area.Size() + int64(m.rng.IntN(3*dsm.PageSize))&^7
	}
	size = min(max(size, dsm.ExtentSize-3*dsm.PageSize), dsm.ExtentSize+5*dsm.PageSize)
	from := dsm.PageIndex(size / dsm.PageSize)
	local := m.rng.IntN(2) == 0
	for p, c := range m.cache {
		if p >= from && (c.writing != nil && (local || !c.writing.back) || c.sent != nil) {
			return
		}
	}
	before := maps.Clone(m.stale)
	shrinks := size < m.area.Size()
	if m.inPunch() {
		return
	}
	if shrinks {
		m.c.BeforeShrink(size)
	}
	if err := m.area.Resize(size); err != nil {
		m.t.Fatal(err)
	}
	m.c.Truncate(size)
	if shrinks {
		m.shrinkAway(size)
		for e := range m.want {
			if e*8 >= size {
				delete(m.want, e)
			}
		}
		for e := range m.shown {
			if e*8 >= size {
				delete(m.shown, e)
			}
		}
		for p, c := range m.cache {
			if p < from {
				continue
			}
			if c.data != nil || c.reading {
				m.stale[p] = struct{}{}
			}
		}
		for _, n := range m.notices {
			n.old = true
			for p := from; int64(p)*dsm.PageSize < n.Off+n.Len; p++ {
				m.stale[p] = struct{}{}
			}
		}
	}
	if shrinks {
		m.voided(size)
	}
	if local {
		m.c.KernelShrinks(size)
		m.mix(size)
	}
	if local || size > m.size {
		m.learnSize()
	}
	if local { // the kernel has dropped its pages itself, but for those on their way
		maps.DeleteFunc(m.stale, func(p dsm.PageIndex, _ struct{}) bool {
			_, old := before[p]
			return !old && !m.page(p).reading && !m.oldStore(p)
		})
	}
}

// learnSize is the kernel learning the area's size: it truncates its page cache.
func (m *ledgerModel) learnSize() {
	m.size = m.area.Size()
	m.c.KernelTold(m.size)
	m.kernelDrops(modelRange{m.size, math.MaxInt64})
}

// dropNow drops of page p, which was locked, what the kernel was to drop meanwhile.
func (c *modelPage) dropNow(p dsm.PageIndex) {
	for _, gone := range c.dropped {
		c.truncate(p, gone)
	}
	c.dropped = nil
}

// modelRange is a range of the file that the kernel drops from its page cache.
type modelRange struct{ from, to int64 }

// truncate is what becomes of page p when the kernel drops a range.
func (c *modelPage) truncate(p dsm.PageIndex, gone modelRange) {
	from, to := max(gone.from-int64(p)*dsm.PageSize, 0), min(gone.to-int64(p)*dsm.PageSize, dsm.PageSize)
	switch {
	case c.data == nil || from >= to:
	case to-from < dsm.PageSize:
		clear(c.data[from:to])
	default:
		c.data = nil
		c.dirty = false
	}
}

// kernelDrops has the kernel drop a range: at once of the pages that are not locked.
func (m *ledgerModel) kernelDrops(gone modelRange) {
	for p, c := range m.cache {
		switch {
		case c.reading || c.writing != nil:
			c.dropped = append(c.dropped, gone)
		default:
			c.truncate(p, gone)
		}
	}
}
