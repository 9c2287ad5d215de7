package catalog

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// pushers tell the followers at once that entries are committed. raft's leader
// tells them with the next entries or after commitTimeout, and until then a
// follower could neither answer its own programs nor read. So the leader sends
// an AppendEntries without entries itself: its previous entry is the last
// committed one, so a follower that has that entry may apply all up to it, and
// one that has not refuses, exactly as if raft had sent it. Under load one message
// reports many entries.
//
// The simple ways: a commitTimeout of 1 ms costs several percent of a core on an
// idle cluster; appending another entry behind every command to carry its
// commit index doubles the log.
type pushers struct {
	mu struct {
		lockrank.Mutex
		peers map[dsm.NodeID]*pusher // nil unless this node leads
	}
}

type pusher struct {
	kick chan struct{}
	stop context.CancelFunc
}

func (ps *pushers) init() { ps.mu.Init("catalog.pushers") }

// meet has a pusher for every follower of the latest configuration until ctx
// ends, and none for anybody else.
func (c *Catalog) meet(ctx context.Context) {
	c.push.mu.Lock()
	defer c.push.mu.Unlock()
	before := c.push.mu.peers
	c.push.mu.peers = make(map[dsm.NodeID]*pusher)
	for _, s := range c.servers() {
		if s.id == c.self.ID {
			continue
		}
		p := before[s.id]
		delete(before, s.id)
		if p == nil {
			p = &pusher{kick: make(chan struct{}, 1)}
			p.kick <- struct{}{}
			ctx, stop := context.WithCancel(ctx)
			p.stop = stop
			c.tasks.Go(func() { c.pushTo(ctx, s, p.kick) })
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

// kick has every pusher report what is committed.
func (ps *pushers) kick() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.mu.peers {
		select {
		case p.kick <- struct{}{}:
		default:
		}
	}
}

// refusals is how often a report is repeated to a follower that has not got
// the entry yet: the report may overtake it.
const refusals = 8

// pushTo reports to one follower until ctx ends.
func (c *Catalog) pushTo(ctx context.Context, s server, kick <-chan struct{}) {
	for {
		select {
		case <-kick:
		case <-ctx.Done():
			return
		}
		for try := range refusals {
			if c.report(s) {
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

// report tells a follower what is committed; false if it should be told again.
func (c *Catalog) report(s server) bool {
	var last raft.Log
	term, commit := c.leads(), c.raft.CommitIndex()
	if term == 0 || c.logs.GetLog(commit, &last) != nil {
		return true
	}
	self := c.trans.EncodePeer(serverID(c.self.ID), c.trans.LocalAddr())
	req := raft.AppendEntriesRequest{
		RPCHeader:    raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(serverID(c.self.ID)), Addr: self},
		Term:         term,
		PrevLogEntry: commit, PrevLogTerm: last.Term, LeaderCommitIndex: commit,
	}
	var resp raft.AppendEntriesResponse
	// raft finds out by itself what a failure or a later term means.
	err := c.trans.AppendEntries(serverID(s.id), serverAddress(s.id, s.addr), &req, &resp)
	return err != nil || resp.Success || resp.Term > term
}
