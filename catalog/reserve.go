package catalog

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// reservation is what the files take of the members' memory: their sizes added
// up, in bytes.
//
// Full files count whole at every member, because its programs may use all of
// them. Of the demand files a member holds what it is home of, and pages that its
// programs touch. Those can be given back, but without room for some no program
// gets on, so an eighth of what the full files leave stays free for them.
//
// What a member is home of is counted by its quota of the slots, though it may
// have other slots while some are handed over. Extents hash to slots evenly but
// not exactly: where a member is home of more, that comes out of the room for pages.
type reservation struct {
	full, demand int64
}

// room is how well the members can hold what is reserved.
type room uint8

const (
	roomNone  room = iota // a member cannot hold what it is home of
	roomHomes             // they can hold that, but one has too little for pages on demand
	roomPages             // nothing lacks
)

// claim is what a reservation takes of one member, in bytes.
type claim struct {
	member dsm.Member
	full   int64 // the full files
	home   int64 // the demand files that it is home of
	paging int64 // kept for pages on demand
}

// with returns the reservation after a file of the residency grew by delta.
func (r reservation) with(x dsm.Residency, delta int64) reservation {
	if x == dsm.ResidencyDemand {
		r.demand += delta
	} else {
		r.full += delta
	}
	return r
}

// of returns what is needed of a member with the number of slots for the room.
func (r reservation) of(m dsm.Member, slots int, x room) claim {
	c := claim{member: m, full: r.full}
	if r.demand == 0 {
		return c
	}
	n := int64(slots)
	c.home = r.demand/dsm.Slots*n + (r.demand%dsm.Slots*n+dsm.Slots-1)/dsm.Slots
	if x == roomPages {
		// An eighth is free of what holds home and a seventh of it. A member with
		// hardly a slot has programs that need pages, too.
		c.paging = max((c.home+6)/7, dsm.ExtentSize)
	}
	return c
}

func (c claim) need() int64  { return c.full + c.home + c.paging }
func (c claim) spare() int64 { return c.member.Budget - c.need() }

// String says what the member needs.
func (c claim) String() string {
	text := fmt.Sprintf("node %s needs --memory at least %d bytes and offers %d: %d for the full files", c.member.Name, c.need(), c.member.Budget, c.full)
	if c.home > 0 {
		text += fmt.Sprintf(", %d for its part of the demand files", c.home)
	}
	if c.paging > 0 {
		text += fmt.Sprintf(", %d for pages on demand", c.paging)
	}
	return text
}

// tightest returns the claim on the member that has least to spare when the
// moves of slots in v are made, the first of equals. Members that leave do not
// count, unless all do.
func (r reservation) tightest(v *dsm.View, x room) claim {
	quota := quotas(v)
	var tight claim
	for _, m := range v.Members {
		slots, ok := quota[m.ID]
		if c := r.of(m, slots, x); ok && (tight.member.ID == 0 || c.spare() < tight.spare()) {
			tight = c
		}
	}
	return tight
}

// room returns how well the members of v can hold what is reserved.
func (r reservation) room(v *dsm.View) room {
	for _, x := range []room{roomPages, roomHomes} {
		if r.tightest(v, x).spare() >= 0 {
			return x
		}
	}
	return roomNone
}

// reserve accounts for the file growing by delta. When it shrinks, that may
// be what a member that leaves has waited for to hand over its slots.
func (s *state) reserve(in *inode, delta int64) {
	s.reserved = s.reserved.with(in.Spec.Residency, delta)
	if delta < 0 && len(stranded(s.view)) > 0 && s.reserved.room(s.view) > roomNone {
		s.reviewed(func(*dsm.View) {})
	}
}

// checkGrowth says why the file cannot grow by delta, if it cannot.
func (s *state) checkGrowth(in *inode, delta int64) error {
	if delta <= 0 {
		return nil
	}
	c := s.reserved.with(in.Spec.Residency, delta).tightest(s.view, roomPages)
	switch {
	case c.spare() >= 0:
		return nil
	case c.home == 0:
		return fail(errs.NoSpace, "growing by %d bytes: %s; remove files", delta, c)
	}
	return fail(errs.NoSpace, "growing by %d bytes: %s; remove files or add a node", delta, c)
}

// checkRoom says why there is too little memory with m as a further member, if
// there is. A cluster that has too little already, since a member left, takes in every
// node that does not worsen it: that is its way out.
func (s *state) checkRoom(m dsm.Member) error {
	if c := s.reserved.of(m, 0, roomPages); c.spare() < 0 {
		return fail(errs.NoSpace, "%s", c)
	}
	least := s.reserved.room(s.view)
	if least == roomNone {
		return nil
	}
	with := func(budget int64) claim {
		v := *s.view
		m.Budget = budget
		v.Members = append(slices.Clone(v.Members), m)
		return s.reserved.tightest(&v, least)
	}
	c := with(m.Budget)
	if c.spare() >= 0 {
		return nil
	}
	if c.member.ID != m.ID {
		return fail(errs.NoSpace, "if it joins, %s", c)
	}
	// A member with more memory gets more slots, so what it needs grows with what
	// it has, by a slot or more each time.
	offer := m.Budget
	for next := c; next.member.ID == m.ID && next.spare() < 0 && next.need() <= maxBudget; next = with(c.need()) {
		c = next
	}
	c.member.Budget = offer
	return fail(errs.NoSpace, "%s", c)
}

// stranded counts, for each member that leaves, the slots that rest with it though
// others stay: those lack memory for them.
func stranded(v *dsm.View) map[dsm.NodeID]int {
	count := make(map[dsm.NodeID]int)
	for _, m := range v.Members {
		if m.Leaving && !m.Gone {
			count[m.ID] = 0
		}
	}
	if !slices.ContainsFunc(v.Members, func(m dsm.Member) bool { return !m.Leaving }) {
		return nil
	}
	for _, h := range v.Slots {
		if n, leaves := count[h.Primary]; leaves && h.Source == 0 {
			count[h.Primary] = n + 1
		}
	}
	maps.DeleteFunc(count, func(_ dsm.NodeID, n int) bool { return n == 0 })
	return count
}

// checkLeaving says why the node, which leaves, cannot hand its slots over, if it
// cannot.
func (s *state) checkLeaving(id dsm.NodeID) error {
	n := stranded(s.view)[id]
	if n == 0 {
		return nil
	}
	return fail(errs.NoSpace, "nobody has the memory to take over its %d slots, and what they hold is lost without: %s; remove files or add a node",
		n, s.reserved.tightest(s.view, roomHomes))
}

// usage returns reserved and budget such that a full file may grow by
// their difference; nothing may if it is negative. budget is the least memory of a
// member that stays.
func (s *state) usage() (reserved, budget int64) {
	budget = reservation{}.tightest(s.view, roomPages).member.Budget
	return budget - s.reserved.tightest(s.view, roomPages).spare(), budget
}
