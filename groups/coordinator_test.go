package groups

import (
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestGenerationRises also above that of another coordinator whose count is ahead: a node that knows the old life would take nothing of a new one
// with a lower number.
func TestGenerationRises(t *testing.T) {
	c := newCoordinator(9, 1, 1, func() uint64 { return 5 })
	c.silent[2] = struct{}{}
	gone := wire.GroupMember{ID: 7, Node: 3, From: 1}
	r := &wire.GroupReport{Group: 9, Reign: 1, Seq: 1, Generation: 100, List: 1, Seats: []wire.GroupSeat{{ID: 8, Size: 1}}}
	r.Known = &wire.GroupKnown{Size: 1, Members: []wire.GroupMember{gone}}
	c.report(dsm.NodeID(2), r, time.Time{})
	if len(c.members) != 1 || c.members[0].ID != 8 || c.generation <= 100 {
		t.Errorf("generation %d of %+v", c.generation, c.members)
	}
}

// TestRanksGoInTheOrderOfComing: who waits for a rank keeps its place when its node reports something else, and a report that another has overtaken
// changes nothing.
func TestRanksGoInTheOrderOfComing(t *testing.T) {
	c := newCoordinator(9, 1, 1, func() uint64 { return 5 })
	c.view(func(dsm.NodeID) bool { return true }, time.Time{})
	says := func(node dsm.NodeID, seq uint64, seats ...wire.GroupSeat) {
		c.report(node, &wire.GroupReport{Group: 9, Reign: 1, Seq: seq, Generation: c.generation, Seats: seats}, time.Time{})
	}
	says(2, 1, wire.GroupSeat{ID: 1, Size: 1})
	member, first, second := wire.GroupSeat{ID: 1, Size: 1, Generation: c.generation}, wire.GroupSeat{ID: 2, Size: 1}, wire.GroupSeat{ID: 3, Size: 1}
	says(2, 2, member, first)
	says(3, 1, second)
	member.Ticks = 1
	says(2, 3, member, first)
	says(2, 4, first)
	if c.members[0].ID != 2 {
		t.Errorf("the free rank is with %d: who came first has it", c.members[0].ID)
	}
	says(2, 3, member, first)
	if got := c.peers[2].seats; len(got) != 1 || got[0].ID != 2 {
		t.Errorf("after a report that came late the seats are %+v", got)
	}
}
