package coherence

import (
	"context"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// simGroup is a group of programs, one on each node, that puts what they store together in rounds. It does what the coordinator of a
// group does, without messages: it says when all have contributed, and who is missing.
type simGroup struct {
	life    uint64
	number  uint64
	members []simMember // by node
	list    []dsm.NodeID
	ended   int // rounds that were finished by somebody
	took    int // parts that were in them
	gifts   []*gift
}

type simMember struct {
	state  roundState
	call   *request
	mine   snapshot // what it has contributed
	gifts  []*gift  // beside what it has stored
	void   bool     // it has taken that back
	out    bool     // its node was put out at some time since it began to contribute
	closes int      // how often its node had closed the area when it began to contribute
}

type roundState uint8

const (
	roundIdle roundState = iota
	roundContributing
	roundContributed
	roundFinishing
	roundOver
)

func (g *simGroup) id() dsm.RoundID {
	return dsm.RoundID{Group: 99, Generation: g.life, Number: g.number}
}

// putOut notes that a node is evicted: like one that has died, nobody waits for it. What it has contributed may be in the round or not.
func (g *simGroup) putOut(n *simNode) {
	if g.members != nil && g.members[n.i].state != roundIdle {
		g.members[n.i].out = true
	}
}

// inRound reports whether what the node has contributed may still be apart.
func (n *simNode) inRound() bool {
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	return n.area.mu.replica.contribution != nil
}

// acks returns what to call when a publish that begins now has returned. What its node has contributed to a round is not published.
func (n *simNode) acks() func() {
	if n.inRound() {
		return func() {}
	}
	if n.lost.Load() {
		return func() {} // programs are told that what they have stored is given up
	}
	mine, rounds, losses := n.delivered(), n.rounds, n.losses
	return func() {
		if n.rounds == rounds && n.losses == losses {
			maps.DeleteFunc(mine.counts, func(off int64, _ int) bool { return n.sim.whole && n.keeps(off) })
			n.sim.ack(mine)
		}
	}
}

// round has the member on node n go on.
func (r *simRun) round(n *simNode) {
	g := &r.group
	if g.members == nil {
		g.life, g.number, g.members = 1, 1, make([]simMember, len(r.nodes))
	}
	if n.area == nil { // no daemon is there
		return
	}
	m := &g.members[n.i]
	if m.state == roundIdle && len(m.gifts) == 0 {
		m.closes = n.closes
	}
	switch {
	case n.giving:
	case m.closes != n.closes && (m.state == roundIdle || m.state == roundContributed): // what is closed is taken back after a while
		n.giveUpRound(g, m)
	case m.state == roundIdle && g.list == nil && n.isOpen() && n.outstanding() < mostAsked:
		if r.kind.ino.Spec.Merge != dsm.MergeSum || r.rng.IntN(3) > 0 || !r.give(n, m) {
			n.contribute(r, m)
		}
	case m.state == roundContributed && g.list == nil:
		r.beginEnd(r.rng.IntN(12) == 0)
	case m.state == roundContributed:
		n.finishRound(r, m)
	}
	if g.list == nil && !slices.ContainsFunc(r.programNodes(), func(n *simNode) bool { return g.members[n.i].state != roundOver }) { // nobody is left
		g.life, g.number = g.life+1, 1
		clear(g.members)
	}
	if g.list != nil && !slices.ContainsFunc(g.list, func(id dsm.NodeID) bool { return g.members[id-1].state != roundOver }) {
		g.number++
		g.list = nil
		for i := range g.members {
			if g.members[i].state != roundContributing {
				g.members[i] = simMember{}
			}
		}
	}
}

func (n *simNode) contribute(r *simRun, m *simMember) {
	id := r.group.id()
	n.rounds++
	*m = simMember{state: roundContributing, mine: n.delivered(), gifts: m.gifts, out: n.away, closes: m.closes}
	m.call = n.ask("contribute", func(ctx context.Context) error { return n.area.Contribute(ctx, id) }, func(err error) {
		switch {
		case n.dying:
		case id != r.group.id() || r.group.list != nil: // it was declared missing
			n.area.AbandonRound(id)
			*m = simMember{state: roundOver}
			if id != r.group.id() {
				m.state = roundIdle
			}
		case err != nil:
			n.giveUpRound(&r.group, m)
		default:
			m.state = roundContributed
		}
	})
}

// giveUpRound has a member take back what it has contributed.
func (n *simNode) giveUpRound(g *simGroup, m *simMember) {
	m.state, m.void = roundOver, true
	n.area.AbandonRound(g.id())
}

// beginEnd says who belongs to the round: all who have contributed. Unless now is true it does so only if no other can.
func (r *simRun) beginEnd(now bool) {
	g := &r.group
	var list []dsm.NodeID
	for _, n := range r.programNodes() {
		switch s := g.members[n.i].state; {
		case s == roundContributed:
			list = append(list, n.id)
		case s != roundOver && !now:
			return
		}
	}
	if out := r.rng.IntN(8); out < len(list) && len(list) > 1 { // it dies just now, for the group
		n := r.nodes[list[out]-1]
		list = slices.Delete(list, out, out+1)
		g.members[n.i].state = roundOver
		if r.rng.IntN(2) == 0 { // else it does nothing until the next round
			n.area.AbandonRound(g.id())
		}
	}
	g.list = list
	for i := range g.members {
		if m := &g.members[i]; m.state == roundContributing && r.rng.IntN(2) == 0 {
			m.call.giveUp()
		}
	}
}

func (n *simNode) finishRound(r *simRun, m *simMember) {
	g := &r.group
	id, list, began := g.id(), g.list, n.acked()
	m.state = roundFinishing
	prog := n.aProgram()
	if prog != nil && (prog.temporaries != nil || r.rng.IntN(4) == 0) {
		prog = nil // one that reads
	}
	var reader *simProgram // or the page cache
	if all := slices.Concat(n.attached, n.reading); prog == nil && len(all) > 0 {
		if reader = all[r.rng.IntN(len(all))]; reader.reads == nil {
			reader = nil
		}
	}
	if prog != nil {
		prog.syncing++
	}
	q := n.ask("finish a round", func(ctx context.Context) error {
		if reader != nil {
			return reader.reads.FinishRound(ctx, id, list, len(list))
		}
		if prog != nil && prog.at != nil {
			return prog.at.FinishRound(ctx, id, list, len(list))
		}
		return n.area.FinishRound(ctx, id, list, len(list), prog != nil)
	}, func(err error) {
		if prog != nil {
			prog.syncing--
		}
		m.state = roundOver
		if n.dying {
			return
		}
		if err != nil {
			m.void = true
			n.area.AbandonRound(id)
			return
		}
		g.ended++
		if prog == nil && began.paused { // all that it must see is what is in the round
			clear(began.counts)
			began.paused = false
		}
		for _, o := range list {
			part := g.members[o-1]
			if part.void || part.mine.shrinks != r.seen.shrinks || part.out && o != n.id {
				continue
			}
			for _, gift := range part.gifts {
				gift.sure = true
			}
			if part.out { // it is told of what it has handed over only
				continue
			}
			g.took++
			r.ack(part.mine)
			for off, k := range part.mine.counts {
				began.counts[off] = max(began.counts[off], k)
			}
		}
		if reader != nil && reader.reads.draft != nil {
			n.sees(began, "finish a round", false, reader.reads.draft)
			return
		}
		n.sees(began, "finish a round", prog != nil, prog.ownMemory())
	})
	q.by, q.reader = prog, reader
}

// endRounds has all members end the round that they are in, and takes back what is left.
func (r *simRun) endRounds() {
	g := &r.group
	if g.members == nil {
		return
	}
	for _, n := range r.programNodes() {
		if m := &g.members[n.i]; m.state == roundContributed && g.list != nil && slices.Contains(g.list, n.id) && m.closes == n.closes {
			n.finishRound(r, m)
		}
	}
	r.calm("wait")
	for _, n := range r.programNodes() {
		n.area.step(n.area.abandonLocked)
	}
	r.calm("wait")
	r.group.members = nil
	for _, n := range r.programNodes() {
		if n.inRound() {
			r.t.Fatalf("node %d does not come out of its round", n.i)
		}
	}
	r.t.Logf("%d times a round was finished, with %d parts", g.ended, g.took)
}
