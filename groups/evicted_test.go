package groups

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestWordFromBeforeAnEviction: a call and a report that come after the view in which their sender is a member again, or their sender's next daemon, are not
// answered.
func TestWordFromBeforeAnEviction(t *testing.T) {
	s := new(countedSender)
	n := NewNode(Config{Self: 2, Sender: s, Home: func(_ *dsm.View, group dsm.AreaID) dsm.NodeID { return dsm.NodeID(group%2 + 1) }})
	n.ViewChanged(&dsm.View{Epoch: 5, Members: []dsm.Member{{ID: 1, Inc: 1, Since: 5}, {ID: 2, Since: 1}}})
	for _, at := range []dsm.Epoch{4, 5} {
		n.Handle(1, &wire.GroupCall{Group: 2, Reign: at})
		n.Handle(1, &wire.GroupReport{Group: 1, Epoch: at, Seq: 1})
		if want := int(at - 4); s.reports != want || s.states != want {
			t.Errorf("a call and a report of view %d: %d and %d answers, want %d", at, s.reports, s.states, want)
		}
	}
}

// TestStateFromBeforeAnEviction: a state that was meant for the incarnation before leaves out what that one knew. It must not be taken for one that says all.
func TestStateFromBeforeAnEviction(t *testing.T) {
	n := NewNode(Config{Self: 2, Sender: new(countedSender), Home: func(*dsm.View, dsm.AreaID) dsm.NodeID { return 1 }})
	ranked := 0
	join := func() *Member {
		m := n.newMember(7, 2)
		if _, err := n.begin(m, m.applyLocked, m.hasRankLocked, func(err error) {
			if err == nil {
				ranked++
			}
		}); err != nil {
			t.Fatal(err)
		}
		n.Handle(1, &wire.GroupCall{Group: 7, Reign: 1})
		return m
	}
	n.ViewChanged(&dsm.View{Epoch: 1, Members: []dsm.Member{{ID: 1}, {ID: 2}}})
	old := join()
	before := n.mu.seq
	n.ViewChanged(&dsm.View{Epoch: 3, Members: []dsm.Member{{ID: 1}, {ID: 2, Inc: 1, Since: 3}}})
	if old.ended != errEvicted {
		t.Errorf("the view in which the node was gone is left out, and its member has ended with %v", old.ended)
	}
	m := join()
	n.Handle(1, &wire.GroupState{Group: 7, Reign: 1, Heard: before, Generation: 9, Size: 2, Done: 1, List: 1, Counted: 5, Met: []dsm.NodeID{1, 2}})
	if l := m.group; l.generation != 0 || l.done != 0 || l.counted != 0 {
		t.Errorf("the state for the incarnation before is taken over: %+v", l)
	}
	n.Handle(1, &wire.GroupState{Group: 7, Reign: 1, Heard: n.mu.seq, Generation: 9, Size: 2, Done: 1, List: 2, Met: []dsm.NodeID{1, 2},
		Members: []wire.GroupMember{{ID: 5, Node: 1, From: 1}, {ID: m.seat.ID, Node: 2, From: 2}}})
	if ranked != 1 || m.Rank() != 1 || m.group.done != 1 {
		t.Errorf("the state for this one is not: %+v", m.group)
	}
}

// TestEvictedCoordinatorStartsAnew: what waits to be sent is not, and who leaves in its old reign may know what nobody else does: all are called.
func TestEvictedCoordinatorStartsAnew(t *testing.T) {
	s := new(countedSender)
	n := NewNode(Config{Self: 1, Sender: s, Home: func(*dsm.View, dsm.AreaID) dsm.NodeID { return 1 }})
	n.ViewChanged(&dsm.View{Epoch: 1, Members: []dsm.Member{{ID: 1}, {ID: 2}}})
	n.mu.sending = true // another goroutine is at it
	n.Handle(2, &wire.GroupReport{Group: 7, Epoch: 1, Seq: 1, Seats: []wire.GroupSeat{{ID: 3, Size: 1}}})
	if len(n.mu.outbox) == 0 {
		t.Fatal("nothing waits to be sent")
	}
	n.ViewChanged(&dsm.View{Epoch: 3, Members: []dsm.Member{{ID: 1, Inc: 1, Since: 3}, {ID: 2}}})
	if len(n.mu.outbox) != 0 || len(n.mu.coordinators) != 0 {
		t.Errorf("%d messages wait to be sent, and %d coordinators are there", len(n.mu.outbox), len(n.mu.coordinators))
	}
	n.mu.sending = false
	n.Handle(2, &wire.GroupReport{Group: 7, Epoch: 1, Reign: 1, Seq: 2, Generation: 9, Done: 4, List: 1})
	if s.states != 0 || n.mu.coordinators[7] == nil {
		t.Error("who leaves is not called")
	}
}

// TestDaemonCallsAnewWhenItIsKnown: a daemon that follows another one coordinates before the view says so. Nobody hears the calls of that time any more.
func TestDaemonCallsAnewWhenItIsKnown(t *testing.T) {
	calls := 0
	n := NewNode(Config{Self: 1, Sender: sendFunc(func(m any) {
		if c, ok := m.(*wire.GroupCall); ok && c.Reign == 2 {
			calls++
		}
	}), Home: func(*dsm.View, dsm.AreaID) dsm.NodeID { return 1 }})
	n.ViewChanged(&dsm.View{Epoch: 1, Members: []dsm.Member{{ID: 1}, {ID: 2}}})
	n.Handle(2, &wire.GroupReport{Group: 7, Epoch: 1, Seq: 1, Seats: []wire.GroupSeat{{ID: 3, Size: 1}}})
	n.ViewChanged(&dsm.View{Epoch: 2, Members: []dsm.Member{{ID: 1, Since: 2}, {ID: 2}}})
	if calls != 1 {
		t.Errorf("%d calls, want 1", calls)
	}
}

type sendFunc func(any)

func (f sendFunc) Send(_ dsm.NodeID, m any, _ [][]byte, _ bool) { f(m) }
