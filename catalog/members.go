package catalog

import (
	"cmp"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// reviewed applies change to the view and gives the result the next epoch. It balances the slots if
// the members that should have them have memory for them. That is so unless a member leaves: then
// its slots stay with it until there is room (reserve), everybody leaves, or it goes without
// handing them over. It also assigns backups, if there is room for what they keep.
func (s *state) reviewed(change func(v *dsm.View)) {
	v := s.view.Clone()
	v.Epoch++
	change(v)
	s.remember(v)
	v.Apart = linksIn(v, v.Apart)
	if s.reserved.room(v) > roomNone {
		balance(v)
	}
	s.place(v)
	assign(v, func(slot dsm.Slot) int { return s.copiesOf(v, slot) }, s.reserved)
	s.view = v
	s.effects.view = s.view
}

// remember keeps who was gone and is forgotten in v, because it may join again.
func (s *state) remember(v *dsm.View) {
	for _, m := range s.view.Members {
		if _, ok := v.Member(m.ID); m.Gone && !ok {
			v.Former = append(v.Former, dsm.Former{ID: m.ID, Inc: m.Inc})
		}
	}
	v.Former = slices.DeleteFunc(v.Former, func(f dsm.Former) bool {
		_, ok := v.Member(f.ID)
		return ok
	})
	v.Former = v.Former[max(len(v.Former)-dsm.MostFormer, 0):]
}

func (o bootstrapOp) apply(s *state, st step) (dsm.Inode, error) {
	if s.view.Cluster != 0 {
		return dsm.Inode{}, fail(errs.Exist, "the cluster is %s already", s.view.Cluster)
	}
	if o.Cluster == 0 {
		return dsm.Inode{}, fail(errs.Invalid, "a cluster without an id")
	}
	if err := checkMember(o.Member); err != nil {
		return dsm.Inode{}, err
	}
	s.add(st, dsm.Inode{Kind: dsm.KindDir, Perm: o.RootPerm & permMask, UID: o.UID, GID: o.GID, Spec: dsm.DefaultSpec()})
	s.reviewed(func(v *dsm.View) {
		v.Cluster, v.Lease = o.Cluster, o.Lease
		v.Trust = o.Trust
		v.Members = []dsm.Member{o.Member}
		for i := range v.Slots {
			v.Slots[i] = dsm.SlotHome{Primary: o.Member.ID, Epoch: v.Epoch}
		}
	})
	return dsm.Inode{}, nil
}

// maxBudget bounds the memory of a member, in bytes: far below where sums overflow.
const maxBudget = 1 << 50

func checkMember(m dsm.Member) error {
	if m.ID == 0 || m.Name == "" || m.Addr == "" || m.Budget <= 0 {
		return fail(errs.Invalid, "member %+v lacks an id, a name, an address or memory", m)
	}
	if m.Budget > maxBudget {
		return fail(errs.Invalid, "--memory of %d bytes: the most is %d", m.Budget, int64(maxBudget))
	}
	return nil
}

func (o addMemberOp) apply(s *state, st step) (dsm.Inode, error) {
	if err := s.admissible(o.Member); err != nil {
		return dsm.Inode{}, err
	}
	if m, ok := s.view.Member(o.Member.ID); ok && m.Inc == o.Member.Inc {
		return dsm.Inode{}, nil
	}
	s.reviewed(func(v *dsm.View) {
		m := o.Member
		m.Voter, m.Leaving, m.Gone, m.Since = false, false, false, v.Epoch
		v.Members = slices.DeleteFunc(v.Members, func(x dsm.Member) bool { return x.ID == m.ID }) // an incarnation that is gone
		v.Members = append(v.Members, m)
		slices.SortFunc(v.Members, func(a, b dsm.Member) int { return cmp.Compare(a.ID, b.ID) })
	})
	return dsm.Inode{}, nil
}

// admissible returns why m cannot be a member, or nil.
func (s *state) admissible(m dsm.Member) error {
	if err := checkMember(m); err != nil {
		return err
	}
	if err := s.trusts(m); err != nil {
		return err
	}
	if slices.ContainsFunc(s.view.Former, func(f dsm.Former) bool { return f.ID == m.ID && f.Inc >= m.Inc }) {
		return fail(errs.Evicted, "incarnation %d of node %s is over", m.Inc, m.ID)
	}
	for _, x := range s.view.Members {
		switch {
		case x.ID == m.ID && x.Inc == m.Inc && !x.Gone:
			return nil
		case x.ID == m.ID && x.Inc >= m.Inc:
			return fail(errs.Evicted, "incarnation %d of node %s is over", m.Inc, m.ID)
		case x.ID == m.ID && !x.Gone:
			return fail(errs.Exist, "node %s is a member, of incarnation %d", x.ID, x.Inc)
		case x.Gone:
		case x.Addr == m.Addr:
			return fail(errs.Exist, "the address %s belongs to member %s (%s), which has not left", m.Addr, x.Name, x.ID)
		case x.Name == m.Name:
			return fail(errs.Exist, "there is a member %s at %s already: choose another name with --name", x.Name, x.Addr)
		}
	}
	return s.checkRoom(m)
}

func (o leavingOp) apply(s *state, st step) (dsm.Inode, error) {
	m, ok := s.view.Member(o.Node)
	if !ok {
		return dsm.Inode{}, fail(errs.NotExist, "node %s is no member", o.Node)
	}
	if m.Leaving {
		return dsm.Inode{}, nil
	}
	s.reviewed(func(v *dsm.View) {
		for i := range v.Members {
			v.Members[i].Leaving = v.Members[i].Leaving || v.Members[i].ID == o.Node
		}
	})
	return dsm.Inode{}, nil
}

func (o removeMemberOp) apply(s *state, st step) (dsm.Inode, error) {
	gone, ok := s.view.Member(o.Node)
	if !ok {
		return dsm.Inode{}, nil
	}
	if n := rowsOf(s.view, o.Node); n > 0 {
		return dsm.Inode{}, fail(errs.Busy, "node %s has %d slots to hand over", o.Node, n)
	}
	s.reviewed(func(v *dsm.View) {
		v.Members = slices.DeleteFunc(v.Members, func(m dsm.Member) bool { return m.ID == o.Node })
		depart(v, st, o.Node, gone.Key, false)
	})
	s.release(o.Node)
	return dsm.Inode{}, nil
}

// release drops the locks and claims of a node that makes no change any more.
func (s *state) release(n dsm.NodeID) {
	delete(s.sessions, n)
	s.effects.locks = append(s.effects.locks, s.book.Drop(n)...)
	for _, ino := range sortedKeys(s.inodes) {
		in := s.inodes[ino]
		delete(in.claims, n)
		s.drop(in)
	}
}

// setVoters records which members vote, according to raft's configuration.
func (s *state) setVoters(votes func(dsm.Member) bool) {
	same := func(m dsm.Member) bool { return m.Voter == votes(m) }
	if !slices.ContainsFunc(s.view.Members, func(m dsm.Member) bool { return !same(m) }) {
		return
	}
	s.reviewed(func(v *dsm.View) {
		for i := range v.Members {
			v.Members[i].Voter = votes(v.Members[i])
		}
	})
}
