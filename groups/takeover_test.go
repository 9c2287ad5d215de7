package groups

import (
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// chosen is a simulation in which a test chooses what arrives.
type chosen struct {
	*sim
	links [][2]int // whose messages do not arrive
}

// pass delivers all messages but those of the links that are chosen.
func (h *chosen) pass() {
	for moved := true; moved; {
		moved = false
		for from := range h.nodes {
			for to := range h.nodes {
				k := [2]int{from, to}
				for len(h.net[k]) > 0 && !slices.Contains(h.links, k) {
					m := h.net[k][0]
					h.net[k] = h.net[k][1:]
					h.nodes[to].Handle(h.nodes[from].id(), m)
					moved = true
				}
			}
		}
	}
}

// movedTo makes a view in which a node coordinates.
func (h *chosen) movedTo(node int) {
	h.change(func(v *dsm.View) { v.Slots[0].Primary = h.nodes[node].id() })
}

// join has a program on each of the nodes join.
func (h *chosen) join(nodes ...int) {
	for _, n := range nodes {
		h.progs = append(h.progs, h.program(h.nodes[n]))
	}
	for _, p := range h.progs {
		p.act(len(nodes))
	}
	h.pass()
}

// TestResultOfOneWhoLeft: a program leaves a barrier and ends. That another has not heard of the end
// yet must not be forgotten with it, also if its goodbye comes to a coordinator that has been
// replaced, and coordinates again.
func TestResultOfOneWhoLeft(t *testing.T) {
	for _, late := range []bool{false, true} {
		h := &chosen{sim: newSim(t, 1, 3)}
		h.join(1, 2)
		h.links = [][2]int{{0, 1}}
		for _, p := range h.progs {
			p.meet()
		}
		h.pass()
		if h.progs[0].number != 0 || h.progs[1].number != 1 {
			t.Fatal("one must have left the barrier, the other not")
		}
		h.progs[1].leave()
		if !late {
			h.pass()
		}
		h.movedTo(2)
		h.movedTo(0)
		h.nodes[0].see()
		h.nodes[0].see()
		h.pass()
		h.links = nil
		for _, n := range h.nodes[1:] {
			n.see()
			n.see()
		}
		h.pass()
		if h.progs[0].number != 1 {
			t.Errorf("late %v: the other does not leave the barrier: %s", late, h)
		}
	}
}

// TestStateOfAnOldReign: what a coordinator decided, and nobody heard, is void when another has been
// asked; also when it arrives after the group has come back.
func TestStateOfAnOldReign(t *testing.T) {
	h := &chosen{sim: newSim(t, 1, 5)}
	h.join(1, 2, 3)
	h.links = [][2]int{{0, 1}, {0, 2}, {0, 3}}
	for _, p := range h.progs {
		p.meet()
	}
	h.pass()
	h.progs[1].leave()
	h.movedTo(4)
	for _, n := range h.nodes {
		n.see()
	}
	h.links = append(h.links, [2]int{4, 3}, [2]int{4, 1}, [2]int{4, 2})
	h.pass()
	for _, to := range []int{1, 2, 3} { // the calls arrive, not what follows
		k := [2]int{4, to}
		for _, m := range h.net[k] {
			h.nodes[to].Handle(h.nodes[4].id(), m)
		}
		h.net[k] = nil
	}
	h.links = [][2]int{{0, 1}, {0, 2}, {0, 3}, {4, 3}}
	h.pass()
	if h.progs[0].number != 1 || h.progs[2].number != 0 {
		t.Fatal("one must have left the barrier, the other not")
	}
	h.movedTo(0)
	h.nodes[3].see()
	h.links = [][2]int{{4, 3}}
	h.pass()
	for _, n := range h.nodes {
		if n.i != 3 {
			n.see()
		}
	}
	h.links = nil
	h.pass()
	if h.progs[2].number != 1 {
		t.Errorf("the other does not leave the barrier: %s", h)
	}
}

// come has one more program on a node want a rank.
func (h *chosen) come(node, size int) *simProgram {
	p := h.program(h.nodes[node])
	h.progs = append(h.progs, p)
	p.act(size)
	h.pass()
	return p
}

// TestResultAfterADroppedState: node 1 has been told who has a free rank now, but that is dropped with a session. So is nothing of the result of
// the barrier at which it meets the one who came.
func TestResultAfterADroppedState(t *testing.T) {
	h := &chosen{sim: newSim(t, 1, 3)}
	h.join(1, 1)
	h.progs[0].meet()
	h.pass()
	h.links = [][2]int{{0, 1}}
	h.progs[1].leave()
	came := h.come(2, 2)
	h.come(1, 2)
	if len(h.net[h.links[0]]) == 0 {
		t.Fatal("node 1 must have been told something")
	}
	h.net[h.links[0]] = nil
	came.meet() // which looks at what others had as the result
	h.links = nil
	h.pass()
	if h.progs[0].number != 1 || came.number != 1 {
		t.Errorf("not both have left the barrier: %s", h)
	}
}

// TestKnownAfterADroppedState: a node that waits for a rank has not got the first state of the group, and tells the next coordinator only what
// fits together.
func TestKnownAfterADroppedState(t *testing.T) {
	h := &chosen{sim: newSim(t, 1, 3)}
	h.join(2, 2)
	h.links = [][2]int{{0, 1}}
	h.come(1, 2)
	h.net[h.links[0]] = slices.DeleteFunc(h.net[h.links[0]], func(m any) bool { _, state := m.(*wire.GroupState); return state })
	h.links = nil
	h.pass() // the call
	h.links = [][2]int{{0, 1}}
	h.come(2, 2)
	h.net[h.links[0]] = nil
	for _, p := range h.progs[:2] {
		p.meet()
	}
	h.pass()
	h.links = nil
	h.come(2, 2)
	if l := h.nodes[1].mu.locals[simGroup]; l.done != 1 {
		t.Fatalf("node 1 must know of the barrier: %+v", l)
	}
	h.movedTo(2)
	for _, n := range h.nodes {
		n.see()
	}
	h.pass() // a report that does not fit fails the test
	if c := h.nodes[2].mu.coordinators[simGroup]; c == nil || !c.ready {
		t.Errorf("nobody coordinates: %s", h)
	}
}

// TestResultOfOneWhoLeftWithoutAnAnswer: a program on the coordinator's node adds, leaves a barrier, and ends before the addition is answered.
// That the answer may be given now is not the end of what its node keeps for the one who has not left the barrier.
func TestResultOfOneWhoLeftWithoutAnAnswer(t *testing.T) {
	h := &chosen{sim: newSim(t, 1, 3)}
	h.join(0, 1)
	h.progs[1].meet()
	h.pass()
	h.links = [][2]int{{1, 0}}
	h.progs[0].add()
	h.pass() // node 1 has the counter, and cannot say so
	h.links = append(h.links, [2]int{0, 1})
	h.progs[0].waits = "" // it waits for the addition in another thread
	h.progs[0].meet()
	h.pass()
	if h.progs[0].number != 1 || h.progs[0].added != 0 || h.progs[1].number != 0 {
		t.Fatalf("one must have left the barrier, without an answer to its addition, and the other not: %s", h)
	}
	h.progs[0].leave()
	h.links = [][2]int{{0, 1}}
	h.pass()
	h.net[h.links[0]] = nil
	h.links = nil
	h.movedTo(2)
	for _, n := range h.nodes {
		n.see()
	}
	h.pass()
	if h.progs[1].number != 1 { // meet looks whether the result is that of the other
		t.Errorf("the other does not leave the barrier: %s", h)
	}
}

// TestCountOutlivesItsNode: a program has no answer that only the node knows where it runs.
func TestCountOutlivesItsNode(t *testing.T) {
	h := &chosen{sim: newSim(t, 1, 3)}
	h.join(0, 1)
	h.links = [][2]int{{1, 0}}
	h.progs[0].add()
	h.pass()
	if h.progs[0].added != 0 {
		t.Fatal("the program has its answer before the other node has said that it knows it")
	}
	h.links = nil
	h.pass()
	if h.progs[0].added != 1 {
		t.Fatalf("no answer: %s", h)
	}
	h.kill(h.nodes[0])
	for _, n := range h.nodes[1:] {
		n.see()
	}
	h.pass()
	h.progs[1].add()
	h.pass()
	if l := h.progs[1].life(); l.values[2] != h.progs[1] {
		t.Errorf("the second addition is not answered by 2: %v", l.values)
	}
}

// TestCountersGetAnotherKeeper: the node dies that alone had a counter beside the coordinator. Another one gets it at once, though nobody adds.
func TestCountersGetAnotherKeeper(t *testing.T) {
	h := &chosen{sim: newSim(t, 1, 3)}
	h.join(0, 1, 2)
	h.progs[1].add()
	h.pass()
	if h.progs[1].added != 1 {
		t.Fatalf("no answer: %s", h)
	}
	for _, dies := range []int{1, 0} {
		h.kill(h.nodes[dies])
		for _, n := range h.living() {
			n.see()
		}
		h.pass()
	}
	h.progs[2].add()
	h.pass()
	if l := h.progs[2].life(); l.values[2] != h.progs[2] {
		t.Errorf("the second addition is not answered by 2: %v", l.values)
	}
}
