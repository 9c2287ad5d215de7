package groups

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// coordinator decides for one group. It lives from the first word that this node hears of the group
// to the last, as long as the view has this node as the coordinator. Node.mu guards all of it, whichever of its methods is called.
type coordinator struct {
	group dsm.AreaID
	self  dsm.NodeID
	reign dsm.Epoch
	few   int           // a node with more members waits for an answer to each report
	lives func() uint64 // a number for the next generation, greater than all before of this node
	peers map[dsm.NodeID]*peer
	// silent are the nodes that have not answered the call; while there are any, nothing is decided.
	silent map[dsm.NodeID]struct{}
	known  adopted
	ready  bool // all have answered

	last                   uint64 // the greatest generation that was ever heard of
	generation, done, list uint64
	size                   int
	members                []wire.GroupMember // by rank
	at                     []*wire.GroupSeat  // of the members, nil if one is gone; bury sets it
	ranks                  map[uint64]int     // of the members that live, by the number of the program
	met                    []dsm.NodeID       // as in wire.GroupState, of barrier done; never changed
	counters               map[string]*counter
	counted                uint64 // additions in this reign, and one for those before
	alone                  bool   // a node is gone, which perhaps was the only other one that had a counter
	slowest                uint64
	called                 uint64 // the barrier that somebody has arrived at
	round                  bool   // it is the barrier of a round

	arrivals uint64 // numbers the seats that want a rank, as they come
	came     uint64 // counts the changes of those
	since    time.Time
	out      []message
}

// message is for a node.
type message struct {
	to  dsm.NodeID
	msg any
}

// peer is a node that has programs in the group, or had.
type peer struct {
	seq   uint64
	seats []wire.GroupSeat  // by number
	order map[uint64]uint64 // of the seats that want a rank
	// What the node knows of the group, or has been sent.
	generation, done, list, slowest, came, heard uint64

	// What it has said that it has. A state leaves nothing else out, for one that was sent may not arrive.
	hasDone, hasList, hasCounted uint64
	keeps                        bool // it is to have all counters
	sentCounted                  uint64

	asked   uint64              // it was asked whether it has the result of barrier asked-1; 0: of none
	touched map[string]struct{} // counters that it waits for
	refused []wire.GroupRefusal
	silent  int                 // of how many that are silent it has been told
	denied  map[uint64]struct{} // the seats refused since its last report

	disagree map[uint64]disagreement // by seat
}

// empty reports whether nobody has anything to do with the group.
func (c *coordinator) empty() bool {
	for _, p := range c.peers {
		if len(p.seats) > 0 || p.heard < p.seq {
			return false
		}
	}
	return c.ready
}

func newCoordinator(group dsm.AreaID, self dsm.NodeID, reign dsm.Epoch, lives func() uint64) *coordinator {
	return &coordinator{
		group: group, self: self, reign: reign, lives: lives, peers: make(map[dsm.NodeID]*peer),
		silent: make(map[dsm.NodeID]struct{}), counters: make(map[string]*counter),
		ranks: make(map[uint64]int),
	}
}

// report takes over what a node says.
func (c *coordinator) report(from dsm.NodeID, r *wire.GroupReport, now time.Time) {
	if r.Reign != c.reign {
		if r.Reign < c.reign { // it does not know yet who coordinates
			c.call(from)
		}
		return
	}
	p := c.peers[from]
	if p == nil {
		p = &peer{order: make(map[uint64]uint64), touched: make(map[string]struct{})}
		c.peers[from] = p
	}
	if r.Seq <= p.seq && r.Seq != 0 {
		return
	}
	p.seq = r.Seq
	c.last = max(c.last, r.Generation)
	p.generation, p.done, p.list, p.slowest, p.came = r.Generation, r.Done, r.List, r.Slowest, 0
	p.hasCounted, p.sentCounted = r.Counted, r.Counted
	p.hasDone, p.hasList, p.asked, p.seats, p.refused, p.denied, p.silent = r.Done, r.List, 0, r.Seats, nil, nil, 0
	p.stillDisagree()
	c.line(p)
	c.sameLife(p)
	if _, waited := c.silent[from]; waited && r.Known != nil {
		delete(c.silent, from)
		c.known.add(r)
		c.adopt()
	}
	c.decide(now)
}

