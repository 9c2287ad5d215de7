package groups

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// owes reports whether a node waits for something that this one knows.
func (c *coordinator) owes(n dsm.NodeID, p *peer) bool {
	if len(p.seats) == 0 {
		// It leaves, and keeps what it knows until this is heard: perhaps nobody else has the result of
		// the last barrier, or the value of a counter. So it hears nothing before, not even an answer that its programs have waited for.
		return p.heard < p.seq && c.settled() && c.kept(c.keeper(n))
	}
	if len(p.refused) > 0 || c.mayAnswer(n, p) || p.keeps && p.sentCounted < c.counted || len(p.seats) > c.few && p.heard < p.seq {
		return true
	}
	for i := range p.seats {
		s := &p.seats[i]
		switch {
		case !c.seated(s.ID):
			if p.came < c.came {
				return true
			}
		case s.Generation == 0 && p.list < c.list, p.generation != c.generation, p.done < c.done,
			s.Need != 0 && s.Need <= c.slowest && p.slowest < s.Need:
			return true
		}
	}
	return false
}

// tellSilent tells those who wait which nodes everybody waits for.
func (c *coordinator) tellSilent() {
	silent := slices.Sorted(maps.Keys(c.silent))
	for _, n := range c.nodes() {
		if p := c.peers[n]; len(p.seats) > 0 && p.silent != len(silent) {
			p.silent = len(silent)
			c.out = append(c.out, message{n, &wire.GroupState{Group: c.group, Reign: c.reign, Heard: p.heard, Silent: silent}})
		}
	}
}

// maxCame bounds how many of those who wait are named to those who wait.
const maxCame = 64

// tell sends a node what it lacks.
func (c *coordinator) tell(to dsm.NodeID, p *peer) {
	m := &wire.GroupState{
		Group: c.group, Reign: c.reign, Heard: p.seq, Generation: c.generation, Size: c.size, Done: c.done,
		List: c.list, Slowest: c.slowest, Refused: p.refused,
	}
	if p.hasList < c.list {
		m.Members = slices.Clone(c.members)
	}
	if p.hasDone < c.done {
		m.Met = c.met
	}
	if len(p.order) > 0 {
		for _, w := range c.waiting() {
			if len(m.Came) < maxCame {
				m.Came = append(m.Came, wire.GroupMember{ID: w.seat.ID, Node: w.node})
			}
		}
	}
	var names []string
	if c.mayAnswer(to, p) {
		names = slices.AppendSeq(names, maps.Keys(p.touched))
		clear(p.touched)
	}
	if p.keeps {
		names = slices.AppendSeq(names, c.changedSince(p.hasCounted))
		m.Counted, p.sentCounted = c.counted, c.counted
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		k := c.counters[name].GroupCounter
		k.Recent = slices.Clone(k.Recent)
		m.Counters = append(m.Counters, k)
	}
	p.generation, p.done, p.list, p.slowest, p.came, p.heard = c.generation, c.done, c.list, c.slowest, c.came, p.seq
	p.refused = nil
	c.out = append(c.out, message{to, m})
}
