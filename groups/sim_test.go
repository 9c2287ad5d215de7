package groups

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

const simGroup dsm.AreaID = 77

// sim is a cluster in which everything that happens is chosen by a seed: which message or view
// arrives next, where a session breaks, which node or program dies, what programs do.
type sim struct {
	t     *testing.T
	rng   *rand.Rand
	views []*dsm.View
	nodes []*simNode
	net   map[[2]int][]any // by sender and receiver
	gens  map[uint64]*simLife
	progs []*simProgram
	slow  [2]int        // the link whose messages come late
	harsh int           // one step in so many is a fault; 0: none
	exits []*simProgram // programs that end now
	whole bool          // no session breaks: what is under way stays so, and arrives under a later coordinator
	// calm: no node dies before all has arrived that followed from the last death or move. There no value comes twice.
	calm, astir bool
	// ticking: programs tick and do not meet.
	ticking bool
	refused int // arrivals
	seats   int // in all reports
}

// simNode is a node of it.
type simNode struct {
	*Node
	s    *sim
	i    int
	seen int // views
	dead bool
}

// sessionEnd stands where the receiver learns that the session broke.
type sessionEnd struct{}

func (n *simNode) id() dsm.NodeID { return dsm.NodeID(n.i + 1) }

func (n *simNode) Send(to dsm.NodeID, m any, _ [][]byte, _ bool) {
	if bad := fits(m); bad != "" {
		n.s.t.Errorf("node %d sends node %d %+v: %s", n.i+1, to, m, bad)
	}
	if r, ok := m.(*wire.GroupReport); ok {
		n.s.seats += len(r.Seats)
	}
	if other := n.s.nodes[to-1]; !n.dead && !other.dead {
		k := [2]int{n.i, other.i}
		n.s.net[k] = append(n.s.net[k], m)
	}
}

func newSim(t *testing.T, seed uint64, nodes int) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 1)), net: map[[2]int][]any{}, gens: map[uint64]*simLife{}}
	v := &dsm.View{Epoch: 1}
	for i := range nodes {
		n := &simNode{s: s, i: i}
		v.Members = append(v.Members, dsm.Member{ID: n.id()})
		s.nodes = append(s.nodes, n)
		n.Node = NewNode(Config{Self: n.id(), Sender: n, few: 16 - 15*int(seed/8%2), Home: func(v *dsm.View, _ dsm.AreaID) dsm.NodeID { return v.Slots[0].Primary }})
	}
	v.Slots[0].Primary = 1
	s.views = append(s.views, v)
	for _, n := range s.nodes {
		n.look()
	}
	return s
}

// look has a node take the next view, or the newest as one that gets a snapshot does.
func (n *simNode) look() {
	if n.s.rng.IntN(4) == 0 {
		n.seen = len(n.s.views) - 1
	}
	n.see()
}

// see has a node take the next view.
func (n *simNode) see() {
	n.seen++
	n.ViewChanged(n.s.views[n.seen-1])
}

// change makes a new view.
func (s *sim) change(f func(*dsm.View)) {
	v := *s.views[len(s.views)-1]
	v.Members = slices.Clone(v.Members)
	v.Epoch++
	f(&v)
	s.views = append(s.views, &v)
}

func (s *sim) living() (list []*simNode) {
	for _, n := range s.nodes {
		if !n.dead {
			list = append(list, n)
		}
	}
	return list
}

// kill ends a node and its programs; the others learn it from the view.
func (s *sim) kill(n *simNode) {
	n.dead, s.astir = true, true
	for k := range s.net {
		if k[0] == n.i || k[1] == n.i {
			delete(s.net, k)
		}
	}
	for _, p := range s.progs {
		if p.node == n {
			p.over = true
		}
	}
	s.change(func(v *dsm.View) { v.Members[n.i].Gone = true })
}

