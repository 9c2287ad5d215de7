package catalog

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Each member has a lease (dsm.View.Lease), not to be confused with that for reads (lease.go). While it lasts the cluster counts
// on the member, and nobody takes its place. It is renewed by signs of life: questions to the leader (fence.go).
//
//	member                             leader
//	   | sign of life ------------------->|  hears it; asks a majority whether it still leads
//	   |<---------------------- answer    |
//	fenced a lease after it sent          |  evicts it a lease and evictGrace after it heard (evict.go)
//
// So a member is fenced before it can be evicted. The nodes need not agree on what time it is, only on how long a second is.
//
// A new leader does not know whom the former one answered. That one has answered nobody since the election, because a majority would
// have known of the new leader. So the new one waits a whole lease from when it leads before it evicts anybody.
//
// A leader that has decided to evict a member answers it no more, and the command carries the leader's term: it has no effect if
// it gets into the log under a later leader, who may have answered the member again.
type signs struct {
	clock func() time.Duration
	// answered is when the last sign of life that was answered had been sent, by the clock in nanoseconds; 0: none was.
	answered atomic.Int64
	evicted  chan struct{} // closed when this node has been evicted
	leave    sync.Once     // closes evicted

	mu struct {
		lockrank.Mutex
		term  uint64                // of this node's reign to which heard belongs
		heard map[dsm.NodeID]*heard // the members
	}
}

// heard is what the leader has heard of a member.
type heard struct {
	inc    uint64
	at     time.Duration // the last sign of life, or when the leader began to wait for it
	doomed bool          // it is being evicted
	// shunned says that it is answered no more, so that its lease runs out: see apart.go.
	shunned bool
	// unreached are the members that it does not reach, as it has said last, apart those that it has not reached for apartAfter, and since when it has said so each time.
	unreached map[dsm.NodeID]time.Duration
	apart     map[dsm.NodeID]time.Duration
	missed    []dsm.NodeID // of unreached, those that it still did not when they had given a sign of life since it said so first
	said      bool         // which members it does not reach
}

// sinceBoot is a clock that goes on while the machine is suspended.
func sinceBoot() time.Duration {
	var t unix.Timespec
	// It does not block, and homes look for each publish, so Go's scheduler is not told: that would wake its monitor.
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic(errno) // Linux has this clock since 2.6.39
	}
	return time.Duration(t.Nano())
}

func (g *signs) init() {
	g.clock = sinceBoot
	g.evicted = make(chan struct{})
	g.mu.Init("catalog.signs")
}

// confirm says that the leader has answered a question sent at that time.
func (g *signs) confirm(sent time.Duration) {
	for {
		was := g.answered.Load()
		if was >= int64(sent) || g.answered.CompareAndSwap(was, int64(sent)) {
			return
		}
	}
}

// fenced reports whether the lease has run out.
func (g *signs) fenced(lease time.Duration) bool {
	at := g.answered.Load()
	return at == 0 || g.out() || g.clock()-time.Duration(at) >= lease
}

// out reports whether this node has been evicted.
func (g *signs) out() bool {
	select {
	case <-g.evicted:
		return true
	default:
		return false
	}
}

// begin begins to wait for signs of life, as the leader of the term.
func (g *signs) begin(term uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.term = term
	g.mu.heard = make(map[dsm.NodeID]*heard)
}

// startOver begins to wait anew: this node itself was stopped, and could not have heard anything.
func (g *signs) startOver() {
	now := g.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.mu.heard {
		h.at, h.unreached, h.missed, h.apart, h.said = now, nil, nil, nil, false
	}
}

// heardLocked returns what was heard of an incarnation of a node; of one that is unknown or newer this node begins to wait now.
func (g *signs) heardLocked(n dsm.NodeID, inc uint64, now time.Duration) *heard {
	h := g.mu.heard[n]
	if h == nil || h.inc < inc {
		h = &heard{inc: inc, at: now}
		g.mu.heard[n] = h
	}
	return h
}

// hear says that a node has asked this one, which leads in the term. It returns false if the node must not be answered.
func (g *signs) hear(n dsm.NodeID, inc, term uint64) bool {
	now := g.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.term != term {
		return false // this reign has just begun, or is over
	}
	h := g.heardLocked(n, inc, now)
	if h.doomed || h.shunned || h.inc != inc {
		return false
	}
	h.at = now
	return true
}

