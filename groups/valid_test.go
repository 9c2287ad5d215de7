package groups

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// noSender is for a node whose messages nobody wants.
type noSender struct{}

func (noSender) Send(dsm.NodeID, any, [][]byte, bool) {}

// TestBrokenPeer: what a node cannot mean is dropped and logged, and does not end this one. Node 2 reports to node 1 as the coordinator, and tells
// it states as that of another group.
func TestBrokenPeer(t *testing.T) {
	var log bytes.Buffer
	n := NewNode(Config{Self: 1, Sender: noSender{}, Log: slog.New(slog.NewTextHandler(&log, nil)), Home: func(_ *dsm.View, group dsm.AreaID) dsm.NodeID {
		return dsm.NodeID(group)
	}})
	n.ViewChanged(&dsm.View{Epoch: 1, Members: []dsm.Member{{ID: 1}, {ID: 2}}})
	m := n.newMember(2, 2)
	if _, err := n.begin(m, m.applyLocked, m.hasRankLocked, func(error) {}); err != nil {
		t.Fatal(err)
	}
	n.Handle(2, &wire.GroupCall{Group: 2, Reign: 1})
	report := func(seats ...wire.GroupSeat) *wire.GroupReport {
		return &wire.GroupReport{Group: 1, Epoch: 1, Reign: 1, Seats: seats, Known: &wire.GroupKnown{}}
	}
	known := func(k wire.GroupKnown) *wire.GroupReport {
		return &wire.GroupReport{Group: 1, Epoch: 1, Reign: 1, Generation: 1, Done: 1, List: 1, Known: &k}
	}
	state := func(size int, met []dsm.NodeID, members ...wire.GroupMember) *wire.GroupState {
		return &wire.GroupState{Group: 2, Reign: 1, Generation: 1, List: 1, Done: 1, Size: size, Met: met, Members: members}
	}
	seat := wire.GroupMember{ID: m.seat.ID, Node: 1}
	for i, c := range []struct {
		msg  any
		want string
	}{
		{report(wire.GroupSeat{ID: 5, Size: -1}), "size -1"},
		{report(wire.GroupSeat{ID: 5}), "size 0"},
		{report(wire.GroupSeat{ID: 5, Size: MaxSize + 1}), "wants a group of size"},
		{report(wire.GroupSeat{Size: 1}), "program 0 comes after 0"},
		{report(wire.GroupSeat{ID: 5, Size: 2}, wire.GroupSeat{ID: 5, Size: 2}), "program 5 comes after 5"},
		{report(wire.GroupSeat{ID: 5, Size: 1, Adds: make([]wire.GroupAdd, maxAdds+1)}), "additions without an answer"},
		{report(wire.GroupSeat{ID: 5, Size: 1, Adds: []wire.GroupAdd{{Number: 1}}}), "0 bytes"},
		{known(wire.GroupKnown{Size: 1}), "barrier 1 was met by nobody"},
		{known(wire.GroupKnown{Size: 2, Met: []dsm.NodeID{1, 0}, Members: []wire.GroupMember{seat}}), "size 2 has 1 members"},
		{known(wire.GroupKnown{Size: 2, Met: []dsm.NodeID{1}}), "barrier of 1 ranks in a group of size 2"},
		{state(-1, nil), "size -1 has 0 members"},
		{state(MaxSize+1, nil), "has 0 members"},
		{state(1, []dsm.NodeID{1, 2}), "barrier of 2 ranks in a group of size 1"},
		{state(2, nil, seat), "size 2 has 1 members"},
		{state(1, nil, seat), "from barrier 0 on"},
	} {
		log.Reset()
		n.Handle(2, c.msg)
		if !strings.Contains(log.String(), c.want) {
			t.Errorf("%d: %q, want %q", i, log.String(), c.want)
		}
	}
	// The coordinator decides by a report that is right.
	r := report(wire.GroupSeat{ID: 5, Size: 1})
	r.Seq = 1
	n.Handle(2, r)
	if c := n.mu.coordinators[1]; c == nil || len(c.members) != 1 || m.seat.Generation != 0 {
		t.Errorf("group 1 has %+v; the member of group 2 %+v", c, m.seat)
	}
}
