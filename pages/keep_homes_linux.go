package pages

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// homes is what a node knows as the home of extents, besides their bytes, which are in the base copies: which publishes those contain, and which slots it has all of. If the daemon is killed
// while nobody else has all of a slot, the next one goes on as its home.
//
// These are many small things of many areas, so they share frames, which are of no area. A frame has slots of homeWords words; the first one, which is stored last and cleared first, says what a slot has.
type homes struct {
	mu struct {
		lockrank.Mutex
		frames frames
		free   []homeSlot
		served map[dsm.SlotName]homeSlot
		merged map[dsm.AreaID]map[mergedBy]*Merged
	}
}

// ofHomes is in the tags of the frames of homes.
const ofHomes = ^dsm.AreaID(0)

// homeSlot is a place in a frame.
type homeSlot struct {
	frame frame
	off   int
}

// The words of a slot.
const (
	homeIs     = iota // homeFree, homeServed or homeMerged
	homeOf            // the name of the slot of the view, or the area
	homeEpoch         // the epoch from which on the node has had all of a slot, or the extent
	homeWriter        // who has published; of a slot of the view, the epoch of the one to which it was offered last
	homeSeq           // the newest publish of that node that the bytes contain
	homePart          // likewise, part of a round
	homeWords

	homeFree, homeServed, homeMerged = 0, 1, 2

	homeSize = 8 * homeWords
)

func (h homeSlot) word(i int) *atomic.Uint64 { return hold.WordOf(h.frame.mem[h.off+8*i:]) }

// mergedBy is an extent and a node that has published to it.
type mergedBy struct {
	extent dsm.ExtentIndex
	writer dsm.NodeID
}

// Merged is which publishes of one node the home's bytes of an extent contain. The methods of nil do nothing.
type Merged struct {
	store *Keep
	area  dsm.AreaID
	by    mergedBy
	at    homeSlot
}

func (h *homes) init(s *Keep) {
	h.mu.Init("pages.homes")
	h.mu.frames.kept = &keeping{store: s, record: hold.Area{ID: new(atomic.Uint64)}}
	h.mu.frames.kept.record.ID.Store(uint64(ofHomes))
	h.mu.served = make(map[dsm.SlotName]homeSlot)
	h.mu.merged = make(map[dsm.AreaID]map[mergedBy]*Merged)
}

// takeLocked returns a slot that has nothing.
func (h *homes) takeLocked() homeSlot {
	if k := len(h.mu.free); k > 0 {
		x := h.mu.free[k-1]
		h.mu.free = h.mu.free[:k-1]
		return x
	}
	f := h.mu.frames.take()
	clear(f.mem)
	h.mu.frames.tag(f, frameHomes, 0, 0)
	for off := homeSize; off+homeSize <= dsm.PageSize; off += homeSize {
		h.mu.free = append(h.mu.free, homeSlot{f, off})
	}
	return homeSlot{f, 0}
}

func (h *homes) dropLocked(x homeSlot) {
	x.word(homeIs).Store(homeFree)
	h.mu.free = append(h.mu.free, x)
}

// Serves says that this node has all of a slot as its home, and has had since epoch e.
func (s *Keep) Serves(slot dsm.SlotName, e dsm.Epoch) {
	if s == nil {
		return
	}
	h := &s.homes
	h.mu.Lock()
	defer h.mu.Unlock()
	x, ok := h.mu.served[slot]
	switch {
	case !ok:
		x = h.takeLocked()
		h.mu.served[slot] = x
		x.word(homeOf).Store(uint64(slot))
	case x.since() == e:
		return
	}
	x.word(homeWriter).Store(0)
	x.word(homeEpoch).Store(uint64(e))
	x.word(homeIs).Store(homeServed)
}

// since is the epoch from which on the node has had all of a slot.
func (h homeSlot) since() dsm.Epoch { return dsm.Epoch(h.word(homeEpoch).Load()) }

// Offers says that this node, which serves a slot, is about to offer all of it to another home, which is to be it in epoch e.
func (s *Keep) Offers(slot dsm.SlotName, e dsm.Epoch) {
	if s == nil {
		return
	}
	h := &s.homes
	h.mu.Lock()
	defer h.mu.Unlock()
	if x, ok := h.mu.served[slot]; ok {
		x.word(homeWriter).Store(uint64(e))
	}
}

