package catalog

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
)

// grants are the leases that this node has given as the leader. A change whose effect another node
// could see in a name or an attribute is appended to the log only when all nodes but the one that
// makes it have given back their leases, or their leases must have run out.
//
// A new leader does not know to whom the previous one gave leases. It takes every node for one that has a lease
// until leaseTime after its election. That is long enough: a lease is confirmed by a majority that
// knew of no later leader, after the node with the lease had begun to count.
type grants struct {
	mu struct {
		lockrank.Mutex
		term    uint64                         // the fields below belong to this term
		leases  map[dsm.NodeID]time.Time       // until when
		recalls map[dsm.NodeID]*recall         // under way
		open    map[dsm.NodeID]map[uint64]bool // changes admitted and not applied, by node and number
		last    map[dsm.NodeID]time.Time       // when a node's last change was admitted
	}
	// quiet is how long a node's lease is not renewed after another node has made a change: while
	// changes come often, leases only cost.
	quiet time.Duration
}

type recall struct{ done chan struct{} }

const (
	// defaultQuiet is longer than many changes take.
	defaultQuiet = 20 * time.Millisecond
	// leaseGrace is how much longer the leader waits than a node counts that has a lease, because clocks drift.
	leaseGrace = leaseTime / 20
	// recallRetry is when a recall that failed is sent again.
	recallRetry = 10 * time.Millisecond
)

func (g *grants) init() {
	g.mu.Init("catalog.grants")
	g.quiet = defaultQuiet
}

// reignLocked makes the grants those of the term.
func (c *Catalog) reignLocked(term uint64) {
	g := &c.grants
	if g.mu.term == term {
		return
	}
	g.mu.term = term
	g.mu.leases = make(map[dsm.NodeID]time.Time)
	g.mu.recalls = make(map[dsm.NodeID]*recall)
	g.mu.open = make(map[dsm.NodeID]map[uint64]bool)
	g.mu.last = make(map[dsm.NodeID]time.Time)
	until := time.Now().Add(leaseTime + leaseGrace)
	servers := c.servers()
	for _, s := range servers {
		if len(servers) > 1 {
			g.mu.leases[s.id] = until
		}
	}
}

// grant gives the node a lease, if this node leads in the term and no other node is making changes.
// The node must apply the log up to the index before it reads.
func (c *Catalog) grant(node dsm.NodeID, term uint64) (index uint64, ok bool) {
	if c.leads() != term || term == 0 {
		return 0, false
	}
	g := &c.grants
	g.mu.Lock()
	c.reignLocked(term)
	now := time.Now()
	ok = g.mu.recalls[node] == nil
	for n, reqs := range g.mu.open {
		ok = ok && (n == node || len(reqs) == 0)
	}
	for n, at := range g.mu.last {
		ok = ok && (n == node || now.Sub(at) >= g.quiet)
	}
	if ok {
		g.mu.leases[node] = now.Add(leaseTime + leaseGrace)
	}
	g.mu.Unlock()
	// Taken after the grant: what was committed before is within the index, and for what comes
	// later the lease is recalled.
	return c.readIndex(), ok
}

// clear waits until the command may be appended to the log of the term.
func (c *Catalog) clear(ctx context.Context, cmd command, term uint64) error {
	if !ops[cmd.Kind].seen {
		return nil
	}
	g := &c.grants
	g.mu.Lock()
	c.reignLocked(term)
	g.admitLocked(cmd)
	var wait []*recall
	for n, until := range g.mu.leases {
		if n == cmd.Node {
			continue
		}
		r := g.mu.recalls[n]
		if r == nil {
			r = &recall{make(chan struct{})}
			g.mu.recalls[n] = r
			go c.recall(n, term, until, r)
		}
		wait = append(wait, r)
	}
	g.mu.Unlock()
	for _, r := range wait {
		select {
		case <-r.done:
			continue
		case <-ctx.Done():
		case <-c.life.Done():
		}
		g.close(cmd.Node, cmd.Req)
		return gaveUp(ctx)
	}
	return nil
}

