package catalog

import (
	"cmp"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// perClass is a number of slots for each class of them: at i those of areas with i+1 copies.
type perClass [dsm.MostReplicas]int

func (p perClass) sum() (n int) {
	for _, x := range p {
		n += x
	}
	return n
}

// balance gives every member its quota of the slots of each class and moves as few as possible: only the surplus
// of members that have too many, and all slots of those that leave. A slot that is still being
// handed over stays where it goes until its new primary is ready; then balance is called again. If
// everybody leaves, nothing moves. The slots of a member that is gone stay, see settleOp.
//
// The result depends on nothing but v. Moved slots get v's epoch.
func balance(v *dsm.View) {
	quota, count := quotas(v), primaries(v)
	for i := range v.Slots {
		h, class := &v.Slots[i], dsm.CopiesOf(dsm.Slot(i))-1
		if !h.Settled() || count[h.Primary][class] <= quota[h.Primary][class] || v.IsGone(h.Primary) {
			continue
		}
		to := neediest(v, quota, count, class)
		if to == 0 {
			continue
		}
		count.add(h.Primary, class, -1)
		count.add(to, class, 1)
		*h = h.MovedTo(v, class+1, to)
	}
}

// shares is how many slots members have, or should have.
type shares map[dsm.NodeID]perClass

func (s shares) add(n dsm.NodeID, class, slots int) {
	x := s[n]
	x[class] += slots
	s[n] = x
}

// quotas returns how many slots of each class each member should have. Members that leave get none, unless all leave: then each keeps
// what it has.
//
// A member whose part is less than about one slot gets none. It reads and writes like the others.
// If it got a slot, its little memory would bound the demand files of all.
//
// Parts have no upper bound: the size of demand files is bounded by the memory of their homes, and
// with a bound a large node's memory would lie idle. If a node's network is too slow for its part,
// mount it with a smaller --memory.
func quotas(v *dsm.View) shares {
	have, quota := primaries(v), make(shares)
	stay := staying(v)
	if len(stay) == 0 {
		for _, m := range v.Members {
			quota[m.ID] = have[m.ID]
		}
		return quota
	}
	for _, c := range dsm.Classes {
		class := c.Copies - 1
		for i, n := range apportion(stay, c.Slots, nil, func(id dsm.NodeID) int { return have[id][class] }) {
			quota.add(stay[i].ID, class, n)
		}
	}
	return quota
}

// backupQuotas returns of how many slots of each class each member should be a backup, if the slots are shared out as quota says.
func backupQuotas(v *dsm.View, quota shares) shares {
	backups := make(shares)
	stay := staying(v)
	for _, c := range dsm.Classes {
		class := c.Copies - 1
		total := c.Slots * min(class, len(stay)-1)
		if total <= 0 {
			continue
		}
		most := func(id dsm.NodeID) int { return c.Slots - quota[id][class] }
		for i, n := range apportion(stay, total, most, func(dsm.NodeID) int { return 0 }) {
			backups.add(stay[i].ID, class, n)
		}
	}
	return backups
}

// staying returns the members that do not leave.
func staying(v *dsm.View) []dsm.Member {
	return slices.DeleteFunc(slices.Clone(v.Members), func(m dsm.Member) bool { return m.Leaving })
}

// apportion shares n slots out to members in proportion to their budgets, by largest remainder (Hamilton's method), so each is less than one
// off. Of equal remainders that of the member with the most surplus slots is rounded up, because then the fewest slots move. If most is not nil, it bounds what
// a member gets; the rest goes to the others, up to their bounds.
func apportion(members []dsm.Member, n int, most, have func(dsm.NodeID) int) []int {
	quota, rest := make([]int, len(members)), make([]int64, len(members)) // rest: of the division
	var open []int                                                        // the members that may have more
	for i := range members {
		open = append(open, i)
	}
	for full := true; full; {
		full = false
		var sum int64
		for _, i := range open {
			sum += members[i].Budget
		}
		left := n
		for i := range members {
			if !slices.Contains(open, i) {
				left -= quota[i]
			}
		}
		open = slices.DeleteFunc(open, func(i int) bool {
			quota[i], rest[i] = int(int64(left)*members[i].Budget/sum), int64(left)*members[i].Budget%sum
			if most == nil || quota[i] < most(members[i].ID) {
				return false
			}
			quota[i], full = most(members[i].ID), true
			return true
		})
	}
	left := n
	for _, q := range quota {
		left -= q
	}
	slices.SortFunc(open, func(a, b int) int {
		surplus := cmp.Compare(have(members[b].ID)-quota[b], have(members[a].ID)-quota[a])
		return cmp.Or(cmp.Compare(rest[b], rest[a]), surplus, cmp.Compare(members[a].ID, members[b].ID))
	})
	for _, i := range open[:min(left, len(open))] {
		quota[i]++
	}
	return quota
}

// primaries counts the slots that each node is primary of.
func primaries(v *dsm.View) shares {
	count := make(shares)
	for i, h := range v.Slots {
		count.add(h.Primary, dsm.CopiesOf(dsm.Slot(i))-1, 1)
	}
	return count
}

// neediest returns the member that lacks most slots of the class, the first one if several are equal, or 0 if
// none lacks any.
func neediest(v *dsm.View, quota, count shares, class int) dsm.NodeID {
	var id dsm.NodeID
	lacks := 0
	for _, m := range v.Members {
		if n := quota[m.ID][class] - count[m.ID][class]; n > lacks {
			id, lacks = m.ID, n
		}
	}
	return id
}

// rowsOf counts the slots that the node is primary, source or backup of.
func rowsOf(v *dsm.View, n dsm.NodeID) int {
	count := slotsOf(v, n)
	for _, h := range v.Rows() {
		if h.BackupOf(n) >= 0 && h.Primary != n && h.Source != n {
			count++
		}
	}
	return count
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
			v.Row(i).Arrived()
		}
	})
	return dsm.Inode{}, nil
}

// A report about an earlier move is stale and changes nothing.
func (o handoverFailedOp) apply(s *state, st step) (dsm.Inode, error) {
	failed := func(i dsm.Slot) bool {
		h := s.view.Row(i)
		return h != nil && h.Source == st.node && h.Failed(s.view) && o.Epoch >= h.Epoch
	}
	if !slices.ContainsFunc(o.Back, failed) && !slices.ContainsFunc(o.Lost, failed) {
		return dsm.Inode{}, nil
	}
	s.reviewed(func(v *dsm.View) {
		for _, i := range o.Back {
			if failed(i) {
				*v.Row(i) = v.Row(i).CameBack(v)
			}
		}
		for _, i := range o.Lost {
			if failed(i) && !v.Row(i).TakeOver(v) {
				v.Row(i).Arrived()
			}
		}
	})
	return settleOp{}.apply(s, st)
}
