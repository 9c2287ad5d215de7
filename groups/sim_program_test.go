package groups

import (
	"flag"
	"fmt"
	"slices"
)

var seedFlag = flag.Uint64("seed", 0, "repeat the simulation of this seed")

// simProgram joins, and then meets, adds and ticks at random.
type simProgram struct {
	s      *sim
	node   *simNode
	member *Member
	size   int
	over   bool
	waits  string
	first  uint64
	number uint64 // of the last barrier it has left
	ticks  uint64
	added  int // answers to additions
}

// simLife is what programs have seen of one life of the group.
type simLife struct {
	generation uint64
	programs   []*simProgram
	arrived    map[*simProgram]uint64
	results    map[uint64][]simResult
	begun      int // additions
	values     map[int64]*simProgram
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
func (p *simProgram) begin(what string, first func() (bool, error), ready func() bool, then func()) {
	p.waits = what
	_, err := p.node.begin(p.member, first, ready, func(err error) {
		p.waits = ""
		switch {
		case p.over:
		case err != nil:
			p.ended(err)
		default:
			then()
		}
	})
	if err != nil {
		p.waits = ""
		p.ended(err)
	}
}

// ended is what happens to a program that is refused: it comes again. In the simulation only a
// group of another size, or a node that is gone, refuses.
func (p *simProgram) ended(err error) {
	p.failed("%s: %v", p.waits, err)
	p.over = true
}

func (p *simProgram) life() *simLife {
	g := p.member.seat.Generation
	l := p.s.gens[g]
	if l == nil {
		l = &simLife{generation: g, arrived: map[*simProgram]uint64{}, results: map[uint64][]simResult{}, values: map[int64]*simProgram{}}
		p.s.gens[g] = l
	}
	return l
}

// act does something, and returns false if the program waits.
func (p *simProgram) act(size int) bool {
	if p.over || p.waits != "" || p.node.dead {
		return false
	}
	if p.member == nil {
		p.size = size
		p.member = p.node.newMember(simGroup, size)
		p.begin("a rank", p.member.apply, p.member.hasRank, func() {
			p.first, p.ticks = p.member.first, p.member.seat.Ticks
			p.number = p.first - 1
			l := p.life()
			l.programs = append(l.programs, p)
			for _, other := range l.programs {
				if other != p && !other.over && other.member.rank == p.member.rank {
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
// result.
func (p *simProgram) meet() {
	r := new(Result)
	first, ready := p.member.arrival(p.number+1, false, r)
	l := p.life()
	l.arrived[p] = p.number + 1
	p.begin("a barrier", first, ready, func() {
		p.number++
		if r.Number != p.number {
			p.failed("result of %d in place of %d", r.Number, p.number)
		}
		for _, other := range l.programs {
			if !other.over && other.first <= p.number && l.arrived[other] < p.number {
				p.failed("leaves barrier %d before %s", p.number, other.node.Node.cfg.Self)
			}
		}
		if !slices.Contains(r.Members, Seat{p.member.rank, p.node.id()}) || len(r.Members)+len(r.Missing) != p.size {
			p.failed("rank %d in result %+v of size %d", p.member.rank, r, p.size)
		}
		said := fmt.Sprintf("%+v", *r)
		for _, r := range l.results[p.number] {
			if !r.program.node.dead && r.said != said {
				p.failed("result %s, another had %s", said, r.said)
			}
		}
		l.results[p.number] = append(l.results[p.number], simResult{p, said})
		if p.s.harsh > 0 && p.s.rng.IntN(2*p.s.harsh) == 0 {
			p.s.exit(p)
		}
	})
}

// add: no value comes twice while who has seen it is a member, and the sum is what was added.
func (p *simProgram) add() {
	number, value := new(uint64), new(int64)
	first, ready := p.member.addition("c", 1, number, value)
	l := p.life()
	l.begun++
	p.begin("a counter", first, ready, func() {
		if other, ok := l.values[*value]; ok && !other.over {
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
			if !other.over && other.ticks+slack < p.ticks {
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
		if !p.over {
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
