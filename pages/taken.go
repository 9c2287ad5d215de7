package pages

import (
	"iter"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// takenPages is a set of pages for each extent of a copy. A copy may be far larger than what is ever stored to it, so the sets of extents beyond the first
// few come in groups, and a group without pages takes no memory.
//
// The sets of different extents may be changed concurrently, the number of extents may not.
type takenPages struct {
	n     int                          // extents
	first []dsm.PageSet                // of the first groupExtents extents, or fewer
	more  []atomic.Pointer[takenGroup] // of each groupExtents after those
}

const groupExtents = 256

type takenGroup [groupExtents]dsm.PageSet

// resize makes it one of n extents. Those that are added have no pages.
func (t *takenPages) resize(n int) {
	for _, gone := range t.from(n) {
		*gone = dsm.PageSet{}
	}
	t.n = n
	if k := min(n, groupExtents); k < len(t.first) {
		t.first = t.first[:k:k]
	} else if k > len(t.first) {
		t.first = append(t.first, make([]dsm.PageSet, k-len(t.first))...)
	}
	groups := (n - len(t.first) + groupExtents - 1) / groupExtents
	if groups == len(t.more) {
		return
	}
	more := make([]atomic.Pointer[takenGroup], groups)
	for i := range min(groups, len(t.more)) {
		more[i].Store(t.more[i].Load())
	}
	t.more = more
}

// at returns the set of an extent, nil if it is empty and takes no memory.
func (t *takenPages) at(e dsm.ExtentIndex) *dsm.PageSet {
	if int(e) < groupExtents {
		return &t.first[e]
	}
	g := t.more[e/groupExtents-1].Load()
	if g == nil {
		return nil
	}
	return &g[e%groupExtents]
}

// put is at for a set that is to get pages.
func (t *takenPages) put(e dsm.ExtentIndex) *dsm.PageSet {
	s := t.at(e)
	if s == nil {
		t.more[e/groupExtents-1].CompareAndSwap(nil, new(takenGroup)) // or another goroutine has put one there
		s = t.at(e)
	}
	return s
}

// has reports whether page i of an extent is in its set. There may be no such extent.
func (t *takenPages) has(e dsm.ExtentIndex, i int) bool {
	if int(e) >= t.n {
		return false
	}
	s := t.at(e)
	return s != nil && s.Has(i)
}

// from yields the extents from first on whose sets take memory, and the sets.
func (t *takenPages) from(first int) iter.Seq2[dsm.ExtentIndex, *dsm.PageSet] {
	return func(yield func(dsm.ExtentIndex, *dsm.PageSet) bool) {
		for e := first; e < t.n; e++ {
			s := t.at(dsm.ExtentIndex(e))
			if s == nil {
				e |= groupExtents - 1 // the last of its group
				continue
			}
			if !yield(dsm.ExtentIndex(e), s) {
				return
			}
		}
	}
}
