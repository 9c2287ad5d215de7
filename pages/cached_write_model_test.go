package pages

import (
	"bytes"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// inWrite reports whether a write(2) is under way: the kernel lets no other in.
func (m *ledgerModel) inWrite() bool {
	if m.inPunch() {
		return true
	}
	for _, c := range m.cache {
		if c.sent != nil || c.writing != nil && !c.writing.back {
			return true
		}
	}
	return false
}

// write is a write(2) of a few elements or of a whole page that is in the page cache.
func (m *ledgerModel) write(p dsm.PageIndex) {
	c := m.page(p)
	_, stale := m.stale[p]
	off, ok := m.anyElement(p, aboveCache)
	if !m.writer || stale || !ok || c.data == nil || c.reading || m.sum && c.dirty || c.writing != nil || m.inWrite() || off+8 > m.size {
		return
	}
	m.change(c.data, off)
	n := int64(8)
	if m.sum && m.rng.IntN(3) == 0 {
		off, n = int64(p)*dsm.PageSize, min(dsm.PageSize, m.area.Size()-int64(p)*dsm.PageSize)
	}
	if m.sum { // the program makes it of what it knows, and nobody may read the page meanwhile
		c.writing = &modelIO{off: off, data: append([]byte(nil), c.data[off%dsm.PageSize:][:n]...)}
		return
	}
	c.sent = &modelIO{off: off, data: append([]byte(nil), c.data[off%dsm.PageSize:][:n]...)}
}

// overwrite is a write(2) of a whole page that the page cache does not have. The
// program makes it of what it knows by other means, so nobody may update the page meanwhile.
func (m *ledgerModel) overwrite(p dsm.PageIndex) {
	c := m.page(p)
	off, ok := m.anyElement(p, aboveCache)
	_, stale := m.stale[p]
	if m.stashed(p) {
		m.fetch(p)
	}
	g, entry := m.c.given[p]
	entry = entry && (!m.isHere(p) || !m.c.current(p, g))
	end := (int64(p) + 1) * dsm.PageSize
	if !m.writer || !ok || stale || entry || c.data != nil || c.reading || c.writing != nil || m.inWrite() || end > min(m.size, m.area.Size()) {
		return
	}
	c.data = append([]byte(nil), m.value(p)...)
	m.change(c.data, off)
	m.see(p, c.data)
	c.writing = &modelIO{int64(p) * dsm.PageSize, append([]byte(nil), c.data...), true, false, false}
}

// writeDirect is a write(2) past the page cache. What the program writes follows from what it
// read the same way.
func (m *ledgerModel) writeDirect(p dsm.PageIndex) {
	_, stale := m.stale[p]
	off, ok := m.anyElement(p, pastCache)
	if w := m.page(p).writing; w != nil && w.all || !m.writer || stale || !ok || m.inPunch() {
		return
	}
	if m.sum {
		m.fetch(p)
	}
	b := bytes.Clone(m.value(p))
	m.change(b, off)
	m.take(modelStores{off, b[off%dsm.PageSize:][:8], pastTheCache})
}