// move has the group move, often back to where it was before.
func (s *sim) move(to *simNode) {
	if n := len(s.views); n > 1 && s.rng.IntN(2) == 0 {
		if before := s.nodes[s.views[n-2].Slots[0].Primary-1]; !before.dead {
			to = before
		}
	}
	s.astir = true
	s.change(func(v *dsm.View) { v.Slots[0].Primary = to.id() })
}

// exit has a program end as soon as it knows the end of a barrier, and the group move before all
// know it.
func (s *sim) exit(p *simProgram) {
	all := s.living()
	s.slow = [2]int{int(s.views[len(s.views)-1].Slots[0].Primary) - 1, all[s.rng.IntN(len(all))].i}
	s.exits = append(s.exits, p)
	s.move(all[s.rng.IntN(len(all))])
}

// breakSessions breaks the sessions between two nodes.
func (s *sim) breakSessions(a, b *simNode) {
	for _, k := range [][2]int{{a.i, b.i}, {b.i, a.i}} {
		s.net[k] = []any{sessionEnd{}}
	}
}

// deliver hands over the oldest message of a random link, or the next view to a random node. It
// returns false if there is nothing under way.
func (s *sim) deliver() bool {
	var links [][2]int
	for k, q := range s.net {
		if len(q) > 0 {
			links = append(links, k)
		}
	}
	slices.SortFunc(links, func(a, b [2]int) int { return (a[0]-b[0])*100 + a[1] - b[1] })
	var behind []*simNode
	for _, n := range s.living() {
		if n.seen < len(s.views) {
			behind = append(behind, n)
		}
	}
	if len(links)+len(behind) == 0 {
		return false
	}
	i := s.rng.IntN(len(links) + len(behind))
	for tries := 0; tries < 10 && i < len(links) && links[i] == s.slow; tries++ {
		i = s.rng.IntN(len(links) + len(behind))
	}
	if i >= len(links) {
		behind[i-len(links)].look()
	} else {
		k := links[i]
		m := s.net[k][0]
		s.net[k] = s.net[k][1:]
		to, from := s.nodes[k[1]], s.nodes[k[0]]
		if _, broken := m.(sessionEnd); broken {
			to.SessionReset(from.id())
		} else {
			to.Handle(from.id(), m)
		}
	}
	return true
}

// fault does something bad.
func (s *sim) fault() {
	all := s.living()
	a, b := all[s.rng.IntN(len(all))], all[s.rng.IntN(len(all))]
	kinds := 8
	if s.whole {
		kinds = 4
	}
	if s.rng.IntN(3) == 0 {
		s.slow = [2]int{a.i, b.i}
	}
	switch s.rng.IntN(kinds) {
	case 0:
		if s.calm && s.astir {
			for s.deliver() {
			}
			s.astir = false
		} else if len(all) > 2 {
			s.kill(a)
		}
	case 1:
		s.move(a)
	case 2:
		s.change(func(*dsm.View) {})
	case 3: // a program ends; another comes
		if p := s.progs[s.rng.IntN(len(s.progs))]; !p.over {
			p.leave()
			s.progs = append(s.progs, s.program(b))
		}
	default:
		if a != b {
			s.breakSessions(a, b)
		}
	}
}

