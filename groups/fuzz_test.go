package groups

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// fussy is a Sender that looks at what is sent: a node passes no nonsense on.
type fussy struct{ t *testing.T }

func (f fussy) Send(to dsm.NodeID, m any, _ [][]byte, _ bool) {
	if bad := fits(m); bad != "" {
		f.t.Errorf("sends %v %+v: %s", to, m, bad)
	}
}

// fuzzed is node 1 of a cluster of three. It coordinates group 1 and has a member in it, and a member of group 2, which node 2 coordinates.
func fuzzed(t *testing.T) *Node {
	n := NewNode(Config{Self: 1, Sender: fussy{t}, few: 1, Home: func(_ *dsm.View, group dsm.AreaID) dsm.NodeID { return min(dsm.NodeID(group), 3) }})
	n.ViewChanged(&dsm.View{Epoch: 3, Members: []dsm.Member{{ID: 1}, {ID: 2}, {ID: 3}}})
	for group := range dsm.AreaID(2) {
		m := n.newMember(group+1, 2)
		delete(m.group.seats, m.seat.ID)
		m.seat.ID = uint64(group) + 1 // in place of a random one
		m.group.seats[m.seat.ID], m.group.sorted = m, nil
		if _, err := n.begin(m, m.applyLocked, m.hasRankLocked, func(err error) {
			if err != nil {
				return
			}
			_ = m.Arrive(1, func(Result, error) {})
		}); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// known is a text of what a node knows of groups.
func (n *Node) known() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b bytes.Buffer
	for _, id := range slices.Sorted(maps.Keys(n.mu.locals)) {
		l := n.mu.locals[id]
		fmt.Fprintf(&b, "%d: %d %d %d %d %v %v %d\n", id, l.generation, l.done, l.list, l.slowest, l.members, l.met, len(l.seats))
	}
	for _, id := range slices.Sorted(maps.Keys(n.mu.coordinators)) {
		c := n.mu.coordinators[id]
		fmt.Fprintf(&b, "%d: %d %d %d %v %v %v %d\n", id, c.generation, c.done, c.list, c.members, c.silent, c.counters, len(c.peers))
	}
	fmt.Fprintf(&b, "%d\n", len(n.mu.parked))
	return b.String()
}

// FuzzHandle gives a node frames of others, that is, bytes. The number of the request says of which node.
func FuzzHandle(f *testing.F) {
	const reign = 3
	seats := func(list ...wire.GroupSeat) *wire.GroupReport {
		return &wire.GroupReport{Group: 1, Epoch: 3, Reign: reign, Seq: 1, Seats: list, Known: &wire.GroupKnown{}}
	}
	members := []wire.GroupMember{{ID: 2, Node: 1, From: 1}, {ID: 9, Node: 2, From: 1}}
	add := []wire.GroupAdd{{Number: 1, Counter: "n", Delta: 5}}
	seeds := [][]any{
		{&wire.GroupCall{Group: 1, Reign: reign}, &wire.GroupCall{Group: 2, Reign: reign}, &wire.GroupCall{Group: 2, Reign: 9}},
		{seats(wire.GroupSeat{ID: 9, Size: 2, Adds: add}), &wire.GroupReport{Group: 1, Epoch: 3, Reign: reign, Seq: 2, Generation: 3<<20 + 1, Done: 1, List: 1,
			Seats: []wire.GroupSeat{{ID: 9, Size: 2, Generation: 3<<20 + 1, Arrived: 1, Tries: 1, Ticks: 7, Need: 5, Settled: 1, Adds: add}}}},
		{&wire.GroupReport{Group: 1, Epoch: 3, Reign: reign, Seq: 1, Generation: 7, Done: 1, List: 1, Known: &wire.GroupKnown{Size: 2, Members: members, Met: []dsm.NodeID{1, 2},
			Counters: []wire.GroupCounter{{Name: "n", Count: 1, Value: 5, Recent: []wire.GroupSum{{Seat: 9, Number: 1, Value: 5}}}}}}},
		{&wire.GroupCall{Group: 2, Reign: reign}, &wire.GroupState{Group: 2, Reign: reign, Heard: 1, Generation: 1, Size: 2, List: 1, Members: members},
			&wire.GroupState{Group: 2, Reign: reign, Heard: 2, Generation: 1, Size: 2, Done: 1, List: 2, Met: []dsm.NodeID{1, 0}, Members: members, Silent: []dsm.NodeID{3},
				Refused: []wire.GroupRefusal{{Seat: 2, Try: 1, Kind: 1, Text: "why"}}}},
	}
	for _, s := range seeds {
		for _, from := range []uint64{2, 3} {
			var b []byte
			for _, m := range s {
				var err error
				if b, err = wire.Append(b, m, from, false, 0); err != nil {
					f.Fatal(err)
				}
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := fuzzed(t)
		defer n.Close()
		r := wire.NewReader(bytes.NewReader(b))
		for {
			frame, err := r.Read()
			if err != nil {
				return
			}
			before := n.known()
			bad := fits(frame.Msg)
			n.Handle(dsm.NodeID(frame.Req%4), frame.Msg)
			if after := n.known(); bad != "" && before != after {
				t.Errorf("%+v is refused (%s) and has changed %s to %s", frame.Msg, bad, before, after)
			}
			frame.Release()
		}
	})
}