// line gives the seats of a node that want a rank a place in the order of their coming.
func (c *coordinator) line(p *peer) {
	order := make(map[uint64]uint64)
	for _, s := range p.seats {
		if s.Generation != 0 {
			continue
		}
		at, ok := p.order[s.ID]
		if !ok {
			c.arrivals++
			c.came++
			at = c.arrivals
		}
		order[s.ID] = at
	}
	if len(order) < len(p.order) {
		c.came++
	}
	p.order = order
}

// call asks a node for all that it knows.
func (c *coordinator) call(to dsm.NodeID) {
	c.out = append(c.out, message{to, &wire.GroupCall{Group: c.group, Reign: c.reign}})
}

// view takes over who is there.
func (c *coordinator) view(here func(dsm.NodeID) bool, now time.Time) {
	for n := range c.silent {
		if !here(n) {
			delete(c.silent, n)
		}
	}
	for n := range c.peers {
		if !here(n) {
			delete(c.peers, n)
			c.came++
			c.alone = true
		}
	}
	c.adopt()
	c.decide(now)
}

// decide does all that the reports allow.
func (c *coordinator) decide(now time.Time) {
	if !c.ready {
		c.tellSilent()
		return
	}
	c.bury()
	c.seat()
	c.refuse()
	c.agree()
	c.meet(now)
	c.slowest = c.slowestTick()
	c.count()
	c.chooseKeepers()
	for _, n := range c.nodes() {
		p := c.peers[n]
		if c.owes(n, p) {
			c.tell(n, p)
		}
	}
}

