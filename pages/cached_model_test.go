package pages

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// The model is a kernel page cache, the programs above it and the nodes beside
// it, in every order that the kernel's locks allow. Elements are eight bytes; where
// the rule is last each belongs to the programs above the page cache, to attached
// programs, or to other nodes, and with sum all add to all.

// modelPage is a page in the page cache, with the requests that have it locked.
type modelPage struct {
	data    []byte // nil: not in the page cache
	dirty   bool
	reading bool         // a READ is under way: the page is locked
	reply   []byte       // answered, not yet received
	writing *modelIO     // a WRITE is under way: no store, no drop
	sent    *modelIO     // a write(2) to a page that was up to date is under way: the page is not locked
	dropped []modelRange // that the kernel was to drop while the page was locked: it does when that ends
}

// modelIO is a WRITE that was sent.
type modelIO struct {
	off  int64
	data []byte
	all  bool // a page that the program made without reading it
	back bool // of a mapping; else of a write(2)
	// served: the ledger has it, and the program waits.
	served bool
}

// modelNotice is a notice that the kernel is carrying out, page by page.
type modelNotice struct {
	Notice
	next dsm.PageIndex
	old  bool // handed out before the last shrink
}

type ledgerModel struct {
	t        *testing.T
	rng      *rand.Rand
	k        merge.Kernel
	sum      bool
	bytes    bool // each byte is an element of its own to the kernel
	area     *Area
	c        *Cached
	cache    map[dsm.PageIndex]*modelPage
	size     int64                      // that the kernel knows
	want     map[int64]uint64           // by element
	shown    map[int64]uint64           // what a program has seen of it
	stale    map[dsm.PageIndex]struct{} // truncated elsewhere while the kernel has them
	void     map[dsm.PageIndex]*modelVoid
	notices  []*modelNotice
	done     []Notice
	ended    func() // of KernelDrops
	punching *modelPunch
	holeOut  func() // says that the thread of the last hole goes on: to be called when the kernel has dropped the hole
	goOn     func() // the same, of a hole that is dropped
	opening  bool   // an OPEN for writing waits
	writer   bool

	attaching bool // an attached program waits
	attached  bool
	touched   map[dsm.PageIndex]struct{} // that it stored into since the last scan

	away *awayModel // of a demand area

	counter uint64
	refused int
}

func (m *ledgerModel) page(p dsm.PageIndex) *modelPage {
	if m.cache[p] == nil {
		m.cache[p] = &modelPage{}
	}
	return m.cache[p]
}

// pages returns the pages of the page cache, in order.
func (m *ledgerModel) pages() []dsm.PageIndex { return slices.Sorted(maps.Keys(m.cache)) }

func (m *ledgerModel) pageCount() dsm.PageIndex {
	return dsm.PageIndex((m.area.Size() + dsm.PageSize - 1) / dsm.PageSize)
}

// anyPage picks a page near an extent boundary, or none if the area is empty.
func (m *ledgerModel) anyPage() (dsm.PageIndex, bool) {
	n := int(m.pageCount())
	if n == 0 {
		return 0, false
	}
	return dsm.PageIndex(max(0, n-1-m.rng.IntN(6))), true
}

// Who stores to an element.
const (
	aboveCache = iota
	elsewhere
	byAttached
	pastCache
)

// anyElement picks the offset of an element of p for who.
func (m *ledgerModel) anyElement(p dsm.PageIndex, who int64) (off int64, ok bool) {
	i := int64(m.rng.IntN(4))
	if m.rng.IntN(4) == 0 {
		i = int64(m.rng.IntN(dsm.PageSize / 8))
	}
	if !m.sum {
		i = i&^3 | who
	}
	off = int64(p)*dsm.PageSize + i*8
	return off, off+8 <= m.area.Size()
}

// change applies a store to an element of b at off and notes what is expected.
func (m *ledgerModel) change(b []byte, off int64) {
	m.counter++
	v := b[off%dsm.PageSize:]
	if old := binary.LittleEndian.Uint64(v); m.sum {
		binary.LittleEndian.PutUint64(v, old+m.counter)
		m.want[off/8] += m.counter
	} else {
		binary.LittleEndian.PutUint64(v, m.counter)
		m.want[off/8] = m.counter
	}
}

// see checks that no element of a cached page goes back in time.
func (m *ledgerModel) see(p dsm.PageIndex, data []byte) {
	if _, stale := m.stale[p]; stale {
		return
	}
	for i := int64(0); i < dsm.PageSize/8; i++ {
		e := int64(p)*dsm.PageSize/8 + i
		if io := m.page(p).sent; io != nil && e*8 >= io.off && e*8 < io.off+int64(len(io.data)) {
			continue // until the write(2) returns programs may see either
		}
		v := binary.LittleEndian.Uint64(data[i*8:])
		if v < m.shown[e] {
			m.t.Fatalf("element %d of page %d goes back from %d to %d", i, p, m.shown[e], v)
		}
		if v != 0 {
			m.shown[e] = v
		}
	}
}

