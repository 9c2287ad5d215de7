package coherence

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