// blame takes what a node, which was just heard, says of the members that it does not reach.
func (g *signs) blame(n dsm.NodeID, inc uint64, unreached, apart []dsm.NodeID) {
	now := g.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.mu.heard[n]
	if h == nil || h.inc != inc {
		return
	}
	h.unreached, h.apart = g.sinceLocked(h.unreached, unreached, now), g.sinceLocked(h.apart, apart, now)
	h.said, h.missed = true, nil
	for m, since := range h.unreached {
		if g.mu.heard[m].at > since {
			h.missed = append(h.missed, m)
		}
	}
}

// sinceLocked returns since when those of the nodes that are known have been named, if before were until now.
func (g *signs) sinceLocked(before map[dsm.NodeID]time.Duration, ids []dsm.NodeID, now time.Duration) map[dsm.NodeID]time.Duration {
	named := make(map[dsm.NodeID]time.Duration, len(ids))
	for _, m := range ids {
		if g.mu.heard[m] == nil {
			continue
		}
		since, ok := before[m]
		if !ok {
			since = now
		}
		named[m] = since
	}
	return named
}

// cut returns the links between members that live which one end does not reach, and those of them which have been cut for apartAfter: both
// have given a sign of life since one of them said so. A member that has died is not reached by anybody either, and is no reason to put
// another out.
func (g *signs) cut(fresh time.Duration) (cut, long []dsm.Link) {
	now := g.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	lives := func(n dsm.NodeID, since time.Duration) bool {
		h := g.mu.heard[n]
		return h != nil && !h.doomed && !h.shunned && h.at > since && now-h.at < fresh
	}
	add := func(to *[]dsm.Link, a, b dsm.NodeID, since time.Duration) {
		if l := dsm.LinkOf(a, b); lives(a, since) && lives(b, since) && !slices.Contains(*to, l) {
			*to = append(*to, l)
		}
	}
	for a, h := range g.mu.heard {
		for b := range h.unreached {
			add(&cut, a, b, 0)
		}
		for b, since := range h.apart {
			add(&long, a, b, since)
		}
	}
	return cut, long
}

// links returns the links between members that do not work, if were did not. One is cut when a member does not reach another, which gives a sign of life, and then still
// does not: one that has died gives none, and one that was stopped, or whose daemon another has followed, is reached when it goes on. It works when both members say so.
func (g *signs) links(were []dsm.Link, fresh time.Duration) (are []dsm.Link) {
	now := g.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	live := func(n dsm.NodeID) bool {
		h := g.mu.heard[n]
		return h != nil && !h.doomed && !h.shunned && now-h.at < fresh
	}
	reaches := func(a, b dsm.NodeID) bool {
		h := g.mu.heard[a]
		_, misses := h.unreached[b]
		return h.said && !misses
	}
	for _, l := range were {
		if !live(l.A) || !live(l.B) || !reaches(l.A, l.B) || !reaches(l.B, l.A) {
			are = append(are, l)
		}
	}
	for a, h := range g.mu.heard {
		for _, b := range h.missed {
			if live(a) && live(b) {
				are = append(are, dsm.LinkOf(a, b))
			}
		}
	}
	return are
}

// shun decides that a node is answered no more. It returns false if that was decided already.
func (g *signs) shun(n dsm.NodeID, inc uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.mu.heard[n]
	if h == nil || h.inc != inc || h.doomed || h.shunned {
		return false
	}
	h.shunned = true
	return true
}

// silence returns for how long this node, the leader, has heard nothing from a member.
func (g *signs) silence(n dsm.NodeID, inc uint64) time.Duration {
	now := g.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	return now - g.heardLocked(n, inc, now).at
}

// doom decides that a node is evicted if it has been silent for so long. From then on it is answered no more.
func (g *signs) doom(n dsm.NodeID, inc uint64, silent time.Duration, term uint64) bool {
	now := g.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.heardLocked(n, inc, now)
	if h.inc != inc || g.mu.term != term || h.doomed || now-h.at < silent {
		return false
	}
	h.doomed = true
	return true
}
