package groups

import (
	"flag"
	"fmt"
	"slices"
	"strings"
)

var seedFlag = flag.Uint64("seed", 0, "repeat the simulation of this seed")

// simProgram joins, and then meets, adds and ticks at random.
type simProgram struct {
	s      *sim
	node   *simNode
	member *Member
	size   int
	over   bool
	out    bool // its node was put out: the others do not wait for it, and nobody tells it anything
	waits  string
	first  uint64
	waiter *waiter
	number uint64 // of the last barrier it has left
	next   uint64 // the barrier that it will call, or has called
	round  bool   // as which
	ticks  uint64
	added  int // answers to additions
}

// simLife is what programs have seen of one life of the group.
type simLife struct {
	generation uint64
	programs   []*simProgram
	arrived    map[*simProgram]uint64
	called     map[simCall]bool
	results    map[uint64][]simResult
	begun      int // additions
	values     map[int64]*simProgram
}

// simCall is a barrier, or a round, by a number.
type simCall struct {
	number uint64
	round  bool
}

type simResult struct {
	program *simProgram
	said    string
}

func (s *sim) program(n *simNode) *simProgram { return &simProgram{s: s, node: n} }

// progress counts what the members do together.
func (p *simProgram) progress() uint64 {
	if p.s.ticking {
		return p.ticks
	}
	return p.number
}

// counts reports whether the group goes on with the program.
func (p *simProgram) counts() bool { return !p.over && !p.out }

func (p *simProgram) leave() {
	p.over = true
	if p.member != nil {
		p.member.Leave()
	}
}

func (p *simProgram) failed(format string, args ...any) {
	p.s.t.Errorf("program on node %d: %s", p.node.i+1, fmt.Sprintf(format, args...))
}

// begin starts one thing to wait for.
func (p *simProgram) begin(what string, first, ready func() (bool, error), then func()) {
	p.waits = what
	w, err := p.node.begin(p.member, first, ready, func(err error) {
		p.waits = ""
		switch {
		case p.over:
		case err != nil:
			p.ended(what, err)
		case p.node.out:
			p.failed("is told the end of %s after its node was put out", what)
		default:
			then()
		}
	})
	p.waiter = w
	if err != nil {
		p.waits = ""
		p.ended(what, err)
	}
}

// ended is what happens to a program that is refused. In the simulation only those are who do not call what others do: they do so then. Who was put out
// may come again.
func (p *simProgram) ended(what string, err error) {
	if err == errEvicted && (p.out || p.node.out || p.node.inc > 0) {
		p.over = true
		p.s.progs = append(p.s.progs, p.s.program(p.node))
		return
	}
	l := p.life()
	if what != "a barrier" || !strings.Contains(err.Error(), "of this member") || !l.called[simCall{p.next, !p.round}] {
		p.failed("%s %d: %v", what, p.next, err)
		p.over = true
		return
	}
	p.s.refused++
	l.arrived[p] = p.number
	p.round = !p.round
}

func (p *simProgram) life() *simLife {
	g := p.member.seat.Generation
	l := p.s.gens[g]
	if l == nil {
		l = &simLife{generation: g, arrived: map[*simProgram]uint64{}, results: map[uint64][]simResult{}, values: map[int64]*simProgram{}, called: map[simCall]bool{}}
		p.s.gens[g] = l
	}
	return l
}

