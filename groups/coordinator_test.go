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
