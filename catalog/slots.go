package catalog

import (
	"cmp"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// balance gives every member that stays its share of the slots, floor or ceiling
// of slots/members, by moving as few as possible: only the surplus of those
// that have too many, all of those that leave. A slot that is still being handed
// over stays where it goes until its new primary is ready; then balance is
// called again. If everybody leaves, nothing moves.
//
// It depends on nothing but v and moves slots under v's epoch.
func balance(v *dsm.View) {
	quota := quotas(v)
	if len(quota) == 0 {
		return
	}
	count := make(map[dsm.NodeID]int)
	for _, h := range v.Slots {
		count[h.Primary]++
	}
	for i := range v.Slots {
		h := &v.Slots[i]
		if h.Source != 0 || count[h.Primary] <= quota[h.Primary] {
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

// quotas returns how many slots each member that stays gets. The larger shares
// go to those that have most, which moves least.
func quotas(v *dsm.View) map[dsm.NodeID]int {
	have := make(map[dsm.NodeID]int)
	for _, h := range v.Slots {
		have[h.Primary]++
	}
	var stay []dsm.NodeID
	for _, m := range v.Members {
		if !m.Leaving {
			stay = append(stay, m.ID)
		}
	}
	slices.SortFunc(stay, func(a, b dsm.NodeID) int {
		return cmp.Or(cmp.Compare(have[b], have[a]), cmp.Compare(a, b))
	})
	quota := make(map[dsm.NodeID]int)
	for i, id := range stay {
		quota[id] = dsm.Slots / len(stay)
		if i < dsm.Slots%len(stay) {
			quota[id]++
		}
	}
	return quota
}

// neediest returns the member that lacks most slots, the first of equals, or 0
// if none lacks any.
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
	for _, h := range v.Slots {
		if h.Primary == n || h.Source == n {
			count++
		}
	}
	return count
}

// A report of slots that are the node's no more, or of an earlier move to it,
// is stale and changes nothing.
func (o slotsReadyOp) apply(s *state, st step) (dsm.Inode, error) {
	ready := func(v *dsm.View, i dsm.Slot) bool {
		h := v.Slots[i]
		return h.Primary == st.node && h.Source != 0 && o.Epoch >= h.Epoch
	}
	slots := slices.DeleteFunc(slices.Clone(o.Slots), func(i dsm.Slot) bool {
		return int(i) >= len(s.view.Slots) || !ready(s.view, i)
	})
	if len(slots) == 0 {
		return dsm.Inode{}, nil
	}
	s.reviewed(func(v *dsm.View) {
		for _, i := range slots {
			v.Slots[i].Source = 0
		}
	})
	return dsm.Inode{}, nil
}
