package catalog

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/locks"
)

// Signs of life: by these a node knows that the cluster still counts on it, and the leader knows
// which nodes live.
//
// A node's sign of life is its question for the read index. The node counts it from when it was
// sent, and only if it was answered. The leader counts it from when it arrived, which is later. So
// when the leader has heard nothing for locks.DropAfter, the node has granted no lock for a while.
// A new leader begins with what it hears itself. A deposed one answers for less than another second
// (leaderLease), while the new one first waits for DropAfter.
type signs struct {
	born time.Time
	// answered is when the last question that was answered had been sent, in nanoseconds since
	// born; 0 if there was none.
	answered atomic.Int64
	// lockers rings when the book of locks has changed.
	lockers bell

	mu struct {
		lockrank.Mutex
		heard map[dsm.NodeID]time.Time
	}
}

func (g *signs) init() {
	g.born = time.Now().Add(-time.Second) // so that no time is 0
	g.lockers.init()
	g.mu.Init("catalog.signs")
	g.mu.heard = make(map[dsm.NodeID]time.Time)
}

// confirm says that the leader has answered a question sent at that time.
func (g *signs) confirm(sent time.Time) {
	at := int64(sent.Sub(g.born))
	for {
		was := g.answered.Load()
		if was >= at || g.answered.CompareAndSwap(was, at) {
			return
		}
	}
}

// hear says that a node has asked this one, which leads.
func (g *signs) hear(n dsm.NodeID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.heard[n] = time.Now()
}

func (g *signs) lastHeard(n dsm.NodeID) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.heard[n]
}

// MayGrant reports whether this node leads, or the leader has answered it within locks.GrantFor.
func (c *Catalog) MayGrant() bool {
	at := c.signs.answered.Load()
	return c.leads() != 0 || at != 0 && time.Since(c.signs.born)-time.Duration(at) < locks.GrantFor
}

// ShowLife asks the leader, and returns when this node has applied everything committed before.
func (c *Catalog) ShowLife(ctx context.Context) error { return c.ask(ctx) }

// lookEvery is how often the leader checks that it has heard of all nodes with locks.
const lookEvery = time.Second

// watchLockers drops the locks of nodes from which this one, the leader until ctx ends, hears
// nothing.
func (c *Catalog) watchLockers(ctx context.Context) {
	since := make(map[dsm.NodeID]time.Time) // when a node was first seen to have locks
	for {
		ring := c.signs.lockers.hear()
		now, was := time.Now(), since
		since = make(map[dsm.NodeID]time.Time)
		for _, n := range c.lockers() {
			since[n] = now
			if t, ok := was[n]; ok {
				since[n] = t
			}
			last := c.signs.lastHeard(n)
			if last.Before(since[n]) {
				last = since[n]
			}
			if now.Sub(last) < locks.DropAfter {
				continue
			}
			c.log.Warn("no sign of life from a node: dropping its locks", "node", n)
			if _, err := c.propose(ctx, dropLocksOp{n}); err != nil && ctx.Err() == nil {
				c.log.Warn("drop locks", "node", n, "err", err)
			}
		}
		if len(since) > 0 {
			ring = nil
		}
		look := time.NewTimer(lookEvery)
		if ring != nil {
			look.Stop() // no node to watch
		}
		select {
		case <-ring:
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			return
		}
	}
}

// lockers returns the other nodes that have locks.
func (c *Catalog) lockers() []dsm.NodeID {
	c.mu.RLock()
	defer c.mu.RUnlock()
	nodes := c.mu.state.book.Nodes()
	others := nodes[:0]
	for _, n := range nodes {
		if n != c.self.ID {
			others = append(others, n)
		}
	}
	return others
}
