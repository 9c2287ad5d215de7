package coherence

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// schedules searches all orders in which the events of a small cluster can happen: programs' calls, messages, entries of the catalog, a
// move, a broken session. Of orders that differ only in events which do not depend on each other it takes one: those of two nodes
// may be swapped, unless one of them is the cause of the other. It copies no states: every path is taken from the beginning.
// (Source-DPOR: Abdulla, Aronis, Jonsson, Sagonas, Optimal Dynamic Partial Order Reduction, POPL 2014.)
type schedules struct {
	small   small
	all     bool            // it takes all orders
	orders  map[string]bool // if not nil, in which order the events of each node were on paths to their end
	steps   []step          // the path that was taken last
	paths   int
	pruned  int // of them, those that ended where all that could happen had been looked at
	deepest int
}

// step is an event of a path, and what is known of the moment before it.
type step struct {
	enabled []string           // what could happen
	want    map[string]bool    // what is to be taken here
	sleep   map[string]touched // what needs not be: it was taken here, or before, and nothing since depends on it
	name    string             // what was taken
	touched touched
	before  []bool // which of the events before it happen before it in every order
}

// touched is what an event depends on.
type touched struct {
	nodes    []int
	sent     []link // links on which it has sent
	taken    []link // links from which it has taken, or on which it has dropped, messages
	broke    bool   // it was one of the faults (a session breaks), of which there are few
	fleeting bool   // it may become impossible: a path on which it does not happen does not show that it could have
	log      bool   // it has added to the catalog
	because  []int  // the events without which it could not happen
}

// swaps reports whether two events that follow each other may be swapped.
func (x *touched) swaps(y *touched) bool {
	common := func(a, b []link) bool {
		return slices.ContainsFunc(a, func(k link) bool { return slices.Contains(b, k) })
	}
	return !(x.log && y.log) && !(x.broke && y.broke) &&
		!slices.ContainsFunc(x.nodes, func(n int) bool { return slices.Contains(y.nodes, n) }) &&
		!(x.broke && (common(x.taken, y.sent) || common(x.taken, y.taken))) && !(y.broke && (common(y.taken, x.sent) || common(y.taken, x.taken)))
}

func (x *schedules) run(t *testing.T) {
	for first := true; first || x.next(); first = false {
		x.paths++
		synctest.Test(t, x.take)
		if t.Failed() {
			return
		}
	}
}

// next goes back to the last step at which something else is to be taken, or returns false.
func (x *schedules) next() bool {
	for len(x.steps) > 0 {
		s := &x.steps[len(x.steps)-1]
		s.sleep[s.name] = s.touched
		for _, name := range s.enabled {
			if _, sleeps := s.sleep[name]; s.want[name] && !sleeps {
				s.name = name
				return true
			}
		}
		x.steps = x.steps[:len(x.steps)-1]
	}
	return false
}

// take takes the path, and goes on from its end.
func (x *schedules) take(t *testing.T) {
	r := newPathRun(t, x.small)
	defer func() {
		if t.Failed() {
			names := make([]string, len(x.steps))
			for i := range x.steps {
				names[i] = x.steps[i].name
			}
			t.Logf("the path:\n%s", strings.Join(names, "\n"))
		}
	}()
	again := len(x.steps)
	for i := 0; ; i++ {
		list := r.choices()
		if i == len(x.steps) {
			if len(list) == 0 {
				break
			}
			if !x.extend(list) {
				x.pruned++
				return
			}
		}
		s := &x.steps[i]
		k := slices.IndexFunc(list, func(c choice) bool { return c.name == s.name })
		if k < 0 {
			t.Fatalf("step %d is not the same again: %s", i, s.name)
		}
		did := r.do(list[k], i)
		if i < again-1 {
			continue
		}
		s.touched = did
		r.check()
		x.order(i)
		x.races(i)
	}
	x.deepest = max(x.deepest, len(x.steps))
	if x.orders != nil {
		x.orders[x.orderOfEach(len(r.nodes))] = true
	}
	r.end()
}

// orderOfEach says in which order the events of each node have happened, and those of the catalog and the faults.
func (x *schedules) orderOfEach(nodes int) string {
	of := make([][]string, nodes+2)
	for i := range x.steps {
		s := &x.steps[i]
		for _, n := range s.touched.nodes {
			of[n] = append(of[n], s.name)
		}
		if s.touched.log {
			of[nodes] = append(of[nodes], s.name)
		}
		if s.touched.broke {
			of[nodes+1] = append(of[nodes+1], s.name)
		}
	}
	return fmt.Sprintf("%q", of)
}

