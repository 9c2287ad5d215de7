package pages

import (
	"math"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// modelPunch is a hole that a program punches. What programs store there meanwhile through mappings is not defined, so none does.
type modelPunch struct {
	modelRange
	zeroed   bool
	answered func(time.Time)
	over     func()
}

// punch begins a hole, or takes the one under way a step further.
func (m *ledgerModel) punch(p dsm.PageIndex) {
	h := m.punching
	if !m.inPunch() && m.holeOut != nil {
		m.goOn, m.holeOut = m.holeOut, nil
	}
	if m.goOn != nil && m.rng.IntN(4) == 0 {
		m.goOn() // also while the next hole is being punched
	}
	switch {
	case h == nil:
		if !m.inPunch() && m.rng.IntN(2) == 0 {
			if m.rng.IntN(2) == 0 {
				m.c.KernelLocks()
			} else {
				m.c.TellPunched(time.Now())
			}
		}
		m.beginPunch(p)
	case !h.zeroed:
		h.zeroed = true
		h.answered, h.over = m.c.KernelPunches(h.from, h.to-h.from)
		for off := h.from; off < h.to; {
			p := dsm.PageIndex(off / dsm.PageSize)
			n := min(int64(p+1)*dsm.PageSize, h.to) - off
			m.take(modelStores{off, make([]byte, n), punchedHole})
			if c := m.page(p); c.data != nil || c.reading {
				m.stale[p] = struct{}{}
			}
			off += n
		}
	case m.c.Told(h.from, h.to-h.from):
		h.answered(time.Time{})
		m.holeOut = h.over
		m.kernelDrops(h.modelRange)
		m.punching = nil
	}
}

func (m *ledgerModel) beginPunch(p dsm.PageIndex) {
	from := int64(p)*dsm.PageSize + int64(m.rng.IntN(dsm.PageSize/8))*8
	to := from + 8 + int64(m.rng.IntN(2*dsm.PageSize/8))*8
	if to = min(to, m.area.Size()&^7, m.size&^7); m.sum || !m.writer || m.inWrite() || from >= to {
		return
	}
	for p := dsm.PageIndex(from / dsm.PageSize); int64(p)*dsm.PageSize < to; p++ {
		_, stale := m.stale[p]
		if c := m.page(p); stale || c.dirty || c.writing != nil { // the kernel has written them back
			return
		}
	}
	m.punching = &modelPunch{modelRange: modelRange{from, to}}
}

// inHole reports whether an element lies in the hole that is being punched.
func (m *ledgerModel) inHole(off int64) bool {
	return m.punching != nil && off >= m.punching.from && off < m.punching.to
}

// inPunch reports whether a punch has not returned: of one file the kernel does no write(2), truncation or other punch meanwhile.
func (m *ledgerModel) inPunch() bool {
	if m.punching != nil {
		return true
	}
	for _, c := range m.cache {
		for _, gone := range c.dropped {
			if gone.to != math.MaxInt64 {
				return true
			}
		}
	}
	return false
}
