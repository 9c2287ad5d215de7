package catalog

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// voterCount returns how many of n members should vote. Two voters survive less than one does, and
// more than five make every change slower.
func voterCount(n int) int {
	switch {
	case n >= 5:
		return 5
	case n >= 3:
		return 3
	}
	return 1
}

// changeKind is the kind of a step from one configuration of raft to the next.
type changeKind uint8

const (
	changeNone     changeKind = iota
	changeAdd                 // add a member without a vote
	changePromote             // give it a vote
	changeTransfer            // give it the leadership
	changeDemote              // take its vote
	changeRemove              // it is not a member any more
)

// change is one step. raft makes one at a time.
type change struct {
	kind changeKind
	server
}

// nextChange returns the next step from the configuration servers, led by leader, to one that suits
// the members. live says which nodes answer. Only these get a vote, because giving a vote to a dead
// node could stop the catalog; dead nodes lose theirs first.
//
// A vote is taken only if the living voters that are members decide without it. Who was evicted answers until it has learned of it: if a step
// needed it, and it came too late, no later one could be decided, and who comes back would not be elected with a log that lacks the step. So
// a leader that is left alone waits for another voter.
func nextChange(members []dsm.Member, servers []server, leader dsm.NodeID, live func(dsm.NodeID) bool) change {
	member := func(s server) bool { return slices.ContainsFunc(members, s.is) }
	known := make(map[dsm.NodeID]server)
	for _, s := range servers {
		if member(s) {
			known[s.id] = s
		}
	}
	for _, m := range members {
		if _, ok := known[m.ID]; !ok {
			return change{changeAdd, serverOf(m)}
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
	sure := func(s server) bool { return s.voter && live(s.id) && member(s) }
	if !elected(known[leader]) {
		return change{changeTransfer, elect[0]}
	}
	// The dead are the first, and members that answer the last.
	for _, stays := range []func(server) bool{
		func(s server) bool { return live(s.id) },
		member,
		func(server) bool { return false },
	} {
		for _, s := range servers {
			if s.voter && !elected(s) && !stays(s) && decide(servers, s, sure) {
				return change{changeDemote, s}
			}
		}
	}
	for _, s := range servers {
		if !s.voter && !member(s) {
			return change{changeRemove, s}
		}
	}
	return change{}
}

// decide reports whether those who are sure to vote are more than half of the voters but one.
func decide(servers []server, without server, sure func(server) bool) bool {
	voters, yes := 0, 0
	for _, s := range servers {
		if s == without || !s.voter {
			continue
		}
		voters++
		if sure(s) {
			yes++
		}
	}
	return yes > voters/2
}

// is reports whether the server is the member.
func (s server) is(m dsm.Member) bool { return m.ID == s.id && m.Inc == s.inc }

// electorate returns who should vote: an odd number of the members that stay, with a majority of
// living ones. It prefers the leader, those that vote already, and those that live. It returns
// nothing if there is no such choice.
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
			live := c.roll(ctx, c.servers())
			next := nextChange(present(c.Current()), c.servers(), c.self.ID, live)
			c.make(next)
			again = time.After(100 * time.Millisecond)
			if next.kind == changeNone {
				again = time.After(time.Second) // a node does not answer
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

// make takes one step. The configuration tells whether it was taken.
func (c *Catalog) make(next change) {
	id, addr := next.raftID(), next.raftAddress()
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

// maxLag is how many entries a node may lack and still get a vote.
const maxLag = 1024

// roll asks all nodes whether they answer and lack few entries. Each has one process, and so one incarnation that answers, although raft
// may have servers of earlier ones still.
func (c *Catalog) roll(ctx context.Context, servers []server) (live func(dsm.NodeID) bool) {
	ctx, cancel := context.WithTimeout(ctx, attempt/2)
	defer cancel()
	var mu sync.Mutex
	present := map[dsm.NodeID]bool{c.self.ID: true}
	var asked sync.WaitGroup
	for _, s := range servers {
		if s.id == c.self.ID {
			continue
		}
		asked.Go(func() {
			p, err := c.probe(ctx, s.id, s.addr)
			if err != nil || p.Inc != s.inc || p.Applied+maxLag < c.progress.index.Load() {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			present[s.id] = true
		})
	}
	asked.Wait()
	return func(n dsm.NodeID) bool { return present[n] }
}
