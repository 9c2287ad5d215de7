package catalog

import (
	"cmp"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// balance gives every member its quota of the slots and moves as few as possible: only the surplus
// of members that have too many, and all slots of those that leave. A slot that is still being
// handed over stays where it goes until its new primary is ready; then balance is called again. If
// everybody leaves, nothing moves. The slots of a member that is gone stay, see settleOp.
//
// The result depends on nothing but v. Moved slots get v's epoch.
func balance(v *dsm.View) {
	quota, count := quotas(v), primaries(v)
	for i := range v.Slots {
		h := &v.Slots[i]
		if h.Source != 0 || count[h.Primary] <= quota[h.Primary] || isGone(v, h.Primary) {
			continue
		}
		to := neediest(v, quota, count)
		if to == 0 {
			return
		}
		count[h.Primary]--
		count[to]++
		*h = dsm.SlotHome{Primary: to, Source: h.Primary, Epoch: v.Epoch}
	}
}

// quotas returns how many slots each member should have. Members that stay get parts in proportion
// to their budgets, by largest remainder (Hamilton's method), so each is less than one slot off.
// Among equal remainders those are rounded up whose members have most slots too many, which moves
// least. Members that leave get none, unless all leave: then each keeps what it has.
//
// A member whose part is less than about one slot gets none. It reads and writes like the others.
// If it got a slot, its little memory would bound the demand files of all.
//
// Parts have no upper bound: the size of demand files is bounded by the memory of their homes, and
// with a bound a large node's memory would lie idle. If a node's network is too slow for its part,
// mount it with a smaller --memory.
func quotas(v *dsm.View) map[dsm.NodeID]int {
	have := primaries(v)
	quota := make(map[dsm.NodeID]int)
	rest := make(map[dsm.NodeID]int64) // of the division
	var stay []dsm.NodeID
	var sum int64
	for _, m := range v.Members {
		if !m.Leaving {
			stay = append(stay, m.ID)
			sum += m.Budget
		}
	}
	if len(stay) == 0 {
		for _, m := range v.Members {
			quota[m.ID] = have[m.ID]
		}
		return quota
	}
	left := dsm.Slots
	for _, m := range v.Members {
		if !m.Leaving {
			quota[m.ID], rest[m.ID] = int(dsm.Slots*m.Budget/sum), dsm.Slots*m.Budget%sum
			left -= quota[m.ID]
		}
	}
	slices.SortFunc(stay, func(a, b dsm.NodeID) int {
		surplus := cmp.Compare(have[b]-quota[b], have[a]-quota[a])
		return cmp.Or(cmp.Compare(rest[b], rest[a]), surplus, cmp.Compare(a, b))
	})
	for _, id := range stay[:left] {
		quota[id]++
	}
	return quota
}

// primaries counts the slots that each node is primary of.
func primaries(v *dsm.View) map[dsm.NodeID]int {
	count := make(map[dsm.NodeID]int)
	for _, h := range v.Slots {
		count[h.Primary]++
	}
	return count
}

// neediest returns the member that lacks most slots, the first one if several are equal, or 0 if
// none lacks any.
func neediest(v *dsm.View, quota, count map[dsm.NodeID]int) dsm.NodeID {
	var id dsm.NodeID
	lacks := 0
	for _, m := range v.Members {
		if n := quota[m.ID] - count[m.ID]; n > lacks {
			id, lacks = m.ID, n
		}
	}
	return id
}

// slotsOf counts the slots that the node is primary or source of.
func slotsOf(v *dsm.View, n dsm.NodeID) int {
	count := 0
	for _, h := range v.Rows() {
		if h.Primary == n || h.Source == n {
			count++
		}
	}
	return count
}

// A report about slots that are not the node's any more, or about an earlier move to it, is stale
// and changes nothing.
func (o slotsReadyOp) apply(s *state, st step) (dsm.Inode, error) {
	ready := func(v *dsm.View, i dsm.Slot) bool {
		h := v.Row(i)
		return h != nil && h.Primary == st.node && h.Source != 0 && o.Epoch >= h.Epoch
	}
	slots := slices.DeleteFunc(slices.Clone(o.Slots), func(i dsm.Slot) bool {
		return !ready(s.view, i)
	})
	if len(slots) == 0 {
		return dsm.Inode{}, nil
	}
	s.reviewed(func(v *dsm.View) {
		for _, i := range slots {
			v.Row(i).Source = 0
		}
	})
	return dsm.Inode{}, nil
}

// A report about an earlier move is stale and changes nothing.
func (o handoverFailedOp) apply(s *state, st step) (dsm.Inode, error) {
	failed := func(i dsm.Slot) bool {
		h := s.view.Row(i)
		return h != nil && h.Source == st.node && isGone(s.view, h.Primary) && o.Epoch >= h.Epoch
	}
	if !slices.ContainsFunc(o.Back, failed) && !slices.ContainsFunc(o.Lost, failed) {
		return dsm.Inode{}, nil
	}
	s.reviewed(func(v *dsm.View) {
		for _, i := range o.Back {
			if failed(i) {
				*v.Row(i) = dsm.SlotHome{Primary: st.node, Epoch: v.Epoch}
			}
		}
		for _, i := range o.Lost {
			if failed(i) {
				v.Row(i).Source = 0
			}
		}
	})
	return settleOp{}.apply(s, st)
}