// read sends, answers or receives a READ of p.
func (m *ledgerModel) read(p dsm.PageIndex) {
	c := m.page(p)
	switch {
	case c.data == nil && !c.reading && c.writing == nil:
		c.reading = true
	case c.reading && c.reply == nil:
		c.reply = make([]byte, dsm.PageSize)
		m.fetch(p)
		m.c.Read(int64(p)*dsm.PageSize, c.reply)
		delete(m.void, p)
		if !m.oldStore(p) {
			delete(m.stale, p)
		}
	case c.reply != nil:
		c.data, c.reply, c.reading = c.reply, nil, false
		m.see(p, c.data)
		c.dropNow(p)
	}
}

// oldStore reports whether bytes of before the last shrink are still to be stored
// into page p.
func (m *ledgerModel) oldStore(p dsm.PageIndex) bool {
	return slices.ContainsFunc(m.notices, func(n *modelNotice) bool {
		return n.old && n.Kind == NoticeStore && n.next <= p && int64(p)*dsm.PageSize < n.Off+n.Len
	})
}

// writeBack sends or answers the WRITE of a dirty page.
func (m *ledgerModel) writeBack(p dsm.PageIndex) {
	c := m.page(p)
	off := int64(p) * dsm.PageSize
	switch {
	case c.writing != nil:
		n := max(min(int64(len(c.writing.data)), m.area.Size()-c.writing.off), 0)
		if n < int64(len(c.writing.data)) {
			m.c.NotTaken(c.writing.off+n, c.writing.data[n:])
		}
		if n > 0 {
			how := throughCache
			if c.writing.back {
				how = writtenBack
			}
			if c.writing.all {
				m.fetch(p)
			}
			m.take(modelStores{c.writing.off, c.writing.data[:n], how})
		}
		if !c.writing.back {
			m.c.EndWrite()
		}
		c.writing = nil
		c.dropNow(p)
	case c.dirty && !c.reading:
		c.writing = &modelIO{off, append([]byte(nil), c.data[:min(dsm.PageSize, max(m.size-off, 0))]...), false, true, false}
		c.dirty = false
	}
}

// answerWrite has the WRITE of a write(2) served, or answered when the kernel has been told what it must be.
func (m *ledgerModel) answerWrite(p dsm.PageIndex) {
	c := m.page(p)
	switch io := c.sent; {
	case io == nil:
	case !io.served:
		n := max(min(int64(len(io.data)), m.area.Size()-io.off), 0)
		if n > 0 {
			m.take(modelStores{io.off, io.data[:n], throughCache})
		}
		m.c.EndWrite()
		io.served = true
	case m.c.Sure(io.off, int64(len(io.data))):
		c.sent = nil
	}
}

// store is a store of a program through its mapping.
func (m *ledgerModel) store(p dsm.PageIndex) {
	c := m.page(p)
	off, ok := m.anyElement(p, aboveCache)
	if io := c.sent; !m.writer || !ok || m.inHole(off) || io != nil && off >= io.off && off < io.off+int64(len(io.data)) {
		return
	}
	if c.data == nil {
		m.read(p)
		return
	}
	if c.writing != nil || off+8 > m.size {
		return
	}
	if v := m.void[p]; v.has(off) {
		m.counter++
		binary.LittleEndian.PutUint64(c.data[off%dsm.PageSize:], m.counter)
		c.dirty = true
		return
	}
	if _, stale := m.stale[p]; stale && m.bytes {
		return // of an element, bytes that stay what they are would be no store
	}
	m.change(c.data, off)
	c.dirty = true
	m.see(p, c.data)
}

// reclaim drops a clean page.
func (m *ledgerModel) reclaim(p dsm.PageIndex) {
	if c := m.page(p); !c.dirty && !c.reading && c.writing == nil && c.sent == nil {
		c.data = nil
	}
}

// dropUnheard begins to make the kernel drop pages without a notice of the ledger, drops one, or ends it.
func (m *ledgerModel) dropUnheard(p dsm.PageIndex) {
	switch c := m.page(p); {
	case m.ended == nil:
		m.ended = m.c.KernelDrops()
	case m.rng.IntN(4) == 0:
		m.ended()
		m.ended = nil
	case !c.dirty && !c.reading && c.writing == nil:
		c.data = nil
	}
}

