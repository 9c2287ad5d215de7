package catalog

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Followers wait for a leader that is silent before they elect another (electionTimeout). If its machine refuses connections, its process
// has most likely ended, and there is nothing to wait for: a voter stands for election at once. It does so in the way in which a
// leader hands over, so that the others vote although they have not missed the leader yet. If the leader lives after all, only the
// leadership has moved.

// successor counts the refusals of a leader.
type successor struct {
	leader   dsm.NodeID
	refusals int
}

const (
	// standAfter is how many connections in a row a leader must refuse: the first failure may be that of an old connection.
	standAfter = 2
	// standWithin spreads the voters, so that usually one of them stands.
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
	s.refusals = 0
	wait := time.NewTimer(rand.N(standWithin))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-c.reign.ctx().Done():
	case <-c.life.Done():
	}
	if c.Leader() == id && c.life.Err() == nil {
		c.log.Info("the leader refuses connections: standing for election", "leader", id)
		c.stand()
	}
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

// stand makes raft hold an election.
func (c *Catalog) stand() {
	id := serverOf(c.self).raftID()
	req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: c.trans.EncodePeer(id, c.trans.LocalAddr()),
	}}
	select {
	case c.rpcs <- raft.RPC{Command: req, RespChan: make(chan raft.RPCResponse, 1)}:
	case <-c.life.Done():
	}
}
