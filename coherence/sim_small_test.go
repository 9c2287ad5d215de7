package coherence

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

var (
	writer  = func(off int64) []scripted { return []scripted{{store: off, call: (*simNode).sync}} }
	acquire = scripted{call: (*simNode).acquire}
)

var smallClusters = []small{
	{name: "two-publish", scripts: [][]scripted{writer(9), writer(10), {acquire}}},
	{name: "publish-lost", scripts: [][]scripted{writer(9), writer(10)}, losses: 1},
	{name: "added-lost", sum: true, scripts: [][]scripted{writer(9), writer(10)}, losses: 1},
	{name: "two-losses", sum: true, scripts: [][]scripted{{}, writer(10)}, losses: 2},
	{name: "moves-to-reader", scripts: [][]scripted{writer(9), {acquire}}, moves: []int{1}},
	{name: "moves-and-back", large: true, sum: true, scripts: [][]scripted{{}, writer(10)}, moves: []int{1, 0}},
	{name: "home-dies", sum: true, scripts: [][]scripted{{}, writer(10)}, copies: 2, dies: 1},
	{name: "home-that-writes-dies", sum: true, scripts: [][]scripted{writer(9), {acquire}}, copies: 2, dies: 1},
	{name: "backup-dies", sum: true, scripts: [][]scripted{writer(9), {}}, copies: 2, dies: 2},
	{name: "home-dies-loss", sum: true, scripts: [][]scripted{{}, writer(10)}, copies: 2, dies: 1, losses: 1},
	{name: "home-dies-move", large: true, sum: true, scripts: [][]scripted{{}, writer(10)}, copies: 2, dies: 1, moves: []int{1}},
	{name: "move-lost", large: true, sum: true, scripts: [][]scripted{{}, writer(10)}, moves: []int{1}, losses: 1},
}

// small is a cluster to search. Its first node is the home.
type small struct {
	name    string
	large   bool         // it takes half a minute
	sum     bool         // the area adds up, so that what is merged twice is seen
	scripts [][]scripted // what the programs of each node do, one call after the other
	moves   []int        // the nodes to which the area moves, one after the other
	losses  int          // how many sessions break
	copies  int          // of the area; 0: one
	dies    dsm.NodeID   // a node that dies, if not 0
}

// scripted is a step of a program.
type scripted struct {
	store int64 // offset of the byte to which it stores, if not 0
	call  func(n *simNode, prog *simProgram)
}

// pathRun is one path.
type pathRun struct {
	*sim
	small
	progs  []*simProgram
	at     []int // how far each program is
	want   map[int64]byte
	by     map[int64]*simNode // who has stored it
	died   int                // the event by which a node has died
	moved  int
	breaks int
	sent   map[link][]int // the events that have sent what is under way
	added  []int          // the events that have added the entries of the catalog
	asked  []int          // the events by which nodes have asked the catalog for what it has not decided
	broke  map[link]int   // the events that have broken the links whose senders have not heard of it
}

// choice is an event that can happen next.
type choice struct {
	name string
	take func()
	touched
}

func newPathRun(t *testing.T, k small) *pathRun {
	ino := dsm.Inode{Size: 2 * dsm.PageSize}
	ino.Spec.Placement = dsm.PlaceOne
	if k.sum {
		ino.Spec.Merge, ino.Spec.DType, ino.Layout.DType = dsm.MergeSum, dsm.DTypeU8, dsm.DTypeU8
	}
	r := &pathRun{sim: newSimOf(t, 1, len(k.scripts), ino, time.Hour, 0), small: k, at: make([]int, len(k.scripts)), want: make(map[int64]byte), by: make(map[int64]*simNode)}
	r.rng, r.sent, r.broke = rand.New(rand.NewPCG(1, 1)), make(map[link][]int), make(map[link]int)
	r.changeView(func(v *dsm.View) {
		for i := range v.Slots {
			v.Slots[i].Primary = r.nodes[0].id
		}
	})
	if k.copies > 0 {
		r.withBackups(k.copies, true)
	}
	for _, n := range r.nodes {
		n.skew = 0
		n.find()
		n.attach()
		r.calm()
		r.progs = append(r.progs, n.attached[0])
	}
	r.added = make([]int, r.entries())
	return r
}

