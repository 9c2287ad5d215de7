package pages

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// attachedStore is a store of an attached program: the ledger hears of it later.
func (m *ledgerModel) attachedStore(p dsm.PageIndex) {
	if w := m.page(p).writing; !m.attached || w != nil && w.all {
		return
	}
	if off, ok := m.anyElement(p, byAttached); ok {
		m.fetch(p)
		m.change(m.area.Working(p), off)
		m.touched[p] = struct{}{}
	}
	if end := m.area.Size() % dsm.PageSize; end > 0 && m.isHere(p) && p == m.pageCount()-1 && m.rng.IntN(2) == 0 {
		m.area.Working(p)[end+m.rng.Int64N(dsm.PageSize-end)] ^= 1 // past the end
		m.touched[p] = struct{}{}
	}
}

// scan tells the ledger of the attached program's stores.
func (m *ledgerModel) scan() {
	for _, p := range slices.Sorted(maps.Keys(m.touched)) {
		e, i := p.Extent()
		m.c.Touched(e, dsm.Range(i, i+1))
	}
	clear(m.touched)
}

// shared reports whether there is an attached program, or one that waits.
func (m *ledgerModel) shared() bool { return m.attaching || m.attached }

// attach moves an attached program on from none to one that waits, to one that
// stores, and back.
func (m *ledgerModel) attach() {
	switch {
	case m.shared() && m.rng.IntN(4) == 0:
		m.scan()
		m.attached, m.attaching = false, false
		m.c.SetShared(false)
	case !m.shared():
		m.attaching = true
		m.c.SetShared(true)
	case m.attaching && m.c.Writable():
		m.attaching, m.attached = false, true
	}
}

// checkKept: while shared the bytes of each page that was given are kept, unless
// its state says that they are not known yet; else only those of pages that are open, or expected, are.
func (m *ledgerModel) checkKept() {
	kept, backlog := 0, 0
	for _, x := range m.c.extents {
		for i := range x.given.All() {
			g, ok := m.c.given[x.page(i)]
			open := x.pending.Has(i) || x.flying.Has(i)
			if ok {
				kept++
			}
			if ok && open {
				backlog++
			}
			switch {
			case x.bare.Has(i) && (ok || !m.c.shared || x.doubtful.Has(i)), ok && !open && !m.c.shared && !x.expected.Has(i):
				m.t.Fatalf("page %d: kept %v, open %v, bare %v, shared %v", x.page(i), ok, open, x.bare.Has(i), m.c.shared)
			case m.c.shared && !ok && !x.bare.Has(i) && !x.blind.Has(i) && !x.storing.Has(i) && !x.doubtful.Has(i):
				m.t.Fatalf("page %d is shared and given, and nothing is kept of it", x.page(i))
			}
			if _, found := m.touched[x.page(i)]; ok && !open && !found && !x.away(i) && !m.c.current(x.page(i), g) {
				m.t.Fatalf("page %d was given other bytes and has no notice", x.page(i))
			}
		}
	}
	if kept != len(m.c.given) || backlog != m.c.backlog {
		m.t.Fatalf("%d copies, %d of pages that are given; %d in the backlog, counted as %d", len(m.c.given), kept, backlog, m.c.backlog)
	}
}
