package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// pushCopy is the bytes of a push, which other subscribers are to get as well: one copy for all.
type pushCopy struct {
	extent  dsm.ExtentIndex
	of      *homeExtent
	version dsm.Version // with which the home had them
	gen     dsm.Generation
	pages   dsm.PageSet
	data    *wire.Shared
	left    int // subscribers that still lack them
}

// keptPushes are those of an area.
type keptPushes struct{ list []pushCopy }

// pushCopies bounds how many are kept: no more bytes than one subscriber may have under way. Subscribers that are further behind than that get
// copies of their own.
const pushCopies = pushWindow / dsm.ExtentSize

// pushedBytesLocked returns the bytes of a push, with a reference for the caller. They are a copy, because the home copy will change.
func (a *Area) pushedBytesLocked(to dsm.NodeID, m *wire.Push, bytes int) *wire.Shared {
	h := &a.mu.home
	x := h.extents[m.Extent]
	if h.pushed == nil {
		h.pushed = new(keptPushes)
	}
	k := h.pushed
	k.list = slices.DeleteFunc(k.list, func(c pushCopy) bool {
		void := h.extents[c.extent] != c.of || c.of.version != c.version || c.gen != a.mu.ino.Gen
		if void {
			c.data.Release()
		}
		return void
	})
	i := slices.IndexFunc(k.list, func(c pushCopy) bool { return c.of == x && c.pages == m.Pages })
	if i < 0 {
		s := wire.Share(bytes)
		b := s.Bytes[:0]
		for _, p := range a.homePagesLocked(m) {
			b = append(b, p...)
		}
		if left := a.lackingLocked(to, m.Extent, m.Pages); left > 0 {
			if len(k.list) == pushCopies {
				k.list[0].data.Release()
				k.list = k.list[1:]
			}
			k.list = append(k.list, pushCopy{m.Extent, x, x.version, a.mu.ino.Gen, m.Pages, s.Retain(), left})
		}
		return s
	}
	c := &k.list[i]
	invariants.Check(string(flat(a.homePagesLocked(m))) == string(c.data.Bytes), "area %d: the copy of extent %d is not what the home has", a.id, m.Extent)
	if c.left--; c.left > 0 {
		return c.data.Retain()
	}
	s := c.data
	k.list = slices.Delete(k.list, i, i+1)
	return s
}

// lackingLocked returns how many subscribers of other nodes lack exactly these pages of an extent, but for one.
func (a *Area) lackingLocked(but dsm.NodeID, e dsm.ExtentIndex, pages dsm.PageSet) (n int) {
	for id, s := range a.mu.home.subs {
		if l := s.extents[e]; id != but && !a.isSelf(id) && l != nil && l.lacks == pages && (!s.onRequest || s.wanted(l)) {
			n++
		}
	}
	return n
}

// endPushCopiesLocked releases what is kept if nobody lacks anything any more.
func (a *Area) endPushCopiesLocked() {
	h := &a.mu.home
	if h.pushed == nil {
		return
	}
	for id, s := range h.subs {
		if s.lacking > 0 && !a.isSelf(id) && (!s.onRequest || len(s.acquires) > 0) {
			return
		}
	}
	for _, c := range h.pushed.list {
		c.data.Release()
	}
	h.pushed = nil
}
