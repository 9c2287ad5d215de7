package catalog

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// A voter stands for election when the leader has been silent for silentLeader, or at once if the leader's machine refuses connections, so that
// its process has most likely ended. It does so in the way in which a leader hands over: the others vote although they know the leader still.
// So it first asks them. A majority must have missed it nearly as long, or else the silence is up to this voter; and no other may have been promised
// to, or else the votes might be split, which costs as long again.
//
//	voter                              other voters
//	   | Succeed (silent for long) ------->|  silent here too, and nobody else has asked: a promise
//	   |<-------------------- Succeeds (OK) |
//	   | stands for election               |
//
// raft itself waits for electionTimeout to twice that, and then until a majority has: that is for when this comes to nothing. If the leader
// lives after all, only the leadership has moved.

const (
	// silentLeader is for how long a leader is silent before a voter stands. With 0.7 s there was an election in a cluster that was well, on a
	// machine with ten processes that wanted to run for each core.
	silentLeader = 850 * time.Millisecond
	// missed is after which silence others agree: they may have had a heartbeat later than the one who asks, by the longest pause between two.
	missed = silentLeader - 2*heartbeat
	// promised is for how long a voter helps no other, and asked how long one waits for promises.
	promised, asked = 300 * time.Millisecond, 200 * time.Millisecond
)

// heir is which voter this one has promised to help.
type heir struct {
	standing atomic.Bool // succeed is running
	mu       struct {
		lockrank.Mutex
		to    dsm.NodeID
		until time.Duration // by the clock of signs
	}
}

func (h *heir) init() { h.mu.Init("catalog.heir") }

// promise promises to help a node unless another was promised that before.
func (h *heir) promise(to dsm.NodeID, now time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.to != to && now < h.mu.until {
		return false
	}
	h.mu.to, h.mu.until = to, now+promised
	return true
}

// forget ends a promise.
func (h *heir) forget(to dsm.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.to == to {
		h.mu.until = 0
	}
}

// watchSilence has this node stand for election when the leader is silent, until the catalog is closed.
func (c *Catalog) watchSilence() {
	for try := 0; ; {
		wait := silentLeader
		if id, _ := c.leader(); id != 0 && id != c.self.ID && c.votes() {
			if left := silentLeader - time.Since(c.raft.LastContact()); left > 0 {
				wait, try = left, 0
			} else if c.succeed(id, false) {
				try = 0
			} else {
				wait = backoff(try) + rand.N(standWithin)
				try++
			}
		}
		again := time.NewTimer(wait)
		select {
		case <-again.C:
		case <-c.life.Done():
			again.Stop()
			return
		}
	}
}

// successor counts the refusals of a leader.
type successor struct {
	leader   dsm.NodeID
	refusals int
}

const (
	// standAfter is how many connections in a row a leader must refuse: the first failure may be that of an old connection.
	standAfter = 2
	// standWithin spreads the voters, so that usually one of them asks first.
	standWithin = 30 * time.Millisecond
)

// note takes the outcome of a sign of life, and stands for election if the leader seems to have ended.
func (s *successor) note(c *Catalog, err error) {
	id, _ := c.leader()
	if !errors.Is(err, syscall.ECONNREFUSED) || id == 0 || id == c.self.ID {
		s.refusals = 0
		return
	}
	if id != s.leader {
		s.leader, s.refusals = id, 0
	}
	if s.refusals++; s.refusals < standAfter || !c.votes() {
		return
	}
	wait := time.NewTimer(rand.N(standWithin))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-c.reign.ctx().Done():
	case <-c.life.Done():
	}
	c.succeed(id, true)
}

// succeed has this node stand for election in place of a leader, if enough of the other voters agree. ended says that the leader refuses
// connections.
func (c *Catalog) succeed(leader dsm.NodeID, ended bool) bool {
	if !c.heir.standing.CompareAndSwap(false, true) {
		return false
	}
	defer c.heir.standing.Store(false)
	if c.Leader() != leader || c.life.Err() != nil || !c.heir.promise(c.self.ID, c.signs.clock()) {
		return false
	}
	ctx, cancel := context.WithTimeout(c.reign.ctx(), asked)
	defer cancel()
	req := &wire.Succeed{From: c.self.ID, Term: c.raft.CurrentTerm(), Last: c.raft.LastIndex(), Ended: ended}
	voters, yes, waiting := 0, 0, 0
	servers := c.servers()
	answers := make(chan bool, len(servers))
	for _, s := range servers {
		switch {
		case !s.voter:
			continue
		case s.id == c.self.ID:
			yes++
		case s.id != leader:
			waiting++
			go func() {
				reply, err := c.caller.Call(ctx, nodeAddr(s.id, s.addr), req)
				r, ok := reply.(*wire.Succeeds)
				answers <- err == nil && ok && r.OK
			}()
		}
		voters++
	}
	for ; waiting > 0 && yes <= voters/2; waiting-- {
		if <-answers {
			yes++
		}
	}
	if yes <= voters/2 || c.Leader() != leader {
		c.heir.forget(c.self.ID)
		return false
	}
	c.log.Info("the leader is silent: standing for election", "leader", leader, "refuses_connections", ended)
	c.stand()
	return true
}

// serveSucceed promises to help another voter if the leader is silent for this one, too.
func (c *Catalog) serveSucceed(r *wire.Succeed) (any, error) {
	ok := c.raft.State() != raft.Leader && r.Term == c.raft.CurrentTerm() && r.Last >= c.raft.LastIndex() &&
		(r.Ended || time.Since(c.raft.LastContact()) >= missed) && c.heir.promise(r.From, c.signs.clock())
	return &wire.Succeeds{OK: ok}, nil
}

// votes reports whether this node has a vote.
func (c *Catalog) votes() bool {
	for _, s := range c.servers() {
		if s.id == c.self.ID {
			return s.voter
		}
	}
	return false
}

// stand makes raft begin an election. It returns when raft has begun: a leader that is told to would not lead any more.
func (c *Catalog) stand() {
	id := serverOf(c.self).raftID()
	req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: c.trans.EncodePeer(id, c.trans.LocalAddr()),
	}}
	begun := make(chan raft.RPCResponse, 1)
	select {
	case c.rpcs <- raft.RPC{Command: req, RespChan: begun}:
	case <-c.life.Done():
		return
	}
	select {
	case <-begun:
	case <-c.life.Done():
	}
}