// act does something, and returns false if the program waits.
func (p *simProgram) act(size int) bool {
	if p.waits == "a barrier" && !p.over && !p.node.dead && p.s.rng.IntN(8) == 0 && p.node.giveUp(p.waiter) {
		p.waits = "" // as if its time were over: it calls again
		return true
	}
	if p.over || p.waits != "" || p.node.dead {
		return false
	}
	if p.member == nil {
		p.size = size
		p.member = p.node.newMember(simGroup, size)
		p.begin("a rank", p.member.applyLocked, p.member.hasRankLocked, func() {
			p.first, p.ticks = p.member.first, p.member.seat.Ticks
			p.number = p.first - 1
			l := p.life()
			l.programs = append(l.programs, p)
			for _, other := range l.programs {
				if other != p && other.counts() && other.member.rank == p.member.rank {
					p.failed("two have rank %d", p.member.rank)
				}
			}
		})
		return true
	}
	switch {
	case p.s.rng.IntN(4) == 0:
		p.add()
	case p.s.ticking: // who meets while another ticks would wait for it, as it should
		p.tick()
	default:
		p.meet()
	}
	return true
}

// meet: nobody leaves a barrier before all living members have arrived, and all have the same
// result. Some call a barrier where others call a round; all who leave it have called the same.
func (p *simProgram) meet() {
	if p.next != p.number+1 {
		p.next = p.number + 1
		p.round = p.next%3 == 0 != (p.s.harsh > 0 && p.s.rng.IntN(10) == 0)
	}
	r := new(Result)
	first, ready := p.member.arrival(p.next, p.round, r)
	l := p.life()
	l.arrived[p] = p.next
	l.called[simCall{p.next, p.round}] = true
	p.begin("a barrier", first, ready, func() {
		p.number++
		if r.Number != p.number {
			p.failed("result of %d in place of %d", r.Number, p.number)
		}
		for _, other := range l.programs {
			if other.counts() && other.first <= p.number && l.arrived[other] < p.number {
				p.failed("leaves barrier %d before %s", p.number, other.node.Node.cfg.Self)
			}
			if other.counts() && other.next == p.number && other.round != p.round {
				p.failed("leaves %s %d, and one on node %s calls a %s", collective(p.round), p.number, other.node.cfg.Self, collective(other.round))
			}
		}
		if !slices.Contains(r.Members, Seat{p.member.rank, p.node.id()}) || len(r.Members)+len(r.Missing) != p.size {
			p.failed("rank %d in result %+v of size %d", p.member.rank, r, p.size)
		}
		said := fmt.Sprintf("%+v", *r)
		for _, r := range l.results[p.number] {
			if !r.program.node.dead && !r.program.out && r.said != said {
				p.failed("result %s, another had %s", said, r.said)
			}
		}
		l.results[p.number] = append(l.results[p.number], simResult{p, said})
		if p.s.harsh > 0 && p.s.rng.IntN(2*p.s.harsh) == 0 {
			p.s.exit(p)
		}
	})
}

// add: no value comes twice while who has seen it is a member, and in a calm run never. The sum is what was added.
func (p *simProgram) add() {
	number, value := new(uint64), new(int64)
	first, ready := p.member.addition("c", 1, number, value)
	l := p.life()
	l.begun++
	p.begin("a counter", first, ready, func() {
		if other, ok := l.values[*value]; ok && (other.counts() || p.s.calm) {
			p.failed("value %d twice", *value)
		}
		l.values[*value] = p
		p.added++
	})
}

// tick: no living member is more than two behind.
func (p *simProgram) tick() {
	const slack = 2
	p.ticks++
	c := &Clock{Ticks: p.ticks}
	first, ready := p.member.tick(slack, c)
	p.begin("a tick", first, ready, func() {
		for _, other := range p.life().programs {
			if other.counts() && other.ticks+slack < p.ticks {
				p.failed("clock %d, another at %d", p.ticks, other.ticks)
			}
		}
	})
}

// check looks at what was added in all: what the members have added is in the value that they have
// seen.
func (l *simLife) check(s *sim) {
	answered, most := 0, int64(0)
	for _, p := range l.programs {
		if p.counts() {
			answered += p.added
		}
	}
	for v := range l.values {
		most = max(most, v)
	}
	if most > int64(l.begun) || most < int64(answered) {
		s.t.Errorf("generation %d: %d additions, %d answered, value %d", l.generation, l.begun, answered, most)
	}
}