// choices returns what can happen next, in a fixed order; what is fleeting comes first.
func (r *pathRun) choices() (list []choice) {
	add := func(take func(), t touched, format string, args ...any) {
		list = append(list, choice{fmt.Sprintf(format, args...), take, t})
	}
	for a := range r.nodes {
		for b := range r.nodes {
			k := link{a, b}
			for keep := range r.net[k] {
				if r.breaks < r.losses {
					add(func() { r.lose(k, keep) }, touched{broke: true, fleeting: true, taken: []link{k}, because: []int{r.sent[k][keep]}},
						"%d messages and no more of %d reach %d", keep, a, b)
				}
			}
			if r.deaf[k] {
				add(func() { r.tellSender(k) }, touched{fleeting: true, nodes: []int{a}, because: []int{r.broke[k]}}, "%d hears that its session with %d has ended", a, b)
			}
		}
	}
	for _, n := range r.nodes {
		if n.behindCatalog() {
			add(n.apply, touched{fleeting: true, nodes: []int{n.i}, because: []int{r.added[n.applied]}}, "%d applies an entry", n.i)
		}
	}
	for a := range r.nodes {
		for b := range r.nodes {
			k := link{a, b}
			if len(r.net[k]) == 0 {
				continue
			}
			t := touched{nodes: []int{b}, taken: []link{k}, because: []int{r.sent[k][0]}}
			if _, end := r.net[k][0].msg.(sessionEnd); end && r.deaf[k] {
				t.nodes = append(t.nodes, a)
			}
			add(func() { r.deliverOn(k) }, t, "%d gets what %d has sent", b, a)
		}
	}
	for _, n := range r.nodes {
		if r.at[n.i] < len(r.scripts[n.i]) && n.outstanding() == 0 && !n.dead {
			add(func() { r.program(n) }, touched{nodes: []int{n.i}}, "the program of %d goes on", n.i)
		}
	}
	for i, w := range r.wishes {
		add(func() { r.grant(i) }, touched{nodes: []int{w.by.i}, because: []int{r.asked[i]}}, "the catalog answers request %d of %d", i, w.by.i)
	}
	if r.dies != 0 {
		list = append(list, r.death(r.nodes[r.dies-1])...)
	}
	if v := r.lastView(); r.moved < len(r.moves) && r.rowOf(v, 0).Source == 0 {
		add(r.moveOn, touched{log: true}, "move to %d", r.moves[r.moved])
	}
	return list
}

// death returns what can happen next of the death of a node: it dies, and either all that it has sent arrives or nothing; the catalog hears of it.
func (r *pathRun) death(n *simNode) []choice {
	switch {
	case n.gone:
		return nil
	case n.dead:
		return []choice{{"the catalog hears of the death", func() { r.bury(n) }, touched{because: []int{r.died}}}}
	}
	var t touched
	for i := range r.nodes {
		t.nodes = append(t.nodes, i)
	}
	return []choice{
		{"a node dies, and what it has sent arrives", func() { r.killAfter(n, func(sent int) int { return sent }) }, t},
		{"a node dies, and what it has sent does not arrive", func() { r.killAfter(n, func(int) int { return 0 }) }, t},
	}
}

// buried takes note of what is left on the links of a node that an event has killed.
func (r *pathRun) buried(n *simNode, index int, had map[link]int) {
	r.died = index
	for i := range r.nodes {
		to, from := link{i, n.i}, link{n.i, i}
		delete(r.sent, to)
		delete(had, to)
		if k := len(r.net[from]); k > 0 {
			r.sent[from] = append(slices.Clone(r.sent[from][:k-1]), index)
			had[from] = k
		}
	}
}