// extend adds a step, unless all that can happen sleeps.
func (x *schedules) extend(list []choice) bool {
	s := step{want: make(map[string]bool), sleep: make(map[string]touched)}
	if n := len(x.steps); n > 0 && !x.all {
		for name, t := range x.steps[n-1].sleep {
			if t.swaps(&x.steps[n-1].touched) {
				s.sleep[name] = t
			}
		}
	}
	other := false // one of those that stay possible is taken
	for _, c := range list {
		s.enabled = append(s.enabled, c.name)
		if _, sleeps := s.sleep[c.name]; !x.all && (sleeps || !c.fleeting && other) {
			continue
		}
		s.want[c.name] = true
		other = other || !c.fleeting
		if s.name == "" {
			s.name = c.name
		}
	}
	x.steps = append(x.steps, s)
	return s.name != ""
}

// order finds out which events happen before event i in every order.
func (x *schedules) order(i int) {
	s := &x.steps[i]
	s.before = make([]bool, i)
	for j := i - 1; j >= 0; j-- {
		e := &x.steps[j]
		if s.before[j] || e.touched.swaps(&s.touched) && !slices.Contains(s.touched.because, j) {
			continue
		}
		s.before[j] = true
		for k, b := range e.before {
			s.before[k] = s.before[k] || b
		}
	}
}

// races looks for events that event i could also have come before, and has that be taken.
func (x *schedules) races(i int) {
	s := &x.steps[i]
	for j := i - 1; j >= 0; j-- {
		if !s.before[j] || slices.Contains(s.touched.because, j) || x.between(j, i) {
			continue
		}
		// What came after event j and does not depend on it, and then event i, can come in its place: what of it can come first?
		var rest, first []int
		for k := j + 1; k <= i; k++ {
			if k < i && x.steps[k].before[j] {
				continue
			}
			if !slices.ContainsFunc(rest, func(o int) bool { return x.steps[k].before[o] }) {
				first = append(first, k)
			}
			rest = append(rest, k)
		}
		e := &x.steps[j]
		able := slices.DeleteFunc(first, func(k int) bool { return !slices.Contains(e.enabled, x.steps[k].name) })
		if len(able) > 0 && !slices.ContainsFunc(able, func(k int) bool { return e.want[x.steps[k].name] }) {
			e.want[x.steps[able[len(able)-1]].name] = true
		}
	}
}

// between reports whether an event lies between two in every order.
func (x *schedules) between(j, i int) bool {
	for k := j + 1; k < i; k++ {
		if x.steps[k].before[j] && x.steps[i].before[k] {
			return true
		}
	}
	return false
}

// TestEverySchedule searches small clusters: on every path each call returns, what is acked is seen, nothing is merged twice, and in the end
// all nodes have the same.
func TestEverySchedule(t *testing.T) {
	for _, k := range smallClusters {
		t.Run(k.name, func(t *testing.T) {
			if k.large && (testing.Short() || pagetest.Race || invariants.Enabled) {
				t.Skip("the search is large, and made without the race detector and the checks of invariants")
			}
			x := &schedules{small: k}
			x.run(t)
			t.Logf("%d paths, %d of them not to their end, %d events at most", x.paths, x.pruned, x.deepest)
		})
	}
}

// TestOrdersAreEquivalent: what is left out are only orders in which every node has its events in the order of a path that is taken.
func TestOrdersAreEquivalent(t *testing.T) {
	for _, k := range []small{
		{name: "publish", scripts: [][]scripted{writer(9), {acquire}}},
		{name: "loss", scripts: [][]scripted{{}, writer(10)}, losses: 1},
		{name: "move", scripts: [][]scripted{{}, {}}, moves: []int{1}},
	} {
		t.Run(k.name, func(t *testing.T) {
			some, all := schedules{small: k, orders: make(map[string]bool)}, schedules{small: k, orders: make(map[string]bool), all: true}
			some.run(t)
			all.run(t)
			t.Logf("%d paths of %d", some.paths, all.paths)
			for order := range all.orders {
				if !some.orders[order] {
					t.Fatalf("nobody has seen what follows from\n%s", order)
				}
			}
		})
	}
}
