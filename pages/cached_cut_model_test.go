package pages

import (
	"maps"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// truncate changes the size, here or on another node. Nobody has stores there
// that were not delivered: what becomes of those is not defined.
func (m *ledgerModel) truncate() {
	size := m.area.Size() - int64(m.rng.IntN(3*dsm.PageSize))&^7
	if m.rng.IntN(2) == 0 {
		size = m.area.Size() + int64(m.rng.IntN(3*dsm.PageSize))&^7
	}
	size = min(max(size, dsm.ExtentSize-3*dsm.PageSize), dsm.ExtentSize+5*dsm.PageSize)
	from := dsm.PageIndex(size / dsm.PageSize)
	for p, c := range m.cache {
		if p >= from && (c.dirty || c.writing != nil || c.sent != nil) {
			return
		}
	}
	local := m.rng.IntN(2) == 0
	before := maps.Clone(m.stale)
	shrinks := size < m.area.Size()
	if shrinks {
		m.c.BeforeCut(size)
	}
	if err := m.area.Resize(size); err != nil {
		m.t.Fatal(err)
	}
	m.c.Truncate(size)
	if shrinks {
		m.cutAway(size)
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
	if local {
		m.c.KernelCuts(size)
	}
	if local || size > m.size {
		m.learnSize()
	}
	if local { // the kernel has cut its pages itself, but for those on their way
		maps.DeleteFunc(m.stale, func(p dsm.PageIndex, _ struct{}) bool {
			_, old := before[p]
			return !old && !m.page(p).reading && !m.oldStore(p)
		})
	}
}

// learnSize is the kernel learning the area's size: it cuts its page cache.
func (m *ledgerModel) learnSize() {
	m.size = m.area.Size()
	m.c.KernelTold(m.size)
	for p, c := range m.cache {
		switch {
		case c.reading || c.writing != nil:
			c.cut = append(c.cut, m.size)
		default:
			c.truncate(p, m.size)
		}
	}
}

// cutNow cuts page p, which was locked, to the sizes that the kernel has learned of meanwhile.
func (c *modelPage) cutNow(p dsm.PageIndex) {
	for _, size := range c.cut {
		c.truncate(p, size)
	}
	c.cut = nil
}

// truncate is what becomes of page p when the kernel cuts the file off.
func (c *modelPage) truncate(p dsm.PageIndex, size int64) {
	switch off := int64(p) * dsm.PageSize; {
	case c.data == nil || size >= off+dsm.PageSize:
	case size > off:
		clear(c.data[size-off:])
	default:
		c.data = nil
		c.dirty = false
	}
}