// admitLocked records that the command may be appended, perhaps after leases have been given back.
func (g *grants) admitLocked(cmd command) {
	if g.mu.open[cmd.Node] == nil {
		g.mu.open[cmd.Node] = make(map[uint64]bool)
	}
	g.mu.open[cmd.Node][cmd.Req] = true
	g.mu.last[cmd.Node] = time.Now()
}

// clearNow is clear if no other node can have a lease. Otherwise it returns false and does nothing.
func (c *Catalog) clearNow(cmd command, term uint64) bool {
	if !ops[cmd.Kind].seen {
		return true
	}
	g := &c.grants
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.noneLocked(cmd.Node, term) {
		return false
	}
	g.admitLocked(cmd)
	return true
}

// close says that the command was applied, or will never be because it was not appended.
func (g *grants) close(node dsm.NodeID, req uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mu.open[node], req)
}

// recall makes the node give its lease back, or waits until the lease has run out.
func (c *Catalog) recall(n dsm.NodeID, term uint64, until time.Time, r *recall) {
	ctx, cancel := context.WithDeadline(c.life, until)
	defer cancel()
	for ctx.Err() == nil && !c.recalled(ctx, n) {
		again := time.NewTimer(recallRetry)
		select {
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
	}
	g := &c.grants
	g.mu.Lock()
	if g.mu.term == term {
		delete(g.mu.leases, n)
		delete(g.mu.recalls, n)
	}
	g.mu.Unlock()
	close(r.done)
}

// recalled reports whether the node has given its lease back.
func (c *Catalog) recalled(ctx context.Context, n dsm.NodeID) bool {
	if n == c.self.ID {
		return c.lease.giveBack(ctx) == nil
	}
	for _, s := range c.servers() {
		if s.id == n {
			_, err := c.caller.Call(ctx, nodeAddr(n, s.addr), &wire.Recall{})
			return err == nil
		}
	}
	return false
}

// take appends a command to the log, as the leader.
func (c *Catalog) take(ctx context.Context, data []byte) error {
	cmd, err := decodeEnvelope(data)
	if err != nil {
		return err
	}
	term := c.raft.CurrentTerm()
	if err := c.clear(ctx, cmd, term); err != nil {
		return err
	}
	if !c.add(cmd, c.withYield(ctx, cmd, data), term) {
		return errNotLeader()
	}
	return nil
}

// add appends a command for which the way is clear, if this node still leads in the term.
func (c *Catalog) add(cmd command, data []byte, term uint64) bool {
	if c.raft.State() != raft.Leader || c.raft.CurrentTerm() != term {
		c.grants.close(cmd.Node, cmd.Req)
		return false
	}
	c.raft.Apply(data, 0)
	return true
}

// takeNow is take if that needs no waiting, or only for a node to yield: the command is appended then by who hears the
// answer. Otherwise, or if it cannot be done, it returns false.
func (c *Catalog) takeNow(data []byte) bool {
	cmd, err := decodeEnvelope(data)
	if err != nil || c.raft.State() != raft.Leader {
		return false
	}
	term := c.raft.CurrentTerm()
	k, kept := c.keeperFor(cmd)
	switch {
	case !c.clearNow(cmd, term):
		return false
	case !kept:
		return c.add(cmd, data, term)
	case c.askNow(k, func(y locks.Yield, ok bool) { c.add(cmd, cmd.yielded(data, y, ok), term) }):
		return true
	}
	c.grants.close(cmd.Node, cmd.Req)
	return false
}

// noneLocked reports whether no other node than n can have a lease in the term.
func (g *grants) noneLocked(n dsm.NodeID, term uint64) bool {
	for other := range g.mu.leases {
		if other != n {
			return false
		}
	}
	return g.mu.term == term
}
