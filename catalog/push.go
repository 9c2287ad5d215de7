package catalog

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// pushers tell the followers at once that entries are committed. raft's leader tells them with the
// next entries or after commitTimeout, and until then a follower could neither answer its own
// programs nor read. So the leader itself sends an AppendEntries without entries. Its previous
// entry is the last committed one, so a follower that has that entry may apply everything up to it,
// and one that has not refuses, exactly as if raft had sent the message. Under load one message
// reports many entries. Followers that form a majority with the leader find out by themselves
// (early.go); they are told later, in case they did not.
//
// Nodes that wait are told at once: the node that makes the change, nodes that ask for the read
// index, and all nodes when an area or the view changed, because messages of the data plane refer
// to these. The others are told within tellSoon, of several changes at once.
//
// The simpler ways: a commitTimeout of 1 ms costs several percent of a core on an idle cluster;
// appending another entry after every command to carry its commit index doubles the log.
type pushers struct {
	mu struct {
		lockrank.Mutex
		peers map[dsm.NodeID]*pusher // nil unless this node leads
		soon  bool                   // pushers whose followers do not find out by themselves will be woken
		early bool                   // pushers whose followers do will be woken
	}
}

type pusher struct {
	kick chan struct{}
	stop context.CancelFunc
	told atomic.Uint64 // the index that was last reported
	// early says that the follower usually finds out by itself (early.go).
	early bool
}

const (
	// tellSoon is how much later nodes are told that do not wait.
	tellSoon = time.Millisecond
	// tellEarly is how much later nodes are told that should know by themselves.
	tellEarly = 20 * time.Millisecond
)

func (ps *pushers) init() { ps.mu.Init("catalog.pushers") }

// meet keeps a pusher for every follower in the latest configuration, until ctx ends.
func (c *Catalog) meet(ctx context.Context) {
	c.push.mu.Lock()
	defer c.push.mu.Unlock()
	before := c.push.mu.peers
	c.push.mu.peers = make(map[dsm.NodeID]*pusher)
	conf := c.raft.GetConfiguration().Configuration()
	servers := c.servers()
	for _, s := range servers {
		if s.id == c.self.ID || slices.ContainsFunc(servers, func(later server) bool { return later.id == s.id && later.inc > s.inc }) {
			continue
		}
		early := enough(conf, serverOf(c.self).raftID(), s.raftID())
		p := before[s.id]
		if p != nil && p.early != early {
			p.stop()
			p = nil
		}
		delete(before, s.id)
		if p == nil {
			p = &pusher{kick: make(chan struct{}, 1), early: early}
			p.kick <- struct{}{}
			ctx, stop := context.WithCancel(ctx)
			p.stop = stop
			c.tasks.Go(func() { c.pushTo(ctx, s, p) })
		}
		c.push.mu.peers[s.id] = p
	}
	for _, p := range before {
		p.stop()
	}
}

// dismiss ends the pushers. It does not wait: one may be waiting for a dead node.
func (ps *pushers) dismiss() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.mu.peers {
		p.stop()
	}
	ps.mu.peers = nil
}

// kick reports what is committed to all followers, at once to those that do not find out by
// themselves.
func (ps *pushers) kick() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.mu.peers {
		if p.early {
			ps.laterLocked(&ps.mu.early, tellEarly, true)
		} else {
			p.wake()
		}
	}
}

// kickFor is kick for the node, if it has not been told of the index, and later for the others.
func (ps *pushers) kickFor(n dsm.NodeID, index uint64) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for id, p := range ps.mu.peers {
		switch {
		case p.early:
			ps.laterLocked(&ps.mu.early, tellEarly, true)
		case id != n:
			ps.laterLocked(&ps.mu.soon, tellSoon, false)
		case p.told.Load() < index:
			p.wake()
		}
	}
}

// laterLocked wakes after d either the pushers that are early or those that are not; due says
// whether they will be woken anyway.
func (ps *pushers) laterLocked(due *bool, d time.Duration, early bool) {
	if *due {
		return
	}
	*due = true
	time.AfterFunc(d, func() {
		ps.mu.Lock()
		defer ps.mu.Unlock()
		*due = false
		for _, p := range ps.mu.peers {
			if p.early == early {
				p.wake()
			}
		}
	})
}

// kickOne reports to the node, if it has not been told of the index.
func (ps *pushers) kickOne(n dsm.NodeID, index uint64) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.mu.peers[n]; p != nil && !p.early && p.told.Load() < index {
		p.wake()
	}
}

func (p *pusher) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// refusals is how often a report is repeated to a follower that does not have the entry yet,
// because the report may overtake the entry.
const refusals = 8

// pushTo reports to one follower until ctx ends.
func (c *Catalog) pushTo(ctx context.Context, s server, p *pusher) {
	for {
		select {
		case <-p.kick:
		case <-ctx.Done():
			return
		}
		for try := range refusals {
			if c.report(s, p) {
				break
			}
			wait := time.NewTimer(200 * time.Microsecond << try)
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
				return
			}
		}
	}
}

// report tells a follower what is committed. It returns false if the follower should be told again.
func (c *Catalog) report(s server, p *pusher) bool {
	var last raft.Log
	term, commit := c.leads(), c.raft.CommitIndex()
	if term == 0 || commit <= p.told.Load() || c.logs.GetLog(commit, &last) != nil {
		return true
	}
	id := serverOf(c.self).raftID()
	req := raft.AppendEntriesRequest{
		RPCHeader:    raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: c.trans.EncodePeer(id, c.trans.LocalAddr())},
		Term:         term,
		PrevLogEntry: commit, PrevLogTerm: last.Term, LeaderCommitIndex: commit,
	}
	var resp raft.AppendEntriesResponse
	// raft itself finds out what a failure or a later term means.
	err := c.trans.AppendEntries(s.raftID(), s.raftAddress(), &req, &resp)
	if err == nil && resp.Success {
		p.told.Store(commit)
	}
	return err != nil || resp.Success || resp.Term > term
}