// do has an event happen, and returns what it has touched.
func (r *pathRun) do(c choice, index int) touched {
	had, entries, wishes := make(map[link]int), r.entries(), slices.Clone(r.wishes)
	lived := r.dies != 0 && !r.nodes[r.dies-1].dead
	for k, q := range r.net {
		had[k] = len(q)
	}
	t := c.touched
	if !t.broke {
		for _, k := range t.taken {
			r.sent[k] = r.sent[k][1:]
			had[k]--
		}
	}
	c.take()
	r.rest()
	if lived && r.nodes[r.dies-1].dead {
		r.buried(r.nodes[r.dies-1], index, had)
	}
	r.asked = r.askedBy(wishes, index)
	for a := range r.nodes {
		for b := range r.nodes {
			switch k := (link{a, b}); {
			case t.broke && slices.Contains(t.taken, k):
				r.sent[k] = append(slices.Clone(r.sent[k][:len(r.net[k])-1]), index)
				r.broke[k] = index
			case len(r.net[k]) > had[k]:
				t.sent = append(t.sent, k)
				for range len(r.net[k]) - had[k] {
					r.sent[k] = append(r.sent[k], index)
				}
			}
		}
	}
	for range r.entries() - entries {
		r.added = append(r.added, index)
		t.log = true
	}
	return t
}

// askedBy returns the events by which nodes have asked for what is not decided. wishes were there before the last event.
func (r *pathRun) askedBy(wishes []*wish, index int) (asked []int) {
	for _, w := range r.wishes {
		if i := slices.Index(wishes, w); i >= 0 {
			asked = append(asked, r.asked[i])
		} else {
			asked = append(asked, index)
		}
	}
	return asked
}

// program has the program of a node take its next step.
func (r *pathRun) program(n *simNode) {
	s, prog := r.scripts[n.i][r.at[n.i]], r.progs[n.i]
	r.at[n.i]++
	if off := s.store; off != 0 {
		v := r.seen.store(off)
		n.memory(prog, dsm.PageIndex(off/dsm.PageSize), true)[off%dsm.PageSize] = v
		r.want[off], r.by[off], n.given[off] = v, n, r.seen.stores[off]
	}
	if s.call != nil {
		s.call(n, prog)
	}
}

// moveOn commits a view in which the area is on its way to the next node.
func (r *pathRun) moveOn() {
	to := r.nodes[r.moves[r.moved]].id
	r.moved++
	r.changeView(func(v *dsm.View) {
		row := r.rowOf(v, 0)
		*row = r.movedTo(v, *row, to)
	})
}

// lose breaks the session of a link, with all but the first messages that are under way.
func (r *pathRun) lose(k link, keep int) {
	r.breaks++
	dropped(r.net[k][keep:])
	r.net[k] = append(slices.Clip(r.net[k][:keep]), frame{msg: sessionEnd{}})
	r.deaf[k] = true
}

// end checks the state in which nothing can happen any more: every call has returned, and after an acquire every node has what was stored.
func (r *pathRun) end() {
	r.calm()
	for _, n := range r.programNodes() {
		n.sync(r.progs[n.i])
		r.calm()
	}
	for _, n := range r.programNodes() {
		n.acquire(r.progs[n.i])
		r.calm()
		for off, v := range r.want {
			if r.by[off].dead && r.seen.published[off] == 0 && n.area.mu.mem.Working(dsm.PageIndex(off / dsm.PageSize))[off%dsm.PageSize] == 0 {
				r.want[off], v = 0, 0 // nobody has seen it, and nobody will
			}
			if got := n.area.mu.mem.Working(dsm.PageIndex(off / dsm.PageSize))[off%dsm.PageSize]; got != v {
				r.t.Errorf("node %d has %d at %d, want %d", n.i, got, off, v)
			}
		}
	}
}
