package catalog

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestDeadIsMarkedAfterSomeLooks: a member is marked as gone after it was dead at several looks in a row. The looks at all are rare, and
// in between only those that seem dead are looked at.
func TestDeadIsMarkedAfterSomeLooks(t *testing.T) {
	members := []dsm.Member{{ID: 1}, {ID: 2}}
	dead := make(map[dsm.NodeID]int)
	alive, looks := map[dsm.NodeID]bool{1: true}, 0
	look := func(all bool) []dsm.Member {
		return lookAt(members, dead, all, func(m dsm.Member) bool {
			looks++
			return !alive[m.ID]
		})
	}
	if look(false); looks != 0 {
		t.Errorf("%d members are looked at that did not seem dead", looks)
	}
	look(true)
	look(false)
	alive[2] = true
	look(false) // it answers: all begins anew
	alive[2] = false
	if look(true); dead[2] != 1 {
		t.Errorf("a member that has answered counts as dead for %d looks", dead[2])
	}
	for n := 2; ; n++ {
		gone := look(false)
		if len(gone) > 0 != (n >= deadFor) {
			t.Fatalf("after %d looks %v are gone", n, gone)
		}
		if len(gone) > 0 {
			if gone[0].ID != 2 {
				t.Errorf("%v are gone", gone)
			}
			return
		}
	}
}
