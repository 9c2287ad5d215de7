package catalog

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// The leader evicts members whose lease has run out: see signs.go. That takes a lease and a bit. It is faster if a member's process has
// ended and its machine lives, so that connections are refused. A refusal alone proves nothing: a firewall refuses connections, too.
// But a member that lives sends signs of life on a connection that it has, and if that breaks, on a new one, at once. So a member counts
// as dead if two of them are missing, and all connections were refused since the first was. What remains is a firewall that for so long
// resets all connections of a member that lives, in both directions: it would be evicted before it is fenced. A member with a holder has its whole
// lease: connections are refused until another daemon follows.

// evictGrace is which part of a lease the leader waits longer than a member counts, because clocks drift.
const evictGrace = 20

// verdict is what a leader makes of a member's silence.
type verdict uint8

const (
	lives   verdict = iota
	overdue         // a sign of life is missing: it is worth looking whether the process has ended
	ended           // the process has ended
	expired         // the lease has run out
)

// judge returns the verdict on a member that has been silent for so long, and whose machine has refused the last connections, so many.
func judge(silent, lease time.Duration, refusals int) verdict {
	part := between(lease)
	switch {
	case silent >= lease+lease/evictGrace:
		return expired
	case refusals >= leastRefusals && silent >= 2*part:
		return ended
	case silent >= overdueAfter(lease):
		return overdue
	}
	return lives
}

const (
	// leastRefusals is how many connections in a row must be refused.
	leastRefusals = 3
	// looksPerPart is how often the leader looks in the time between two signs of life.
	looksPerPart = 4
	// settleLooks is after how many looks the leader looks whether members that are gone are needed any more.
	settleLooks = 10 * looksPerPart
)

// watchMembers evicts members, as the leader in the term, until ctx ends.
func (c *Catalog) watchMembers(ctx context.Context, term uint64) {
	refused := make(map[dsm.NodeID]int)
	arbiter := &arbiter{out: make(map[dsm.NodeID]outing)}
	last := c.signs.clock()
	for looks := 0; ; looks++ {
		v := c.Current()
		every := between(v.Lease) / looksPerPart
		now := c.signs.clock()
		if now-last > v.Lease/2 {
			c.signs.startOver()
		}
		last = now
		var look, hushed []dsm.Member
		for _, m := range present(v) {
			if m.ID == c.self.ID {
				continue
			}
			silent := c.signs.silence(m.ID, m.Inc)
			if silent >= silentAfter(v.Lease) && refused[m.ID] == 0 && !m.Held {
				hushed = append(hushed, m)
			}
			switch verdict := judge(silent, v.Lease, refused[m.ID]); verdict {
			case lives:
				delete(refused, m.ID)
			case overdue:
				if !m.Held {
					look = append(look, m)
				}
			case ended, expired:
				c.expel(ctx, m, verdict, v.Lease, term)
			}
		}
		c.arbitrate(ctx, v, term, arbiter)
		c.lookAround(ctx, v, hushed, term, arbiter)
		c.lookAt(ctx, look, every, refused)
		if looks%settleLooks == 0 {
			c.forgetGone(ctx)
		}
		wait := time.NewTimer(max(every-(c.signs.clock()-now), 0))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return
		}
	}
}

// lookAt looks whether the members refuse connections, and counts how often in a row they have.
func (c *Catalog) lookAt(ctx context.Context, members []dsm.Member, limit time.Duration, refused map[dsm.NodeID]int) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	refuse := make([]bool, len(members))
	var asked sync.WaitGroup
	for i, m := range members {
		asked.Go(func() {
			_, err := c.probe(ctx, m.ID, m.Addr)
			refuse[i] = errors.Is(err, syscall.ECONNREFUSED)
		})
	}
	asked.Wait()
	for i, m := range members {
		if refuse[i] {
			refused[m.ID]++
		} else {
			delete(refused, m.ID)
		}
	}
}

// expel has a member marked as gone.
func (c *Catalog) expel(ctx context.Context, m dsm.Member, why verdict, lease time.Duration, term uint64) {
	least := lease + lease/evictGrace
	if why == ended {
		least = 2 * between(lease)
	}
	if !c.signs.doom(m.ID, m.Inc, least, term) {
		return
	}
	c.tasks.Go(func() {
		switch _, err := c.propose(ctx, goneOp{m.ID, m.Inc, term}); {
		case err != nil:
			c.log.Warn("evict a member", "node", m.ID, "name", m.Name, "err", err)
		case why == ended:
			c.log.Warn("a member has died", "node", m.ID, "name", m.Name, "addr", m.Addr)
		default:
			c.log.Warn("a member gave no sign of life for its lease, and was evicted", "node", m.ID, "name", m.Name, "addr", m.Addr, "lease", lease)
		}
	})
}

// forgetGone forgets gone members that are needed no more.
func (c *Catalog) forgetGone(ctx context.Context) {
	c.mu.RLock()
	free := len(c.mu.state.settled())
	c.mu.RUnlock()
	if free == 0 {
		return
	}
	c.tasks.Go(func() {
		if _, err := c.propose(ctx, settleOp{}); err != nil {
			c.log.Debug("forget dead members", "err", err)
		}
	})
}
