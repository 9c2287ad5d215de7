package main

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/membership"
)

// startGossip makes this node and the others known to each other. It is no failure if nobody
// answers: the catalog knows the members, and the gossip keeps trying to reach them.
func (n *node) startGossip(context.Context) error {
	var err error
	n.gossip, err = membership.Start(membership.Config{
		Self: n.self.ID, Name: n.self.Name, Net: n.net.Gossip(), Log: n.log.With("part", "gossip"), Seeds: n.others,
	})
	if err != nil {
		return err
	}
	if others := n.others(); len(others) > 0 {
		if err := n.gossip.Join(others); err != nil {
			n.log.Warn("no node answers in the gossip yet", "err", err)
		}
	}
	return nil
}

// others returns the addresses of the other members.
func (n *node) others() []string {
	var addrs []string
	for _, m := range n.cats.Current().Members {
		if m.ID != n.self.ID {
			addrs = append(addrs, m.Addr)
		}
	}
	return addrs
}

// goodbyeLimit is how long a node waits for the gossip to pass on that it leaves, which would be
// for ever if the others leave too. The catalog has told them already.
const goodbyeLimit = time.Second

// stopGossip says goodbye, and ends the gossip.
func (n *node) stopGossip(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, goodbyeLimit)
	defer cancel()
	if err := n.gossip.Leave(ctx); err != nil {
		n.log.Debug("the good-bye may not arrive", "err", err) // the others will take the node for dead, but it is not a member any more
	}
	return n.gossip.Close()
}

// stateIn returns the state of a member according to the gossip: alive, suspect, dead or left, and
// unknown before it was met.
func (n *node) stateIn(peers []membership.Peer, id dsm.NodeID) string {
	if id == n.self.ID {
		return membership.Alive.String()
	}
	for _, p := range peers {
		if p.ID == id {
			return p.State.String()
		}
	}
	return "unknown"
}
