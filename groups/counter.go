package groups

import (
	"iter"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// counter is the value of a counter, and when it was changed last, as coordinator.counted has it.
type counter struct {
	wire.GroupCounter
	changed uint64
}

// count adds what members have reported, and notes who waits for it. What a node reports once more
// has been added already if it is among the recent additions.
func (c *coordinator) count() {
	for _, n := range c.nodes() {
		p := c.peers[n]
		for i := range p.seats {
			s := &p.seats[i]
			if len(s.Adds) == 0 || !c.seated(s.ID) {
				continue
			}
			for _, a := range s.Adds {
				c.add(s, a)
				p.touched[a.Counter] = struct{}{}
			}
			s.Adds = nil
		}
	}
	if len(c.counters) > 0 {
		c.forget()
	}
}

func (c *coordinator) add(s *wire.GroupSeat, a wire.GroupAdd) {
	k := c.counters[a.Counter]
	if k == nil {
		k = &counter{GroupCounter: wire.GroupCounter{Name: a.Counter}}
		c.counters[a.Counter] = k
	}
	if slices.ContainsFunc(k.Recent, func(r wire.GroupSum) bool { return r.Seat == s.ID && r.Number == a.Number }) {
		return
	}
	c.counted++
	k.changed = c.counted
	k.Count++
	k.Value += a.Delta
	k.Recent = append(k.Recent, wire.GroupSum{Seat: s.ID, Number: a.Number, Value: k.Value})
}

// forget drops the additions whose answer has come, or that nobody waits for.
func (c *coordinator) forget() {
	settled := make(map[uint64]uint64, len(c.members))
	for _, s := range c.at {
		if s != nil {
			settled[s.ID] = s.Settled
		}
	}
	for _, k := range c.counters {
		k.Recent = slices.DeleteFunc(k.Recent, func(r wire.GroupSum) bool {
			upTo, lives := settled[r.Seat]
			return !lives || r.Number <= upTo
		})
	}
}

// changedSince returns the counters with additions after so many.
func (c *coordinator) changedSince(counted uint64) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name, k := range c.counters {
			if k.changed > counted && !yield(name) {
				return
			}
		}
	}
}

// keeper returns the node that is to have all counters beside this one, in case that another ends: the one that has most of them. It is 0 if the
// group is nowhere else.
func (c *coordinator) keeper(other dsm.NodeID) (keeper dsm.NodeID) {
	for _, n := range c.nodes() {
		p := c.peers[n]
		if n != c.self && n != other && len(p.seats) > 0 && (keeper == 0 || p.hasCounted > c.peers[keeper].hasCounted) {
			keeper = n
		}
	}
	return keeper
}

// kept reports whether a keeper has all counters, or there is none.
func (c *coordinator) kept(keeper dsm.NodeID) bool {
	return keeper == 0 || c.peers[keeper].hasCounted >= c.counted
}

// mayAnswer reports whether a node waits for answers to additions, and may have them. An answer to another node is then known on two nodes, there and here. An
// answer to this node waits until another node has said that it has the counters: else the same value could be given out again when this node dies.
func (c *coordinator) mayAnswer(n dsm.NodeID, p *peer) bool {
	return len(p.touched) > 0 && (n != c.self || c.kept(c.keeper(0)))
}

// chooseKeepers has another node get all counters if perhaps no other has them, or if that is waited for.
func (c *coordinator) chooseKeepers() {
	for _, p := range c.peers {
		p.keeps = false
	}
	if len(c.counters) == 0 {
		return
	}
	keeper := c.keeper(0)
	c.alone = keeper == 0 || c.alone && !c.kept(keeper)
	for n, p := range c.peers {
		k := keeper
		switch leaves := len(p.seats) == 0 && p.heard < p.seq; {
		case leaves:
			k = c.keeper(n)
		case n != c.self || len(p.touched) == 0:
			continue
		}
		if !c.kept(k) {
			c.peers[k].keeps = true
		}
	}
	if keeper != 0 && c.alone {
		c.peers[keeper].keeps = true
	}
}
