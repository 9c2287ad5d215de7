package groups

import (
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestMembersDisagree: who calls a round where another waits at a barrier is told so, and has not arrived; it may do as the others. What a
// member has begun it ends in the same way.
func TestMembersDisagree(t *testing.T) {
	c := newCluster(t, 2)
	members := c.join(3, 0, 1, 1)
	rank := make([]*Member, 3)
	for _, m := range members {
		rank[m.Rank()] = m
	}
	a := new(noted)
	round := func(m *Member, number uint64) error {
		return second(m.Meet(ended(t), number, map[dsm.AreaID]Area{5: a}, time.Minute))
	}
	wants(t, second(rank[0].Barrier(ended(t), 1)), errs.Timeout, "number 1")
	wants(t, round(rank[1], 1), errs.Invalid, "number 1 is a barrier of rank 0, and a round of this member")
	a.wants(t, "abandon 1", "contribute 1")
	wants(t, round(rank[0], 1), errs.Invalid, "the member has begun number 1 as a barrier")
	all := func(number uint64, list ...*Member) {
		t.Helper()
		var wait sync.WaitGroup
		for _, m := range list {
			wait.Go(func() {
				if r, err := m.Barrier(t.Context(), number); err != nil || r.Number != number || len(r.Members) != len(list) {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		wait.Wait()
	}
	all(1, rank...)
	wants(t, round(rank[0], 1), errs.Invalid, "has begun number 1 as a barrier")

	// One that is gone does not count.
	_, err := rank[0].Meet(ended(t), 2, map[dsm.AreaID]Area{5: a}, time.Minute)
	wants(t, err, errs.Timeout, "number 2")
	_, err = rank[2].Meet(ended(t), 2, nil, time.Minute)
	wants(t, err, errs.Timeout, "number 2")
	wants(t, second(rank[1].Barrier(ended(t), 2)), errs.Invalid, "a round of ranks 0 2, and a barrier of this member")
	rank[0].Leave()
	rank[2].Leave()
	all(2, rank[1])
}

// TestRefusedIsRefused: a member is refused, and nothing changes that before it has heard of it: not the end of whoever called something
// else, not another report of its node, and not the loss of what it was told.
func TestRefusedIsRefused(t *testing.T) {
	for _, dropped := range []bool{false, true} {
		h := &chosen{sim: newSim(t, 1, 3)}
		h.join(1, 2)
		first, late := h.progs[0], h.progs[1]
		first.next, late.next, late.round = 1, 1, true
		first.meet()
		h.pass()
		h.links = [][2]int{{0, 2}}
		late.meet()
		h.pass()
		first.leave()
		h.pass()
		h.nodes[2].SessionReset(1)
		h.pass()
		if c := h.nodes[0].mu.coordinators[simGroup]; c.done != 0 {
			t.Errorf("lost %v: the round ended with a member that was refused: %s", dropped, h)
		}
		if dropped {
			h.net[h.links[0]] = nil
			h.nodes[2].SessionReset(1)
		}
		h.links = nil
		h.pass()
		if h.refused != 1 || late.number != 0 || late.member.seat.Arrived != 0 {
			t.Errorf("lost %v: refused %d times: %s", dropped, h.refused, h)
		}
		late.round = true
		late.meet()
		h.pass()
		if late.number != 1 {
			t.Errorf("lost %v: the only one waits: %s", dropped, h)
		}
	}
}