// update is an update from another node.
func (m *ledgerModel) update(p dsm.PageIndex) {
	if w := m.page(p).writing; w != nil && w.all {
		return
	}
	if off, ok := m.anyElement(p, elsewhere); ok {
		if m.isHere(p) {
			m.c.BeforeMerge(p)
		}
		m.change(m.value(p), off)
	}
}

// step carries a notice one step further, as far as the page's locks allow.
func (m *ledgerModel) step(n *modelNotice) (ended bool) {
	end := n.Off + n.Len
	off := int64(n.next) * dsm.PageSize
	if off >= end {
		return true
	}
	c := m.page(n.next)
	if c.reading || c.writing != nil {
		return false
	}
	if n.Kind == NoticeStore {
		if c.dirty || m.writer {
			m.t.Fatalf("store notice of page %d while a program may store to it", n.next)
		}
		part := n.Data[off-n.Off : min(off-n.Off+dsm.PageSize, n.Len)]
		if c.data == nil && (len(part) == dsm.PageSize || end == m.size) {
			c.data = make([]byte, dsm.PageSize) // else the page stays invalid
		}
		if copy(c.data, part); c.data != nil && off < m.area.Size() {
			m.see(n.next, c.data)
		}
	} else {
		if c.dirty {
			m.writeBack(n.next)
			return false
		}
		c.data = nil
	}
	n.next++
	return int64(n.next)*dsm.PageSize >= end
}

func (m *ledgerModel) stepNotices() {
	if len(m.notices) == 0 {
		return
	}
	i := m.rng.IntN(len(m.notices))
	if m.step(m.notices[i]) {
		m.done = append(m.done, m.notices[i].Notice)
		m.notices = append(m.notices[:i], m.notices[i+1:]...)
	}
}

func (m *ledgerModel) takeNotice() {
	n, ok := m.c.NextNotice()
	if !ok {
		return
	}
	if n.Kind == NoticeStore && int64(len(n.Data)) != n.Len || n.Kind == NoticeStore && m.writer {
		m.t.Fatalf("notice %+v with writers %v", n, m.writer)
	}
	for _, o := range m.notices {
		if n.Off < o.Off+o.Len && o.Off < n.Off+n.Len {
			m.t.Fatalf("two notices in flight for one page")
		}
	}
	for _, o := range m.done {
		if n.Off < o.Off+o.Len && o.Off < n.Off+n.Len {
			m.t.Fatalf("two notices in flight for one page")
		}
	}
	m.notices = append(m.notices, &modelNotice{Notice: n, next: dsm.PageIndex(n.Off / dsm.PageSize)})
}

func (m *ledgerModel) endNotice() {
	if len(m.done) > 0 {
		i := m.rng.IntN(len(m.done))
		m.evict(m.c.Done(m.done[i]))
		m.done = append(m.done[:i], m.done[i+1:]...)
	}
}

// open moves a program on from no handle to OPEN, to a writer and back.
func (m *ledgerModel) open() {
	switch {
	case m.writer:
		if m.inPunch() {
			return
		}
		for _, p := range m.pages() {
			if m.cache[p].sent != nil {
				return
			}
		}
		for _, p := range m.pages() { // what the kernel does before RELEASE
			for m.cache[p].dirty || m.cache[p].writing != nil {
				for m.cache[p].reading {
					m.read(p)
				}
				m.writeBack(p)
			}
		}
		m.writer = false
		m.c.SetWriters(false)
	case !m.opening:
		m.opening = true
		m.c.SetWriters(true)
	case m.c.Writable():
		m.opening, m.writer = false, true
	}
}

// settle lets everything that is under way end, and checks what all see.
func (m *ledgerModel) settle() {
	m.scan()
	for range 3 {
		m.fetchStashed()
		for _, p := range m.pages() {
			for m.cache[p].reading {
				m.read(p)
			}
			for m.cache[p].dirty || m.cache[p].writing != nil {
				m.writeBack(p)
			}
			m.answerWrite(p)
			m.answerWrite(p)
		}
		for {
			m.takeNotice()
			if len(m.notices)+len(m.done) == 0 {
				break
			}
			m.stepNotices()
			m.endNotice()
		}
		for range 2 {
			if m.punching != nil {
				m.punch(0)
			}
		}
	}
	if !m.c.Idle() || !m.c.Writable() || m.c.CopyBytes() != 0 {
		m.t.Fatalf("not idle with nothing to do: open %d, unready %d, in the backlog %d", m.c.open, m.c.unready, m.c.CopyBytes())
	}
	for e, x := range m.c.extents {
		if !x.leaving.Empty() || x.given == (dsm.PageSet{}) && x.late == (dsm.PageSet{}) {
			m.t.Fatalf("extent %d: pages %x are leaving, %x are given", e, x.leaving, x.given)
		}
	}
	if !m.c.shared && len(m.c.given) != 0 {
		m.t.Fatalf("%d copies are kept", len(m.c.given))
	}
	for p := range m.pageCount() {
		w := m.value(p)
		for i := int64(0); i < min(m.area.Size()-int64(p)*dsm.PageSize, dsm.PageSize)/8; i++ {
			e := int64(p)*dsm.PageSize/8 + i
			if got, want := binary.LittleEndian.Uint64(w[i*8:]), m.want[e]; got != want {
				m.t.Fatalf("element %d of page %d is %d, want %d", i, p, got, want)
			}
		}
		c := m.page(p)
		if c.data == nil {
			continue
		}
		if end := m.area.Size() - int64(p)*dsm.PageSize; string(c.data[:min(end, dsm.PageSize)]) != string(w[:min(end, dsm.PageSize)]) {
			m.t.Fatalf("page %d: the page cache is not the working copy", p)
		}
	}
}

