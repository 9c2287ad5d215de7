package wire

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// The control plane: requests of one node's catalog to another's.
//
//	node                                      leader of the catalog
//	   | Propose (command) ------------------->|  append it to the log
//	   |<--------------------------- Failure   |  only if it cannot (it is done when the node applies it)
//	   | ReadIndex --------------------------->|  am I still the leader?
//	   |                  Probe to the voters  |
//	   |<------------------------- ReadIndexed |  read your replica once it is there
//	   |                                       |
//	   |<------------------------------ Recall |  another node makes a change
//	   | Recalled ---------------------------->|
//	   |                                       |
//	   |<-------------------------- YieldLocks |  another node opens or locks a file
//	   | LocksYielded ------------------------>|  its command goes into the log with that
//	   |                                       |
//	   | Leave ------------------------------->|  after its last slot is handed over
//	   |<-------------------------------- Left |
//	   |                                       |
//	   |<------------------------------ PutOut |  two members do not reach each other, and this is one of them
//	   | IsOut ------------------------------->|  marks it as gone
//
//	node                                      any other member
//	   | ListConflicts ----------------------->|  a program reads the conflicts of a file
//	   |<-------------------- ConflictsListed  |  some of those that it keeps
//	   | ClearConflicts ---------------------->|
//	   |<------------------- ConflictsCleared  |
//
//	new node            any node              leader
//	   | Join ------------>| Join ------------>|
//	   |                   |   Probe to the new node: can the cluster reach it?
//	   |                   |   Reach to the new node and all members: do they reach each other?
//	   |<----------- Joined|<----------- Joined|
//
//	new node            any node
//	   | Enroll ---------->|  by a connection that is encrypted; the new node has no certificate yet
//	   |<--------- Enrolled|  a certificate, with which it may ask to Join
//
// All but Enroll and the first Join are sent to one node, not to whoever is at its address.

// JoinProtocol is the version of the commands and snapshots of the catalog, and of the requests that members make of each other. All members of a
// cluster must have the same one. hold.Format changes with it.
const JoinProtocol = 22

// Join asks to make Member a member of the cluster.
type Join struct {
	Protocol  uint32
	Member    dsm.Member
	Forwarded bool // by a member, to the node that it believes to lead
}

// Joined says that the sender of Join is now a member, and was so in the view of that epoch. Its lease has begun: until the log comes it gives the
// leader signs of life at this address.
type Joined struct {
	Cluster dsm.ClusterID
	Epoch   dsm.Epoch
	Leader  string // id@host:port
}

// Enroll asks for a certificate for the sender's id and Key. Secret is that of a join token; a node
// of the same user on the same machine needs none.
type Enroll struct {
	Secret []byte
	Key    dsm.NodeKey
}

// Enrolled has the certificate, and that of the authority which signed it, both DER. Both are empty
// if the cluster does not encrypt.
type Enrolled struct {
	Cluster  dsm.ClusterID
	CA, Cert []byte
}

// Propose asks the leader to append a command. Only a failure is answered. The command may still
// end with the leader; the proposer sends it again until it has applied it.
type Propose struct{ Command []byte }

// ReadIndex asks up to where a replica must have applied the log to serve a read that begins now.
// Term is the sender's term in raft. If the sender votes, it thereby declares that it had given its
// vote to no later leader when it asked.
//
// It is a sign of life, too. Epoch is that of the sender's view, in which it is a member.
type ReadIndex struct {
	From  dsm.NodeID
	Inc   uint64
	Term  uint64
	Epoch dsm.Epoch
	Sign  bool // it is only a sign of life
	// In a sign of life, Unreached are the members that the sender has not reached on the data lane for some time. Apart are those of them that it has not reached
	// for longer still: so long that either the sender or they must leave the cluster.
	Unreached, Apart []dsm.NodeID
}

// ReadIndexed answers ReadIndex.
type ReadIndexed struct {
	Index uint64
	Lease bool // and the sender has a lease
}

// Recall asks for the lease back.
type Recall struct{}

