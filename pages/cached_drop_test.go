package pages

import (
	"bytes"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// awayModel is a demand area in the model: which pages are here, and the bytes of the others.
type awayModel struct {
	here  map[dsm.PageIndex]struct{}
	bytes map[dsm.PageIndex][]byte
	stash map[dsm.PageIndex][]modelStores
}

func (m *ledgerModel) isHere(p dsm.PageIndex) bool {
	if m.away == nil {
		return true
	}
	_, here := m.away.here[p]
	return here
}

// value returns the bytes of page p, for storing into as well, wherever it is.
func (m *ledgerModel) value(p dsm.PageIndex) []byte {
	if m.isHere(p) {
		return m.area.Working(p)
	}
	if m.away.bytes[p] == nil {
		m.away.bytes[p] = make([]byte, dsm.PageSize)
	}
	return m.away.bytes[p]
}

// fetch brings page p here, as is done before anything that needs its bytes.
func (m *ledgerModel) fetch(p dsm.PageIndex) {
	if m.isHere(p) || p >= m.pageCount() {
		return
	}
	e, i := p.Extent()
	here, stored, err := m.area.Install(m.k, p, m.value(p), true)
	if err != nil || here != dsm.Range(i, i+1) || !stored.Empty() {
		m.t.Fatalf("install of page %d of extent %d: %x, %x, %v", i, e, here, stored, err)
	}
	m.away.here[p] = struct{}{}
	delete(m.away.bytes, p)
	m.unstash(p)
}

// drop asks for page p and some of its neighbours to leave.
func (m *ledgerModel) drop(p dsm.PageIndex) {
	if m.away == nil {
		return
	}
	e, i := p.Extent()
	m.evict(e, m.c.Drop(e, dsm.Range(i, min(i+1+m.rng.IntN(3), dsm.ExtentPages))))
}

// evict takes away pages that are said to be out of the page cache, most of the time.
func (m *ledgerModel) evict(e dsm.ExtentIndex, out dsm.PageSet) {
	var set dsm.PageSet
	for i := range out.All() {
		p := pageOfExtent(e, i)
		if !m.isHere(p) {
			continue
		}
		// A page that write(2) has made without a READ is not known of, which does no harm.
		if c := m.page(p); c.reply != nil || c.data != nil && (c.writing == nil || !c.writing.all) {
			m.t.Fatalf("page %d is said to be out, and the page cache has it", p)
		}
		if m.rng.IntN(4) > 0 {
			set.Add(i)
		}
	}
	if set.Empty() {
		return
	}
	was := map[int][]byte{}
	for i := range set.All() {
		was[i] = bytes.Clone(m.area.Working(pageOfExtent(e, i)))
	}
	stored, err := m.area.Evict(m.k, e, set, m.attached)
	if err != nil || stored.Minus(set) != (dsm.PageSet{}) {
		m.t.Fatalf("evict %x of extent %d: %x, %v", set, e, stored, err)
	}
	for i := range set.All() {
		p := pageOfExtent(e, i)
		if stored.Has(i) {
			pagetest.WantPage(m.t, "a page that stays", m.area.Working(p), was[i])
			continue
		}
		if end := m.area.Size() - int64(p)*dsm.PageSize; end < dsm.PageSize {
			clear(was[i][end:]) // what an attached program has stored past the end
		}
		delete(m.away.here, p)
		m.away.bytes[p] = was[i]
	}
}

// pastEnd turns p into a page past the end that the kernel takes for one of the file, if
// there is one.
func (m *ledgerModel) pastEnd(p dsm.PageIndex) dsm.PageIndex {
	if q := p + 4; q >= m.pageCount() && int64(q)*dsm.PageSize < m.size {
		return q
	}
	return p
}

// shrinkAway follows a shrink.
func (m *ledgerModel) shrinkAway(size int64) {
	if m.away == nil {
		return
	}
	for p := range m.away.here {
		if p >= m.pageCount() {
			delete(m.away.here, p)
		}
	}
	for p, b := range m.away.bytes {
		switch from := size - int64(p)*dsm.PageSize; {
		case from <= 0:
			delete(m.away.bytes, p)
		case from < dsm.PageSize:
			clear(b[from:])
		}
	}
	m.shrinkStash(size)
}

// checkAway: nothing has touched a page that is not here.
func (m *ledgerModel) checkAway() {
	if m.away == nil {
		return
	}
	if err := m.area.DataRanges(0, m.area.Size(), func(off, n int64) {
		for p := dsm.PageIndex(off / dsm.PageSize); int64(p)*dsm.PageSize < off+n; p++ {
			if !m.isHere(p) {
				m.t.Fatalf("page %d is not here, and takes memory", p)
			}
		}
	}); err != nil {
		m.t.Fatal(err)
	}
}

// newDemandScript is newLedgerScript for a demand area of which all is here.
func newDemandScript(t *testing.T, size int64) ledgerScript {
	t.Helper()
	a := newTestDemandArea(t, size)
	for p := range dsm.PageIndex(wholePages(size) / dsm.PageSize) {
		install(t, a, p, make([]byte, dsm.PageSize))
	}
	return ledgerScript{NewCached(a), t, mustKernel(t, dsm.MergeSum, dsm.DTypeU8, 0)}
}

// drop asks for pages to leave, and checks which can at once.
func (s ledgerScript) drop(set, want dsm.PageSet) {
	s.t.Helper()
	if out := s.Drop(0, set); out != want {
		s.t.Fatalf("%x of %x are out, want %x", out, set, want)
	}
}

// done ends a notice, and checks which pages are out.
func (s ledgerScript) done(n Notice, want dsm.PageSet) {
	s.t.Helper()
	if e, out := s.Done(n); out != want || e != 0 {
		s.t.Fatalf("%x of extent %d are out, want %x", out, e, want)
	}
}

// TestDropTellsTheKernel: pages that were not given go at once, the others after an
// invalidation, which nobody waits for; nothing is left of them.
func TestDropTellsTheKernel(t *testing.T) {
	for _, writers := range []bool{false, true} {
		s := newDemandScript(t, 6*dsm.PageSize)
		s.SetWriters(writers)
		for p := range dsm.PageIndex(4) {
			s.read(p)
		}
		s.update(2, 5)
		s.drop(dsm.Range(1, 6), dsm.Range(4, 6))
		if s.Idle() {
			t.Error("idle with an update to tell")
		}
		n := s.notice(NoticeInvalidate, 1, 4)
		s.drop(dsm.Range(1, 2), dsm.PageSet{})
		s.done(n, dsm.Range(1, 4))
		s.quiet()
		s.drop(dsm.Range(1, 6), dsm.Range(1, 6))
		s.drop(dsm.Range(0, 1), dsm.PageSet{})
		if !s.Idle() || !s.Writable() {
			t.Error("somebody waits for a drop")
		}
		n = s.notice(NoticeInvalidate, 0, 1)
		if !s.Idle() {
			t.Error("somebody waits for a drop under way")
		}
		s.done(n, dsm.Range(0, 1))
		if s.inUse(0); len(s.extents) != 0 {
			t.Error("the extent is remembered")
		}
	}
}

// TestUsedAgainIsNotDropped: a READ or WRITE after Drop keeps the page; one before it only delays it.
func TestUsedAgainIsNotDropped(t *testing.T) {
	s := newDemandScript(t, 4*dsm.PageSize)
	s.SetWriters(true)
	for p := range dsm.PageIndex(4) {
		s.read(p)
	}
	s.drop(dsm.Range(0, 4), dsm.PageSet{})
	s.read(0)
	n := s.notice(NoticeInvalidate, 1, 4)
	s.Wrote(s.k, dsm.PageSize, append([]byte{1}, make([]byte, dsm.PageSize-1)...), true) // delivered by it
	s.read(2)                                                                            // after it, or before
	s.drop(dsm.Range(2, 3), dsm.PageSet{})
	s.done(n, dsm.Range(3, 4))
	s.done(s.notice(NoticeInvalidate, 2, 3), dsm.Range(2, 3))
	s.quiet()
	if got := s.area.Working(1)[0]; got != 1 {
		t.Errorf("the working copy has %d", got)
	}
}

// TestDropDuringStore: a page with a store notice in flight is invalidated after it, and what a program
// stores on top of it meanwhile is merged.
func TestDropDuringStore(t *testing.T) {
	s := newDemandScript(t, 2*dsm.PageSize)
	s.read(0)
	s.update(0, 7)
	n := s.notice(NoticeStore, 0, 1)
	s.drop(dsm.Range(0, 1), dsm.PageSet{})
	s.SetWriters(true)
	s.update(0, 7)
	s.done(n, dsm.PageSet{})
	n = s.notice(NoticeInvalidate, 0, 1)
	k := make([]byte, dsm.PageSize)
	k[7] = 1 + 3 // on top of the store
	s.Wrote(s.k, 0, k, true)
	s.done(n, dsm.PageSet{})
	if got := s.area.Working(0)[7]; got != 2+3 {
		t.Errorf("the working copy has %d, want 5", got)
	}
	s.done(s.notice(NoticeInvalidate, 0, 1), dsm.PageSet{})
	s.quiet()
}

// TestGrownPagesLeave: what the kernel was given as zeroes past the end leaves when a demand area grows, and a
// store on top of the zeroes is merged with what the page has by then. The pages stay holes.
func TestGrownPagesLeave(t *testing.T) {
	for _, shared := range []bool{false, true} {
		s := newDemandScript(t, dsm.PageSize)
		s.SetWriters(true)
		s.SetShared(shared)
		s.Read(0, make([]byte, 4*dsm.PageSize))
		s.resize(4*dsm.PageSize - 5)
		if s.Idle() {
			t.Error("nothing to tell")
		}
		s.SetShared(!shared)
		s.touched(2)
		from := dsm.PageIndex(0) // is bare, and stays
		if shared {
			from = 1
		}
		n := s.notice(NoticeInvalidate, from, 4)
		if s.area.working.has(1, 2) || s.area.working.has(2, 3) || s.area.working.has(3, 4) {
			t.Error("a page that is not here was touched")
		}
		install(t, s.area, 2, pagetest.PageOf(8))
		s.Wrote(s.k, 2*dsm.PageSize, pagetest.PageOf(1), true) // on top of zeroes
		pagetest.WantPage(t, "the working copy", s.area.Working(2), pagetest.PageOf(9))
		s.done(n, dsm.Range(1, 2).Or(dsm.Range(3, 4)))
		s.done(s.notice(NoticeInvalidate, 2, 3), dsm.PageSet{})
		s.SetShared(false)
		s.quiet()
		s.inUse(0)
	}
}

// TestShrinkPastTheEnd: what the kernel was given as zeroes past the end is truncated by a shrink, the area grows, and a store on top of
// the zeroes does not count: the program has made it to memory of before the shrink.
func TestShrinkPastTheEnd(t *testing.T) {
	s := newDemandScript(t, 2*dsm.PageSize)
	s.SetWriters(true)
	s.Read(0, make([]byte, 4*dsm.PageSize))
	s.resize(dsm.PageSize)
	s.resize(4 * dsm.PageSize)
	install(t, s.area, 3, pagetest.PageOf(8))
	if _, _, ok := s.Wrote(s.k, 3*dsm.PageSize, pagetest.PageOf(1), true); !ok {
		t.Fatal("the WRITE is refused")
	}
	pagetest.WantPage(t, "the working copy", s.area.Working(3), pagetest.PageOf(8))
}
