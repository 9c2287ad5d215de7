package groups

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/wire"
)

// adopted is the newest that the nodes know of a group, as far as they have answered the call.
type adopted struct {
	generation, done, list, slowest uint64
	wire.GroupKnown
}

// add takes over what one node knows.
func (a *adopted) add(r *wire.GroupReport) {
	if r.Generation < a.generation {
		return
	}
	if r.Generation > a.generation {
		*a = adopted{generation: r.Generation}
	}
	if r.List > a.list {
		a.list, a.Size, a.Members = r.List, r.Known.Size, r.Known.Members
	}
	if r.Done > a.done {
		a.done, a.Met = r.Done, r.Known.Met
	}
	a.slowest = max(a.slowest, r.Slowest)
	for _, k := range r.Known.Counters {
		i := slices.IndexFunc(a.Counters, func(have wire.GroupCounter) bool { return have.Name == k.Name })
		switch {
		case i < 0:
			a.Counters = append(a.Counters, k)
		case a.Counters[i].Count < k.Count:
			a.Counters[i] = k
		}
	}
}

// retireLocked has this node's side of a group keep the counters that it knows as a coordinator that is replaced: perhaps nobody else has
// them. A side without programs tells the next coordinator, and ends when that has them.
func (n *Node) retireLocked(c *coordinator) {
	if !c.ready || len(c.counters) == 0 {
		return
	}
	l := n.mu.locals[c.group]
	if l == nil {
		l = newLocal(c.group)
		l.few = n.cfg.few
		n.mu.locals[c.group] = l
	}
	l.lives(c.generation)
	for name, k := range c.counters {
		if l.generation == c.generation && l.counters[name].Count < k.Count {
			l.counters[name] = k.GroupCounter
		}
	}
}

// adopt goes on where the last coordinator ended, as far as anybody knows, once all have answered.
func (c *coordinator) adopt() {
	if c.ready || len(c.silent) > 0 {
		return
	}
	c.ready = true
	k := c.known
	c.known = adopted{}
	c.generation, c.done, c.list, c.slowest = k.generation, k.done, k.list, k.slowest
	c.size, c.members, c.met = k.Size, slices.Clone(k.Members), k.Met
	for rank, m := range c.members {
		if !m.Gone {
			c.ranks[m.ID] = rank
		}
	}
	for _, n := range k.Counters {
		n.Recent = slices.Clone(n.Recent)
		c.counted, c.alone = 1, true
		c.counters[n.Name] = &counter{n, c.counted}
	}
	for _, p := range c.peers {
		c.sameLife(p)
	}
}
