package chaos

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// event is a fault that was injected and when it was, on the clock of the workers.
type event struct {
	fault
	began, ended int64
	out          int // of part, the node that was put out
}

// nemesis injects the faults of a schedule. It is for the goroutine of the test.
type nemesis struct {
	t       *testing.T
	c       *harness.Cluster
	crew    *crew
	chosen  []workload
	copies  int // of each file
	active  []fault
	events  []event
	ballast *worker
	peak    int64 // of the memory of any daemon, in bytes
	killed  int   // the daemon that was killed last, of follow
}

// step is the beginning or the end of a fault.
type step struct {
	at    time.Duration
	begin bool
	fault fault
}

// run injects the faults and undoes them all. It takes as long as a schedule, also without any.
func (n *nemesis) run(all []fault) {
	var steps []step
	for _, f := range all {
		steps = append(steps, step{f.start, true, f}, step{f.end(), false, f})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	at := time.Duration(0)
	for _, s := range steps {
		<-time.After(s.at - at)
		if at = s.at; s.begin {
			n.begin(s.fault)
		} else {
			n.end(s.fault)
		}
	}
	<-time.After(length - at)
}

// begin injects a fault.
func (n *nemesis) begin(f fault) {
	n.t.Helper()
	if draws[f.kind].alone {
		n.settle()
	}
	node := n.c.Node(f.node)
	n.active = append(n.active, f)
	n.events = append(n.events, event{fault: f, began: now()})
	switch f.kind {
	case kill:
		n.measure()
		node.Kill()
	case follow:
		n.killed = node.Daemon()
		if err := syscall.Kill(n.killed, syscall.SIGKILL); n.killed == 0 || err != nil {
			n.t.Errorf("the daemon %d of n%d is not killed: %v", n.killed, f.node, err)
		}
	case pause, evict:
		node.Pause()
	case leave:
		for _, w := range n.crew.on(f.node) {
			if !w.end() {
				n.t.Errorf("%s on n%d does not end", w.workload, w.node)
			}
		}
		node.Stop()
	case rate:
		node.Rate(f.amount)
	case loss:
		node.Lose(f.amount)
	case squeeze:
		n.ballast = n.crew.start("ballast", "work", f.node)
	default:
		n.cut(f)
	}
}

// cut cuts the links of a fault.
func (n *nemesis) cut(f fault) {
	node := n.c.Node(f.node)
	var here, there []*harness.Node
	switch f.kind {
	case link, part:
		n.c.Partition([]*harness.Node{node}, []*harness.Node{n.c.Node(f.other)})
	case oneway:
		n.c.Mute(node, n.c.Node(f.other))
	case isolate, halves:
		touched := f.touches(len(n.c.Nodes()))
		for i, o := range n.c.Nodes() {
			if slices.Contains(touched, i+1) {
				here = append(here, o)
			} else {
				there = append(there, o)
			}
		}
		n.c.Partition(here, there)
	}
}

// end undoes a fault.
func (n *nemesis) end(f fault) {
	n.t.Helper()
	node := n.c.Node(f.node)
	n.active = slices.DeleteFunc(n.active, func(e fault) bool { return e == f })
	switch f.kind {
	case kill, leave:
		for _, w := range n.crew.on(f.node) { // before there is a directory without a mount
			w.kill()
		}
		node.Start()
		n.man(f.node)
	case follow: // by itself
		if !harness.Eventually(bound, func() bool { pid := node.Daemon(); return pid != 0 && pid != n.killed }) {
			n.t.Errorf("no daemon follows %d on n%d", n.killed, f.node)
		}
		if !harness.Eventually(bound, func() bool { // else the next one that is killed loses its mount
			return strings.Contains(node.Run(bound, "cat", filepath.Join(node.Mount, ".dsm/cluster")).Stdout, "uncovered_anywhere 0\n")
		}) {
			n.t.Errorf("after %d on n%d not all has backups", n.killed, f.node)
		}
	case pause, evict: // who was evicted joins again by itself
		node.Resume()
	case rate:
		node.Rate(0)
	case loss:
		node.Lose(0)
	case squeeze:
		if !n.ballast.end() {
			n.t.Error("the ballast does not go")
		}
	default:
		out := n.putOut(f)
		for i := range n.events {
			if n.events[i].fault == f {
				n.events[i].out = out
			}
		}
		n.c.Heal()
		for _, e := range n.active {
			if slices.Contains(cuts, e.kind) {
				n.cut(e)
			}
		}
	}
	for i := range n.events {
		if n.events[i].fault == f {
			n.events[i].ended = now()
		}
	}
}

// putOut returns which of two nodes that are apart has been put out.
func (n *nemesis) putOut(f fault) int {
	n.t.Helper()
	if f.kind != part {
		return 0
	}
	third := n.c.Node(1 + 2 + 3 - f.node - f.other)
	res := third.CLI("members", third.Mount, "--output", "json")
	var all []member
	if res.Err != nil || json.Unmarshal([]byte(res.Stdout), &all) != nil {
		n.t.Errorf("members: %v: %s%s", res.Err, res.Stdout, res.Stderr)
	}
	there := func(i int) bool {
		return slices.ContainsFunc(all, func(m member) bool { return m.Name == n.c.Node(i).Name && m.State != "gone" })
	}
	switch a, b := there(f.node), there(f.other); {
	case a && !b:
		return f.other
	case b && !a:
		return f.node
	}
	n.t.Errorf("%v: not one of the two was put out: %+v", f, all)
	return 0
}

// revive starts workers in place of those that have died, by SIGBUS when a page could not be had in time.
func (n *nemesis) revive() {
	for i := range n.c.Nodes() {
		on := n.crew.on(i + 1)
		for _, w := range n.chosen {
			if !slices.ContainsFunc(on, func(k *worker) bool { return k.workload == w.name }) {
				n.t.Logf("%s on n%d has died:%s", w.name, i+1, lastWords(n.crew, w.name, i+1))
				n.crew.start(w.name, "work", i+1)
			}
		}
	}
}

// man starts the workers of a node.
func (n *nemesis) man(node int) {
	for _, w := range n.chosen {
		n.crew.start(w.name, "work", node)
	}
}

// member is what dsmfs members says of one.
type member struct {
	Name  string
	State string
	Voter bool
}

// area is what dsmfs areas says of a file.
type area struct {
	Path  string
	Homes []struct{ Backups, Filling string }
}

// lacking returns the files that have too few copies.
func (n *nemesis) lacking() (files string) {
	if n.copies == 1 {
		return ""
	}
	res := n.c.Node(1).CLI("areas", n.c.Node(1).Mount, "--output", "json")
	var all []area
	if res.Err != nil || json.Unmarshal([]byte(res.Stdout), &all) != nil {
		return res.Stdout + res.Stderr
	}
	for _, a := range all {
		for _, h := range a.Homes {
			if h.Filling != "" || h.Backups == "" {
				files += " " + a.Path
			}
		}
	}
	return files
}

// settle waits until all nodes take part again, and all copies are there: one more fault must not be one too many.
func (n *nemesis) settle() {
	n.t.Helper()
	voters := len(n.c.Nodes()) - 1 | 1 // an odd number
	began, said := time.Now(), ""
	if !harness.Eventually(bound, func() bool {
		for _, node := range n.c.Nodes() {
			res := node.CLI("members", node.Mount, "--output", "json")
			var all []member
			said = res.Stdout + res.Stderr
			if res.Err != nil || json.Unmarshal([]byte(res.Stdout), &all) != nil {
				return false
			}
			if n.copies > 1 && len(all) != len(n.c.Nodes()) { // else it stays as long as a file has bytes that it was the home of
				return false
			}
			alive, vote := 0, 0
			for _, m := range all {
				if m.State != "alive" {
					continue
				}
				if alive++; m.Voter {
					vote++
				}
			}
			if alive != len(n.c.Nodes()) || vote != voters {
				return false
			}
		}
		said = "too few copies of" + n.lacking()
		return said == "too few copies of"
	}) {
		n.t.Errorf("the cluster is not whole after %v: %s", time.Since(began).Round(time.Second), said)
	}
}

// measure notes the most memory that daemons have had so far.
func (n *nemesis) measure() {
	for _, node := range n.c.Nodes() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", node.PID()))
		if err != nil {
			continue // it is dead
		}
		_, rest, _ := strings.Cut(string(text), "VmHWM:")
		var kib int64
		if _, err := fmt.Sscan(rest, &kib); err == nil {
			n.peak = max(n.peak, kib<<10)
		}
	}
}
