package coherence

import (
	"iter"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// slotBits is a set of slots of an area, by slotIndex. Most areas are small and have extents in a few slots only, but every node keeps a set or
// two for each, so they are small.
type slotBits [(areaSlots + 63) / 64]uint64

func (s *slotBits) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

func (s *slotBits) put(i int, in bool) {
	if in {
		s[i/64] |= 1 << (i % 64)
	} else {
		s[i/64] &^= 1 << (i % 64)
	}
}

// minus returns the slots of s that are not in t.
func (s slotBits) minus(t *slotBits) slotBits {
	for i := range s {
		s[i] &^= t[i]
	}
	return s
}

// slotSetLocked returns which slots of a list the area can have extents in, as a set.
func (a *Area) slotSetLocked(list iter.Seq[dsm.Slot]) (in slotBits) {
	for s := range list {
		if a.hasSlotLocked(s) {
			in.put(slotIndex(s), true)
		}
	}
	return in
}

// inSlotsLocked returns the extents in m whose slot is in a set, in increasing order. All that are in m are below end. Of a few slots of a large area it does
// not look at the extents in others.
func inSlotsLocked[T any](a *Area, m map[dsm.ExtentIndex]T, end dsm.ExtentIndex, in *slotBits) (list []dsm.ExtentIndex) {
	if *in == (slotBits{}) {
		return nil
	}
	has := func(e dsm.ExtentIndex) bool { return in.has(slotIndex(a.slotLocked(e))) }
	first, n := a.mu.ino.Spec.Recur()
	if len(m) > n { // else it takes as long to find out which they are
		var recur []dsm.ExtentIndex
		for e := first; e < min(first+dsm.ExtentIndex(n), end); e++ {
			if has(e) {
				recur = append(recur, e)
			}
		}
		if len(recur)*(int(end)/n+1) < len(m) {
			add := func(e int) {
				if _, ok := m[dsm.ExtentIndex(e)]; ok && e < int(end) {
					list = append(list, dsm.ExtentIndex(e))
				}
			}
			for e := range first {
				if has(e) {
					add(int(e))
				}
			}
			for past := 0; len(recur) > 0 && past < int(end); past += n {
				for _, e := range recur {
					add(past + int(e))
				}
			}
			return list
		}
	}
	for e := range m {
		if has(e) {
			list = append(list, e)
		}
	}
	slices.Sort(list)
	return list
}

// slotState is what a replica knows of those extents of a slot for which it has made no state.
type slotState struct {
	asked bool // a Subscribe was sent
	live  bool // the home has answered the Subscribe: see replicaExtent
	here  bool // all their pages are here, and zero
}

// slotStates has the state of each slot of an area, by slotIndex.
type slotStates struct{ asked, live, here slotBits }

func (s *slotStates) at(i int) slotState {
	return slotState{s.asked.has(i), s.live.has(i), s.here.has(i)}
}

func (s *slotStates) put(i int, x slotState) {
	s.asked.put(i, x.asked)
	s.live.put(i, x.live)
	s.here.put(i, x.here)
}
