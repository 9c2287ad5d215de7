package groups

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/wire"
)

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
		k = &wire.GroupCounter{Name: a.Counter}
		c.counters[a.Counter] = k
	}
	if slices.ContainsFunc(k.Recent, func(r wire.GroupSum) bool { return r.Seat == s.ID && r.Number == a.Number }) {
		return
	}
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