// TestSimulation: programs on some nodes meet, count and tick, while sessions break, the group
// moves, nodes and programs end and others come. See simProgram for what must be true. When that is over,
// everybody who has a rank goes on, in few steps.
func TestSimulation(t *testing.T) {
	seeds := 2000
	if testing.Short() {
		seeds = 500
	}
	base := rand.Uint64() >> 1
	if *seedFlag != 0 {
		base, seeds = *seedFlag, 1
	}
	meetings, refused := 0, 0
	for seed := base; seed < base+uint64(seeds); seed++ {
		m, r := simulate(t, seed)
		meetings, refused = meetings+m, refused+r
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d barriers in %d runs, %d arrivals refused", meetings, seeds, refused)
	if meetings < seeds || seeds > 1 && refused == 0 {
		t.Error("hardly a barrier was met, or nobody disagreed")
	}
}

func simulate(t *testing.T, seed uint64) (meetings, refused int) {
	s := newSim(t, seed, 2+int(seed%4))
	size := 1 + s.rng.IntN(5)
	s.ticking, s.whole = s.rng.IntN(4) == 0, s.rng.IntN(2) == 0
	for range size + s.rng.IntN(2) {
		s.progs = append(s.progs, s.program(s.nodes[s.rng.IntN(len(s.nodes))]))
	}
	for _, p := range s.progs {
		p.size = size
	}
	s.harsh, s.calm = 5+s.rng.IntN(60), s.rng.IntN(2) == 0
	for range 400 {
		switch {
		case s.rng.IntN(s.harsh) == 0:
			s.fault()
		case s.rng.IntN(3) == 0:
			s.progs[s.rng.IntN(len(s.progs))].act(size)
		default:
			s.deliver()
		}
		for _, p := range s.exits {
			p.leave()
			s.progs = append(s.progs, s.program(p.node))
		}
		s.exits = nil
		if t.Failed() {
			return 0, 0
		}
	}
	s.harsh = 0
	// Faults are over. Who has a rank must get on, and with enough programs, everybody has one.
	for i := 0; s.deliver(); i++ {
		if i > 20000 {
			t.Errorf("messages without end: %s", s)
			return 0, 0
		}
	}
	for _, n := range s.living() {
		for _, c := range n.mu.coordinators {
			free := slices.ContainsFunc(c.members, func(m wire.GroupMember) bool { return m.Gone })
			if line := c.waiting(); len(line) > 0 && free || c.generation == 0 && len(line) >= size {
				t.Errorf("nobody seats who waits for a rank: %s", s)
				return 0, 0
			}
		}
	}
	for i := 0; s.ranked() < size && i < size; i++ {
		p := s.program(s.living()[0])
		s.progs = append(s.progs, p)
		p.act(size)
	}
	goal := uint64(0)
	for _, p := range s.progs {
		goal = max(goal, p.progress()+3)
	}
	for range 20000 {
		if s.deliver() {
			continue
		}
		waits, moved := false, false
		for _, p := range s.progs {
			if p.member == nil || p.over || p.first != 0 && p.progress() >= goal {
				continue
			}
			moved = p.act(size) || moved
			waits = waits || p.first != 0
		}
		if !waits {
			break
		}
		if !moved && !s.busy() {
			t.Errorf("nobody gets on: %s", s)
			return 0, 0
		}
	}
	for _, p := range s.progs {
		if p.member != nil && !p.over && p.first != 0 && p.progress() < goal {
			t.Errorf("a program is at %d, not %d: %s", p.progress(), goal, s)
		}
	}
	for _, l := range s.gens {
		meetings += len(l.results)
		l.check(s)
	}
	return meetings, s.refused
}

func (s *sim) busy() bool {
	for _, q := range s.net {
		if len(q) > 0 {
			return true
		}
	}
	return false
}

func (s *sim) ranked() (n int) {
	for _, p := range s.progs {
		if !p.over && p.member != nil {
			n++
		}
	}
	return n
}

func (s *sim) String() string {
	text := ""
	for _, p := range s.progs {
		if !p.over && p.member != nil {
			m := p.member
			text += fmt.Sprintf("\n%x on node %d: generation %d, first %d, number %d, waits %q, seat %+v, lost %v", m.seat.ID, p.node.i+1, m.seat.Generation, p.first, p.number, p.waits, m.seat, m.ended)
		}
	}
	for _, n := range s.living() {
		text += fmt.Sprintf("\nnode %d, view %d of %d:", n.i+1, n.mu.view.Epoch, len(s.views))
		for _, l := range n.mu.locals {
			text += fmt.Sprintf(" local %+v;", *l)
		}
		for _, c := range n.mu.coordinators {
			text += fmt.Sprintf(" coordinates %+v", *c)
			for k, p := range c.peers {
				text += fmt.Sprintf("; peer %d %+v", k, *p)
			}
		}
	}
	return text
}
