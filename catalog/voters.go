package catalog

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// voterCount returns how many of n members should vote: two voters survive
// less than one does, and more than five make every change slower.
func voterCount(n int) int {
	switch {
	case n >= 5:
		return 5
	case n >= 3:
		return 3
	}
	return 1
}

// changeKind is a step from one configuration of raft to the next.
type changeKind uint8

const (
	changeNone     changeKind = iota
	changeAdd                 // a member without a vote
	changePromote             // give it a vote
	changeTransfer            // the leadership to it
	changeDemote              // take its vote
	changeRemove              // it is no member any more
)

// change is one step. raft makes one at a time.
type change struct {
	kind changeKind
	server
}

// nextChange returns the next step from the configuration servers, led by
// leader, to the one that the members ask for. live tells who answers: only those get
// a vote, because a vote that is given to a dead node stops the catalog, and
// the dead lose theirs first.
//
// Every step leaves the configuration such that the living voters are the
// majority if they were one before.
func nextChange(members []dsm.Member, servers []server, leader dsm.NodeID, live func(dsm.NodeID) bool) change {
	known := make(map[dsm.NodeID]server)
	for _, s := range servers {
		known[s.id] = s
	}
	for _, m := range members {
		if _, ok := known[m.ID]; !ok {
			return change{changeAdd, server{m.ID, m.Addr, false}}
		}
	}
	elect := electorate(members, known, leader, live)
	for _, s := range elect {
		if !s.voter {
			return change{changePromote, s}
		}
	}
	if len(elect) == 0 {
		return change{}
	}
	elected := func(s server) bool { return slices.Contains(elect, s) }
	if !elected(known[leader]) {
		return change{changeTransfer, elect[0]}
	}
	for _, alive := range []bool{false, true} {
		for _, s := range servers {
			if s.voter && !elected(s) && live(s.id) == alive {
				return change{changeDemote, s}
			}
		}
	}
	for _, s := range servers {
		if !slices.ContainsFunc(members, func(m dsm.Member) bool { return m.ID == s.id }) {
			return change{changeRemove, s}
		}
	}
	return change{}
}

// electorate returns who should vote: an odd number of the members that stay,
// preferably the leader, those that vote already, and those that live, who are
// the majority; nobody if there is no such choice.
func electorate(members []dsm.Member, known map[dsm.NodeID]server, leader dsm.NodeID, live func(dsm.NodeID) bool) []server {
	rank := func(s server) int {
		switch {
		case s.id == leader:
			return 0
		case s.voter && live(s.id):
			return 1
		case live(s.id):
			return 2
		}
		return 3
	}
	var elect []server
	stay, alive := 0, 0
	for _, m := range members {
		if m.Leaving {
			continue
		}
		stay++
		if live(m.ID) {
			alive++
		}
		if s := known[m.ID]; s.voter || live(s.id) {
			elect = append(elect, s)
		}
	}
	slices.SortStableFunc(elect, func(a, b server) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.id, b.id)) })
	n := voterCount(stay)
	for n > len(elect) || n/2 >= alive {
		if n -= 2; n < 0 {
			return nil
		}
	}
	return elect[:n]
}

// reconcile makes the configuration of raft follow the members, until ctx ends.
func (c *Catalog) reconcile(ctx context.Context) {
	for ctx.Err() == nil {
		ring := c.news.hear()
		c.meet(ctx)
		var again <-chan time.Time
		if nextChange(present(c.Current()), c.servers(), c.self.ID, anybody).kind != changeNone {
			next := nextChange(present(c.Current()), c.servers(), c.self.ID, c.roll(ctx))
			c.make(next)
			again = time.After(100 * time.Millisecond)
			if next.kind == changeNone {
				again = time.After(time.Second) // somebody is not there
			}
		}
		select {
		case <-ring:
		case <-again:
		case <-ctx.Done():
		}
	}
}

func anybody(dsm.NodeID) bool { return true }

// make takes one step. Whether it was taken the configuration tells.
func (c *Catalog) make(next change) {
	id, addr := serverID(next.id), serverAddress(next.id, next.addr)
	switch next.kind {
	case changeNone:
		return
	case changeAdd:
		c.raft.AddNonvoter(id, addr, 0, attempt)
	case changePromote:
		c.raft.AddVoter(id, addr, 0, attempt)
	case changeDemote:
		c.raft.DemoteVoter(id, 0, attempt)
	case changeRemove:
		c.raft.RemoveServer(id, 0, attempt)
	case changeTransfer:
		c.raft.LeadershipTransferToServer(id, addr)
	}
	c.log.Debug("changing the voters", "change", next.kind, "node", next.id)
}

// maxBehind is how many entries a node may lack to get a vote.
const maxBehind = 1024

// roll asks all nodes whether they are there and not far behind.
func (c *Catalog) roll(ctx context.Context) (live func(dsm.NodeID) bool) {
	ctx, cancel := context.WithTimeout(ctx, attempt/2)
	defer cancel()
	var mu sync.Mutex
	present := map[dsm.NodeID]bool{c.self.ID: true}
	var asked sync.WaitGroup
	for _, s := range c.servers() {
		if s.id == c.self.ID {
			continue
		}
		asked.Go(func() {
			p, err := c.probe(ctx, s.id, s.addr)
			mu.Lock()
			defer mu.Unlock()
			present[s.id] = err == nil && p.Applied+maxBehind >= c.progress.index.Load()
		})
	}
	asked.Wait()
	return func(n dsm.NodeID) bool { return present[n] }
}
