package groups

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// countedSender counts messages by kind.
type countedSender struct{ reports, states int }

func (s *countedSender) Send(_ dsm.NodeID, m any, _ [][]byte, _ bool) {
	switch m.(type) {
	case *wire.GroupReport:
		s.reports++
	case *wire.GroupState:
		s.states++
	}
}

// TestParked: all that came before its view is handled when that comes, however much it is, and of states that replace each other one is kept.
func TestParked(t *testing.T) {
	const groups = 5000
	s := new(countedSender)
	n := NewNode(Config{Self: 2, Sender: s, Home: func(_ *dsm.View, group dsm.AreaID) dsm.NodeID { return dsm.NodeID(group%2 + 1) }})
	v := dsm.View{Epoch: 1, Members: []dsm.Member{{ID: 1}, {ID: 2}}}
	n.ViewChanged(&v)
	for g := range dsm.AreaID(groups) {
		for i := range uint64(3) {
			n.Handle(1, &wire.GroupCall{Group: 2 * g, Reign: 2})
			n.Handle(1, &wire.GroupReport{Group: 2*g + 1, Epoch: 2, Seq: i})
		}
	}
	if len(n.mu.parked) != 2*groups {
		t.Errorf("%d messages are kept, want %d", len(n.mu.parked), 2*groups)
	}
	w := v
	w.Epoch = 2
	n.ViewChanged(&w)
	if s.reports != groups || s.states != groups || len(n.mu.parked) != 0 {
		t.Errorf("%d calls and %d reports are answered, want %d", s.reports, s.states, groups)
	}
}
