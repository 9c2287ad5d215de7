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
	k := a.dropVoidPushesLocked()
	x := a.mu.home.extents[m.Extent]
	i := slices.IndexFunc(k.list, func(c pushCopy) bool { return c.of == x && c.pages == m.Pages })
	if i < 0 {
		s := wire.Share(bytes)
		b := s.Bytes[:0]
		for _, p := range a.homePagesLocked(m) {
			b = append(b, p...)
		}
		if left := a.lackingLocked(to, m.Extent, m.Pages); left > 0 {
			k.add(pushCopy{m.Extent, x, x.version, a.mu.ino.Gen, m.Pages, s.Retain(), left})
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

// denseLocked returns the bytes of a publish of this node that is not answered, with a reference, if they are all bytes of its pages, and the last store wins; else nil.
func (a *Area) denseLocked(m *wire.Publish) *wire.Shared {
	x := a.mu.replica.extents[m.Extent]
	if x == nil || !a.mu.kernel.Last() {
		return nil
	}
	pub := x.publish()
	if pub == nil || pub.seq != m.Seq || len(pub.data.Bytes) != m.Pages.Len()*dsm.PageSize {
		return nil
	}
	return pub.data.Retain()
}

// lendPublishLocked has the subscribers that lack what a publish has just changed get data, which denseLocked has returned: no copy of the home's bytes is made. It ends the reference.
func (a *Area) lendPublishLocked(m *wire.Publish, data *wire.Shared) {
	home := a.mu.home.extents[m.Extent]
	left := a.lackingLocked(0, m.Extent, m.Pages)
	if left == 0 || m.Pages.And(home.data) != m.Pages { // a push has no pages of zeroes
		data.Release()
		return
	}
	a.dropVoidPushesLocked().add(pushCopy{m.Extent, home, home.version, a.mu.ino.Gen, m.Pages, data, left})
}

// add adds c, in place of the oldest if there are many.
func (k *keptPushes) add(c pushCopy) {
	if len(k.list) == pushCopies {
		k.list[0].data.Release()
		k.list = k.list[1:]
	}
	k.list = append(k.list, c)
}

// dropVoidPushesLocked returns the copies that are kept and are what the home has.
func (a *Area) dropVoidPushesLocked() *keptPushes {
	h := &a.mu.home
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
	return k
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