// Recalled says that the sender does not read by the lease any more.
type Recalled struct{}

// YieldLocks asks a node to give up the delegation of a file's locks, of that term, because another
// node opens the file or wants a lock.
type YieldLocks struct {
	Ino  dsm.Ino
	Term uint64
}

// LocksYielded answers YieldLocks: OK says that the sender grants no lock in that term any more, and
// Used that it has.
type LocksYielded struct{ OK, Used bool }

// Probe asks a node for its state. A node that is joining learns from it which cluster it will
// belong to. The node answers when it has applied the log up to Until, and its kernel has dropped what
// shrinks of the file Shrunk have truncated. The last takes no longer than a short limit.
type Probe struct {
	Cluster dsm.ClusterID
	Until   uint64
	Shrunk  dsm.Ino
}

// Probed answers Probe: the node's term in raft and how far it has applied the log.
type Probed struct {
	Inc     uint64 // of the node that answers
	Term    uint64
	Applied uint64
	Away    bool // it has followed one that was killed, and is not back yet: see catalog/back.go
	Leaving bool // it was told to leave
}

// Reach asks whether the receiver reaches Node at Addr Within a time.
type Reach struct {
	Node   dsm.NodeID
	Addr   string
	Within time.Duration
}

// Reached answers Reach.
type Reached struct{ OK bool }

// Succeed asks a voter whether From may stand for election in place of the leader of the Term, which is silent, or Ended: it refuses
// connections. Last is the end of the sender's log.
type Succeed struct {
	From  dsm.NodeID
	Term  uint64
	Last  uint64
	Ended bool
}

// Succeeds answers Succeed: whether the sender agrees, and helps no other for a while.
type Succeeds struct{ OK bool }

// PutOut tells the receiver that it is about to be marked as gone, and by name from which members it is apart. It is meant for that incarnation only.
type PutOut struct {
	Inc       uint64
	ApartFrom []string
}

// IsOut says that the sender acts for the cluster no more.
type IsOut struct{}

// Leave asks to remove Node, which has no slots any more, from the members.
type Leave struct{ Node dsm.NodeID }

// Left says that the node is not a member any more, nor has a vote.
type Left struct{}

// ListConflicts asks a node for the conflicts of an area that it keeps, from number From on. The sender has the first Skip bytes of that one.
type ListConflicts struct {
	Area dsm.AreaID
	From uint64
	Skip int64
}

// ConflictsListed answers ListConflicts with the first of them, in order. More says that there are others behind them.
type ConflictsListed struct {
	List []KeptConflict
	Lost int64 // bytes that the node had no room for
	More bool
}

// KeptConflict is a conflict that a node keeps, or a part of one: Rest bytes of Kept follow.
type KeptConflict struct {
	Number uint64
	Time   time.Time
	Off    int64 // of the first byte that was kept
	Kept   []byte
	Rest   int64
	Taken  []byte
}

// ClearConflicts has a node drop the conflicts of an area that it keeps, up to a number; 0: all.
type ClearConflicts struct {
	Area dsm.AreaID
	UpTo uint64
}

// ConflictsCleared answers ClearConflicts.
type ConflictsCleared struct{}

// controlMessages are the requests and replies of the control lane with their permanent numbers,
// from 100 to 199.
var controlMessages = map[uint16]any{
	100: Join{},
	101: Joined{},
	102: Propose{},
	104: ReadIndex{},
	105: ReadIndexed{},
	106: Probe{},
	107: Probed{},
	108: Leave{},
	109: Left{},
	110: Recall{},
	111: Recalled{},
	112: YieldLocks{},
	113: LocksYielded{},
	114: Enroll{},
	115: Enrolled{},
	116: Reach{},
	117: Reached{},
	118: PutOut{},
	119: IsOut{},
	120: Succeed{},
	121: Succeeds{},
	122: ListConflicts{},
	123: ConflictsListed{},
	124: ClearConflicts{},
	125: ConflictsCleared{},
}
