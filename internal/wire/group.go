package wire

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Groups of programs. Their messages go by the data lane, for its order. Each is a state and not an
// event, so one that is dropped is made good by the next:
//
//	node                                      coordinator
//	   | GroupReport (no reign) ------------->|  the first word of a group
//	   |                    GroupCall to all nodes: who knows something of it?
//	   |<------------------------- GroupCall  |
//	   | GroupReport (all it knows) --------->|  from all: now it can decide
//	   |<------------------------ GroupState  |  all have come: ranks
//	   | GroupReport (arrived) -------------->|
//	   |<------------------------ GroupState  |  the last has arrived
//
// A node whose view has another coordinator reports to that one.

// GroupReport is all that the programs of a node have to say in a group.
type GroupReport struct {
	Group dsm.AreaID
	Epoch dsm.Epoch // of the sender's view
	Reign dsm.Epoch // of the GroupCall that the sender follows; 0: it has had none of this coordinator
	Seq   uint64    // numbers the reports of the node about the group
	// What the sender has got.
	Generation uint64
	Done       uint64
	List       uint64
	Slowest    uint64
	Counted    uint64
	Seats      []GroupSeat
	Known      *GroupKnown // in the answer to a call
}

// GroupSeat is a program that takes part, or wants to.
type GroupSeat struct {
	ID         uint64 // drawn at random
	Generation uint64 // 0: it has no rank yet
	Size       int    // of the group, as the program says
	Arrived    uint64 // the last barrier at which it has arrived
	Round      bool   // it is the barrier of a round
	Tries      uint64 // counts its arrivals, with those that were refused
	Ticks      uint64 // its clock
	Need       uint64 // it waits until no clock is behind this; 0: it does not
	Settled    uint64 // its additions up to this one have been answered
	Adds       []GroupAdd
}

// GroupAdd is an addition to a counter that has no answer yet.
type GroupAdd struct {
	Number  uint64 // counts the additions of the program
	Counter string
	Delta   int64
}

// GroupKnown is what a new coordinator needs to go on where the last one ended.
type GroupKnown struct {
	Size     int
	Members  []GroupMember
	Met      []dsm.NodeID // as in GroupState
	Counters []GroupCounter
}

// GroupMember is a member by rank.
type GroupMember struct {
	ID   uint64
	Node dsm.NodeID
	From uint64 // the first barrier that waits for it
	Tick uint64 // its clock when it came
	Gone bool   // nobody has the rank; the last who had it is named
}

// GroupCounter is the value of a counter after so many additions.
type GroupCounter struct {
	Name  string
	Count uint64
	Value int64
	// Recent has the additions up to here of which it is not known that their program has the answer.
	Recent []GroupSum
}

// GroupSum answers an addition.
type GroupSum struct {
	Seat   uint64
	Number uint64
	Value  int64
}

// GroupCall tells a node who coordinates the group, and asks for all that it knows.
type GroupCall struct {
	Group dsm.AreaID
	Reign dsm.Epoch // the epoch of the sender's view when it became the coordinator
}

// GroupState tells a node the state of a group. It leaves out only what the node has reported that it has, as states may be dropped.
type GroupState struct {
	Group      dsm.AreaID
	Reign      dsm.Epoch
	Heard      uint64 // the last report of the receiver
	Generation uint64 // 0: the group has no members
	Size       int
	Done       uint64         // the last barrier that all have left
	Met        []dsm.NodeID   // by rank, where the member was that took part in it, 0 if there was none; nil if it is left out
	List       uint64         // counts the changes of the members
	Members    []GroupMember  // nil if they are left out
	Slowest    uint64         // no clock is behind this
	Counters   []GroupCounter // the counters that the receiver has added to; if Counted is not 0, also all that have changed since its last report
	Counted    uint64         // the receiver has all counters as they were after so many additions of this reign, and reports that; 0: it need not
	Came       []GroupMember  // who waits for the group to be complete
	Refused    []GroupRefusal
	Silent     []dsm.NodeID // who has not answered the call: nothing is decided before
}

// GroupRefusal says why a program does not take part.
type GroupRefusal struct {
	Seat uint64
	Try  uint64 // only this arrival is refused, as GroupSeat.Tries has it; 0: the membership
	Kind errs.Kind
	Text string
}

// GroupList asks a node for the groups that it coordinates; it is a request of the control lane.
type GroupList struct{}

// GroupListed answers GroupList, with lines of text.
type GroupListed struct{ Lines []string }

// groupMessages have permanent numbers from 200 on.
var groupMessages = map[uint16]any{
	200: GroupReport{},
	201: GroupCall{},
	202: GroupState{},
	203: GroupList{},
	204: GroupListed{},
}