func (m *ledgerModel) run(steps int, truncates bool) {
	for range steps {
		p, ok := m.anyPage()
		if !ok {
			continue
		}
		switch r := m.rng.IntN(100); {
		case r < 20:
			if m.away != nil && m.rng.IntN(4) == 0 {
				p = m.pastEnd(p)
			}
			m.read(p)
		case r < 35:
			m.store(p)
		case r < 40:
			m.write(p)
			m.overwrite(p)
			if m.punching != nil || m.rng.IntN(8) == 0 {
				m.punch(p)
			}
		case r < 48:
			m.answerWrite(p)
			m.writeBack(p)
		case r < 50:
			m.drop(p)
		case r < 53:
			m.reclaim(p)
			m.dropUnheard(p)
		case r < 60:
			m.update(p)
		case r < 62:
			m.writeDirect(p)
		case r < 67:
			m.attachedStore(p)
		case r < 68:
			m.scan()
		case r < 76:
			m.takeNotice()
		case r < 90:
			m.stepNotices()
		case r < 96:
			m.endNotice()
		case r < 97:
			m.open()
			m.punch(p)
		case r < 98:
			m.attach()
		case truncates && m.rng.IntN(3) == 0:
			m.truncate()
		case m.rng.IntN(10) == 0:
			m.settle()
		}
		if m.rng.IntN(8) == 0 {
			m.checkKept()
			m.checkAway()
			if bad := m.c.Problem(); bad != "" {
				m.t.Fatal(bad)
			}
		}
	}
	m.settle()
}

func newLedgerModel(t *testing.T, rng *rand.Rand, k merge.Kernel, sum, demand bool) *ledgerModel {
	size := int64(dsm.ExtentSize + 2*dsm.PageSize + 1000)
	newArea, away := NewArea, (*awayModel)(nil)
	if demand {
		newArea, away = NewDemandArea, &awayModel{map[dsm.PageIndex]struct{}{}, map[dsm.PageIndex][]byte{}, map[dsm.PageIndex][]modelStores{}}
	}
	a := openTestArea(t, newArea, size)
	return &ledgerModel{t: t, rng: rng, k: k, sum: sum, area: a, c: NewCached(a), size: size,
		cache: map[dsm.PageIndex]*modelPage{}, want: map[int64]uint64{}, shown: map[int64]uint64{},
		stale: map[dsm.PageIndex]struct{}{}, void: map[dsm.PageIndex]*modelVoid{}, touched: map[dsm.PageIndex]struct{}{}, away: away}
}

// TestLedgerModel: whatever the order, no store is lost and none counted twice,
// nothing goes back in time, and in the end the page cache and the working copy agree.
func TestLedgerModel(t *testing.T) {
	rng := pagetest.Rand(t)
	rounds := 30
	if testing.Short() || pagetest.Race {
		rounds = 10
	}
	for _, c := range []struct {
		name string
		k    merge.Kernel
	}{
		{"sum", mustKernel(t, dsm.MergeSum, dsm.DTypeI64, 0)},
		{"last", mustKernel(t, dsm.MergeLast, dsm.DTypeU64, 0)},
		{"last of bytes", mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)},
	} {
		for variant := range 4 {
			truncates, demand := variant&1 != 0, variant&2 != 0
			for range rounds {
				m := newLedgerModel(t, rng, c.k, c.name == "sum", demand)
				m.bytes = c.name == "last of bytes"
				t.Run(c.name, func(t *testing.T) {
					m.t = t
					m.run(3000, truncates)
				})
				if t.Failed() {
					t.FailNow()
				}
			}
		}
	}
}