// ServesNot says that this node has not all of a slot any more.
func (s *Keep) ServesNot(slot dsm.SlotName) {
	if s == nil {
		return
	}
	h := &s.homes
	h.mu.Lock()
	defer h.mu.Unlock()
	if x, ok := h.mu.served[slot]; ok {
		delete(h.mu.served, slot)
		h.dropLocked(x)
	}
}

// Served returns the slots of which this node, or an earlier daemon of it, has said that it has all.
func (s *Keep) Served() dsm.Ledger {
	if s == nil {
		return nil
	}
	h := &s.homes
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(dsm.Ledger, len(h.mu.served))
	for slot, x := range h.mu.served {
		all[slot] = dsm.Served{Since: x.since(), Offered: dsm.Epoch(x.word(homeWriter).Load())}
	}
	return all
}

// KeepMerged has the next daemon know which publishes of a node are merged into an extent: see Merged.Set. It returns the same thing for the same extent and node until Drop.
func (s *Keep) KeepMerged(id dsm.AreaID, e dsm.ExtentIndex, writer dsm.NodeID) *Merged {
	if s == nil {
		return nil
	}
	h := &s.homes
	h.mu.Lock()
	defer h.mu.Unlock()
	by := mergedBy{e, writer}
	if m := h.mu.merged[id][by]; m != nil {
		return m
	}
	m := &Merged{s, id, by, h.takeLocked()}
	m.at.word(homeOf).Store(uint64(id))
	m.at.word(homeEpoch).Store(uint64(e))
	m.at.word(homeWriter).Store(uint64(writer))
	m.at.word(homeSeq).Store(0)
	m.at.word(homePart).Store(0)
	m.at.word(homeIs).Store(homeMerged)
	h.addLocked(m)
	return m
}

func (h *homes) addLocked(m *Merged) {
	if h.mu.merged[m.area] == nil {
		h.mu.merged[m.area] = make(map[mergedBy]*Merged)
	}
	h.mu.merged[m.area][m.by] = m
}

// Set says which publishes are merged, and which parts of rounds.
func (m *Merged) Set(seq, part dsm.Seq) {
	if m != nil {
		m.at.word(homeSeq).Store(uint64(seq))
		m.at.word(homePart).Store(uint64(part))
	}
}

// Extent returns the extent, Writer the node that has published.
func (m *Merged) Extent() dsm.ExtentIndex { return m.by.extent }
func (m *Merged) Writer() dsm.NodeID      { return m.by.writer }

// Get returns what was set last, perhaps by an earlier daemon.
func (m *Merged) Get() (seq, part dsm.Seq) {
	return dsm.Seq(m.at.word(homeSeq).Load()), dsm.Seq(m.at.word(homePart).Load())
}

// Drop forgets it: the bytes are not this node's as the home any more.
func (m *Merged) Drop() {
	if m == nil {
		return
	}
	h := &m.store.homes
	h.mu.Lock()
	defer h.mu.Unlock()
	if of := h.mu.merged[m.area]; of[m.by] == m {
		h.dropLocked(m.at)
		if delete(of, m.by); len(of) == 0 {
			delete(h.mu.merged, m.area)
		}
	}
}

// MergedOf returns what there is of an area, in no order.
func (s *Keep) MergedOf(id dsm.AreaID) []*Merged {
	if s == nil {
		return nil
	}
	h := &s.homes
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.mu.merged[id]))
}

// Newest is the newest version that the node has heard of, and also an earlier daemon of it. The pages of which it goes on as the home get a later one.
func (s *Keep) Newest() *atomic.Uint64 { return s.mem.Word(hold.Newest) }

// restore finds what earlier daemons have left. Nobody else has the keep yet.
func (h *homes) restore(s *Keep) error {
	left, err := h.mu.frames.adopt(ofHomes)
	if err != nil {
		return err
	}
	for _, f := range left[frameHomes] {
		for off := 0; off+homeSize <= dsm.PageSize; off += homeSize {
			x := homeSlot{f.frame, off}
			switch of := x.word(homeOf).Load(); x.word(homeIs).Load() {
			case homeServed:
				h.mu.served[dsm.SlotName(of)] = x
			case homeMerged:
				by := mergedBy{dsm.ExtentIndex(x.word(homeEpoch).Load()), dsm.NodeID(x.word(homeWriter).Load())}
				h.addLocked(&Merged{s, dsm.AreaID(of), by, x})
			default:
				h.dropLocked(x)
			}
		}
	}
	return nil
}
