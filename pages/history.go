package pages

import (
	"cmp"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// History keeps pages of older versions of an area while somebody needs them. The newest version lies
// in place, in the area's own memory, and is no concern of the History: before its owner overwrites a
// page there, it calls Before, and the History takes a copy if a pinned version needs one.
//
//	page p, in place:   version 9 (last changed in 9)
//	kept:               [5..8]   [2..4]      each the bytes of p in these versions
//	pinned:              7        2, 4       the copy [2..4] goes when neither 2 nor 4 is pinned any more
//
// So a pinned version costs the pages that have changed since, each once however many versions share
// it (the undo records of multi-version concurrency control, as in Reed, "Naming and synchronization
// in a decentralized computer system", 1978). Neither who writes nor who reads waits for the other. The lock of the
// area guards a History.
type History struct {
	frames frames
	newest dsm.Version
	pins   []pin // ascending
	pages  map[dsm.PageIndex][]*kept

	changing bool // Before was called since the last Advance: the bytes in place are of no version
}

// pin is a version that somebody needs.
type pin struct {
	version dsm.Version
	users   int
	// last has the copies for which this is the newest pinned version that needs them. A copy is looked at again
	// only when that pin goes.
	last []*kept
}

// kept is a copy of a page. It has the bytes of all versions after those of the copy before it, up to and with upTo.
type kept struct {
	page dsm.PageIndex
	upTo dsm.Version
	zero bool // the page was all zero, and there is no frame
	mem  frame
}

// NewHistory returns the history of an area whose bytes in place are those of version v.
func NewHistory(v dsm.Version) *History {
	return &History{newest: v, pages: make(map[dsm.PageIndex][]*kept)}
}

// Newest returns the version whose bytes are in place.
func (h *History) Newest() dsm.Version { return h.newest }

// Advance says that the bytes in place are those of version v from now on: all pages that it changed have been written.
func (h *History) Advance(v dsm.Version) {
	h.newest = max(h.newest, v)
	h.changing = false
}

// Pin makes sure that the newest version, which it returns, can be read until Unpin. It must be pinned already, or complete: no page of it
// has been overwritten.
func (h *History) Pin() dsm.Version {
	if n := len(h.pins); n == 0 || h.pins[n-1].version < h.newest {
		if h.changing {
			panic("pages: a version is pinned that is being overwritten")
		}
		h.pins = append(h.pins, pin{version: h.newest})
	}
	h.pins[len(h.pins)-1].users++
	return h.newest
}

// PinAgain pins version v once more. It returns false if v is neither pinned nor the newest.
func (h *History) PinAgain(v dsm.Version) bool {
	if v == h.newest {
		h.Pin()
		return true
	}
	i, ok := h.find(v)
	if ok {
		h.pins[i].users++
	}
	return ok
}

// Unpin ends one Pin or PinAgain of version v. Copies that only v needed are freed.
func (h *History) Unpin(v dsm.Version) {
	i, ok := h.find(v)
	if !ok {
		panic("pages: a version that is not pinned")
	}
	if h.pins[i].users--; h.pins[i].users > 0 {
		return
	}
	last := h.pins[i].last
	h.pins = slices.Delete(h.pins, i, i+1)
	for _, k := range last {
		// Mostly j is i-1. But the newest version may have been pinned once more since k was made, and not have changed: the pages were overwritten with what they had.
		j, ok := h.find(k.upTo)
		if !ok {
			j--
		}
		if j >= 0 && h.has(k, h.pins[j].version) {
			h.pins[j].last = append(h.pins[j].last, k)
		} else {
			h.drop(k)
		}
	}
}

func (h *History) find(v dsm.Version) (int, bool) {
	return slices.BinarySearchFunc(h.pins, v, func(p pin, v dsm.Version) int { return cmp.Compare(p.version, v) })
}

// Before must be called before the bytes of page p in place, now those of the newest version, change.
func (h *History) Before(p dsm.PageIndex, bytes []byte) {
	h.changing = true
	if len(h.pins) == 0 {
		return
	}
	copies, last := h.pages[p], &h.pins[len(h.pins)-1]
	if n := len(copies); n > 0 && last.version <= copies[n-1].upTo {
		return // every pinned version has its copy
	}
	k := &kept{page: p, upTo: h.newest, zero: allZero(bytes)}
	if !k.zero {
		k.mem = h.frames.take()
		copy(k.mem.mem, bytes)
	}
	h.pages[p] = append(copies, k)
	last.last = append(last.last, k)
}

// At returns the bytes of page p in version v, which must be pinned or the newest. inPlace says that they are the bytes in place. The
// slice is valid until the next Unpin or Close.
func (h *History) At(p dsm.PageIndex, v dsm.Version) (bytes []byte, inPlace bool) {
	for _, k := range h.pages[p] {
		if k.upTo < v {
			continue
		}
		if k.zero {
			return zeroPage, false
		}
		return k.mem.mem, false
	}
	return nil, true
}

// has reports whether k, which has the bytes of a version after v, has those of v too.
func (h *History) has(k *kept, v dsm.Version) bool {
	copies := h.pages[k.page]
	i := slices.Index(copies, k)
	return i == 0 || copies[i-1].upTo < v
}

func (h *History) drop(k *kept) {
	copies := h.pages[k.page]
	i := slices.Index(copies, k)
	if copies = slices.Delete(copies, i, i+1); len(copies) == 0 {
		delete(h.pages, k.page)
	} else {
		h.pages[k.page] = copies
	}
	if !k.zero {
		h.frames.put(k.mem)
	}
}

// Bytes returns the memory that older versions take.
func (h *History) Bytes() int64 { return h.frames.bytes() }

// Close frees all copies, pinned or not.
func (h *History) Close() {
	h.frames.close()
	h.pins, h.pages = nil, nil
}
