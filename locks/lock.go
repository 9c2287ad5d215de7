package locks

import (
	"fmt"
	"math"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Type says what a lock allows others to do.
type Type uint8

const (
	// Unlock is not a lock: a request for it releases locks.
	Unlock Type = iota
	// Read lets others read.
	Read
	// Write lets nobody else do anything.
	Write
)

// End is the last byte that can be locked: the end of every file.
const End = math.MaxInt64

// Owner is the owner of locks: a process, an open file, or, with Flock, an open file as flock(2)
// sees it. ID comes from the kernel and is unique on its node only.
type Owner struct {
	Node  dsm.NodeID
	ID    uint64
	Flock bool
}

// Lock is the bytes from First to Last, locked by Owner.
type Lock struct {
	Owner       Owner
	Type        Type
	First, Last uint64
	PID         uint32 // of the process, on its node
}

// conflicts reports whether two owners cannot have these locks at the same time.
func (l Lock) conflicts(o Lock) bool {
	return l.Owner != o.Owner && l.Owner.Flock == o.Owner.Flock && (l.Type == Write || o.Type == Write) &&
		l.First <= o.Last && o.First <= l.Last
}

func (l Lock) valid() bool {
	return l.Owner.Node != 0 && l.Type <= Write && l.First <= l.Last && l.Last <= End && (!l.Owner.Flock || l.First == 0 && l.Last == End)
}

// How says what happens to a request that conflicts with a lock.
type How uint8

const (
	// Try: it is refused.
	Try How = iota
	// Wait: it waits.
	Wait
	// Test: it is refused; without a conflict it is granted nothing either.
	Test
)

// Request asks for a lock. Ticket identifies it among the requests of its node.
type Request struct {
	Lock   Lock
	How    How
	Ticket uint64
	// Renew is the term of a delegation that the node has yielded and wants to have again.
	Renew uint64
}

// Verdict is the outcome of a request.
type Verdict uint8

const (
	// Queued: it waits.
	Queued Verdict = iota
	// Granted: the owner has the lock.
	Granted
	// Refused: the request conflicts with another lock.
	Refused
	// Deadlock: the owner would wait for itself.
	Deadlock
	// Cancelled: the request does not wait any more.
	Cancelled
	// NodeDropped: the node was taken for dead, and its locks were dropped.
	NodeDropped
)

// String returns the verdict in words.
func (v Verdict) String() string {
	names := [...]string{"queued", "granted", "refused", "deadlock", "cancelled", "dropped"}
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("verdict %d", v)
}

// Answer is the verdict on a request. If it was refused, Conflict is the lock that it conflicts
// with.
type Answer struct {
	Node     dsm.NodeID
	Ticket   uint64
	Verdict  Verdict
	Conflict Lock
}

func (r Request) answer(v Verdict) Answer {
	return Answer{Node: r.Lock.Owner.Node, Ticket: r.Ticket, Verdict: v}
}
