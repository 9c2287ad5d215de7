package pages

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Stores to a page that is not here are answered at once, and wait for the page.

// modelStores are stores that came in a request, to one page.
type modelStores struct {
	off  int64
	data []byte
	how  storesHow
}

type storesHow int

const (
	throughCache storesHow = iota
	writtenBack
	pastTheCache
	punchedHole
)

// take takes stores, or keeps them until their page comes.
func (m *ledgerModel) take(s modelStores) {
	p := dsm.PageIndex(s.off / dsm.PageSize)
	if s.how == throughCache || s.how == pastTheCache {
		m.c.KernelLocks()
	}
	if s.how == throughCache || s.how == writtenBack {
		m.c.Delivered(s.off, s.data, s.how == writtenBack)
	}
	if m.rng.IntN(4) == 0 {
		m.fetch(p)
	}
	if m.isHere(p) {
		m.carryOut(s)
		return
	}
	if from, to := m.c.Void(p); s.how == writtenBack && from < to {
		lo := int(s.off % dsm.PageSize)
		from, to = min(max(from-lo, 0), len(s.data)), min(max(to-lo, 0), len(s.data))
		m.c.NotTaken(s.off+int64(from), s.data[from:to])
		if from > 0 {
			m.c.Expect(p)
			m.away.stash[p] = append(m.away.stash[p], modelStores{s.off, s.data[:from], s.how})
		}
		s.off, s.data = s.off+int64(to), s.data[to:]
		if len(s.data) == 0 {
			return
		}
	}
	if s.how == throughCache || s.how == writtenBack {
		m.c.Expect(p)
	}
	m.away.stash[p] = append(m.away.stash[p], s)
}

func (m *ledgerModel) carryOut(s modelStores) {
	switch s.how {
	case throughCache, writtenBack:
		if _, _, ok := m.c.Wrote(m.k, s.off, s.data, s.how == writtenBack); !ok && m.mayRefuse(s) {
			m.refused++
		} else if !ok {
			m.t.Fatalf("the WRITE at %d is refused", s.off)
		}
	case pastTheCache:
		m.c.WroteDirect(s.off, s.data)
		if !m.sum && len(s.data) == 8 {
			m.want[s.off/8] = binary.LittleEndian.Uint64(s.data)
		}
	case punchedHole:
		m.c.WroteDirect(s.off, s.data)
		for e := s.off / 8; e < (s.off+int64(len(s.data)))/8; e++ {
			delete(m.want, e)
			delete(m.shown, e)
		}
	}
}

// mayRefuse reports whether the ledger may refuse stores: they may be those of a program that has heard of a size, or of before a shrink.
func (m *ledgerModel) mayRefuse(s modelStores) bool {
	v := m.void[dsm.PageIndex(s.off/dsm.PageSize)]
	return s.how == writtenBack && v != nil && v.mixed
}

// unstash carries out the stores that waited for page p.
func (m *ledgerModel) unstash(p dsm.PageIndex) {
	for _, s := range m.away.stash[p] {
		m.carryOut(s)
	}
	delete(m.away.stash, p)
}

// stashed reports whether stores wait for page p.
func (m *ledgerModel) stashed(p dsm.PageIndex) bool { return m.away != nil && len(m.away.stash[p]) > 0 }

// fetchStashed brings all pages that stores wait for.
func (m *ledgerModel) fetchStashed() {
	if m.away != nil {
		for _, p := range slices.Sorted(maps.Keys(m.away.stash)) {
			m.fetch(p)
		}
	}
}

// shrinkStash follows a shrink: what was stored past the new end is gone.
func (m *ledgerModel) shrinkStash(size int64) {
	for p, list := range m.away.stash {
		for i := range list {
			list[i].data = list[i].data[:min(max(size-list[i].off, 0), int64(len(list[i].data)))]
		}
		if int64(p)*dsm.PageSize >= size {
			delete(m.away.stash, p)
		}
	}
}