// nodes returns the nodes in order: what is sent does not depend on the order of a map.
func (c *coordinator) nodes() []dsm.NodeID {
	list := make([]dsm.NodeID, 0, len(c.peers))
	for n := range c.peers {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

// find returns the seat of a program on a node, nil if it is gone.
func (c *coordinator) find(m *wire.GroupMember) *wire.GroupSeat {
	p := c.peers[m.Node]
	if p == nil {
		return nil
	}
	from, to := 0, len(p.seats)
	for from < to {
		if half := (from + to) / 2; p.seats[half].ID < m.ID {
			from = half + 1
		} else {
			to = half
		}
	}
	if from == len(p.seats) || p.seats[from].ID != m.ID {
		return nil
	}
	return &p.seats[from]
}

// bury marks the members that are gone. With the last one the group ends.
func (c *coordinator) bury() {
	left := false
	c.at = slices.Grow(c.at[:0], len(c.members))[:len(c.members)]
	for i := range c.members {
		m := &c.members[i]
		c.at[i] = nil
		if !m.Gone {
			c.at[i] = c.find(m)
		}
		if !m.Gone && c.at[i] == nil {
			m.Gone = true
			delete(c.ranks, m.ID)
			c.list++
		}
		left = left || !m.Gone
	}
	if !left && c.generation != 0 {
		c.generation, c.done, c.list, c.size, c.slowest = 0, 0, 0, 0, 0
		c.members, c.at, c.met, c.counted = nil, nil, nil, 0
		clear(c.ranks)
		clear(c.counters)
		for _, p := range c.peers {
			clear(p.touched) // who waited is gone
		}
	}
}

// sameLife drops what a node has of another life of the group.
func (c *coordinator) sameLife(p *peer) {
	if c.ready && p.generation != c.generation {
		p.hasDone, p.hasList, p.hasCounted, p.done, p.list, p.slowest, p.sentCounted = 0, 0, 0, 0, 0, 0, 0
	}
}

// waiting is a seat that wants a rank.
type waiting struct {
	seat  *wire.GroupSeat
	node  dsm.NodeID
	place uint64
}

// waiting returns the seats that want a rank, in the order of their coming.
func (c *coordinator) waiting() []waiting {
	var list []waiting
	for n, p := range c.peers {
		if len(p.order) == 0 {
			continue
		}
		for i := range p.seats {
			s := &p.seats[i]
			if at, ok := p.order[s.ID]; ok && !c.seated(s.ID) {
				list = append(list, waiting{s, n, at})
			}
		}
	}
	slices.SortFunc(list, func(a, b waiting) int { return cmp.Compare(a.place, b.place) })
	return list
}

func (c *coordinator) seated(id uint64) bool {
	_, ok := c.ranks[id]
	return ok
}

// seat gives ranks to those who wait for one: to all at once when the group is complete, later to
// one for each that is free.
func (c *coordinator) seat() {
	line := c.waiting()
	if len(line) == 0 {
		return
	}
	size := c.size
	if c.generation == 0 {
		size = line[0].seat.Size
	}
	line = slices.DeleteFunc(line, func(w waiting) bool {
		if w.seat.Size == size {
			return false
		}
		c.refusal(w.node, w.seat, errs.Invalid, fmt.Sprintf("the group has size %d, not %d", size, w.seat.Size))
		return true
	})
	if c.generation == 0 {
		if len(line) < size {
			return
		}
		c.last = max(c.lives(), c.last+1)
		c.generation, c.size, c.list = c.last, size, 1
		for rank, w := range line[:size] {
			c.ranks[w.seat.ID] = rank
			c.at = append(c.at, w.seat)
			c.members = append(c.members, wire.GroupMember{ID: w.seat.ID, Node: w.node, From: 1})
		}
		for _, p := range c.peers {
			c.sameLife(p)
		}
		return
	}
	if len(line) == 0 || len(c.ranks) == len(c.members) {
		return
	}
	tick := c.slowestTick()
	for rank := range c.members {
		if m := &c.members[rank]; m.Gone && len(line) > 0 {
			w := line[0]
			line = line[1:]
			*m = wire.GroupMember{ID: w.seat.ID, Node: w.node, From: c.done + 1, Tick: tick}
			c.ranks[w.seat.ID], c.at[rank] = rank, w.seat
			c.list++
		}
	}
}

// settled reports whether all members have the result of the last barrier, and asks the others.
func (c *coordinator) settled() bool {
	all := true
	for i := range c.members {
		m := &c.members[i]
		p := c.peers[m.Node]
		if m.Gone || p == nil || m.From > c.done || p.hasDone >= c.done {
			continue
		}
		all = false
		if p.asked <= c.done {
			p.asked = c.done + 1
			c.call(m.Node)
		}
	}
	return all
}

// refuse answers seats that have a rank no more.
func (c *coordinator) refuse() {
	for n, p := range c.peers {
		for i := range p.seats {
			if s := &p.seats[i]; s.Generation != 0 && !c.seated(s.ID) {
				c.refusal(n, s, errs.StaleGen, "the group has gone on without this member: it may join again")
			}
		}
	}
}

func (c *coordinator) refusal(n dsm.NodeID, s *wire.GroupSeat, k errs.Kind, text string) {
	p := c.peers[n]
	if _, told := p.denied[s.ID]; !told {
		if p.denied == nil {
			p.denied = make(map[uint64]struct{})
		}
		p.denied[s.ID] = struct{}{}
		p.refused = append(p.refused, wire.GroupRefusal{Seat: s.ID, Kind: k, Text: text})
	}
}

// meet ends a barrier at which all members that live have arrived.
func (c *coordinator) meet(now time.Time) {
	if c.generation == 0 {
		return
	}
	some := false
	all := true
	for _, s := range c.at {
		switch {
		case s == nil:
		case s.Arrived <= c.done:
			all = false
		default:
			some = true
		}
	}
	if !all {
		if some && c.since.IsZero() {
			c.since = now
		}
		return
	}
	c.done++
	c.since = time.Time{}
	c.met = make([]dsm.NodeID, len(c.members))
	for rank, s := range c.at {
		if s != nil {
			c.met[rank] = c.members[rank].Node
		}
	}
}

// slowestTick returns the clock of the slowest member.
func (c *coordinator) slowestTick() uint64 {
	least := ^uint64(0)
	for i := range c.members {
		m := &c.members[i]
		if s := c.at[i]; s != nil {
			least = min(least, max(m.Tick, s.Ticks))
		}
	}
	if least == ^uint64(0) {
		return c.slowest
	}
	return least
}
