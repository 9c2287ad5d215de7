package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

const (
	size   = 3                // nodes of a cluster
	length = 30 * time.Second // of a schedule
	some   = 4                // workloads of a round
	memory = "96M"            // of a node: what any four workloads take
	few    = 20               // operations of a workload that must be done, for the round to say something of it
)

// plan is all that is drawn for a round.
type plan struct {
	seed     uint64
	chosen   []workload
	faults   []fault
	patience time.Duration // --fault-timeout
	lease    time.Duration // --lease
	copies   int           // user.dsm.replicas of all files
	held     bool          // --hold on all nodes
	secure   bool          // they encrypt, and prove to each other who they are
}

// unheld are the workloads whose programs have something open that is lost with the daemon, and the faults that are done to the process of a mount, which
// is the holder there.
var (
	unheldWorkloads = []string{"attached", "versioned", "group"}
	unheldFaults    = []kind{kill, pause, evict}
)

func (p plan) String() string {
	var names []string
	for _, w := range p.chosen {
		names = append(names, w.name)
	}
	return fmt.Sprintf("workloads %s; replicas=%d; held=%v; secure=%v; --fault-timeout %v; --lease %v; faults:%s", strings.Join(names, ","), p.copies, p.held, p.secure, p.patience, p.lease, describe(p.faults))
}

func listed(flag string) []string {
	return strings.FieldsFunc(flag, func(r rune) bool { return r == ',' })
}

// draw draws a round. What the flags ask for comes after what is drawn, so that a seed draws the same with and without them.
func draw(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := plan{seed: seed, patience: []time.Duration{30 * time.Second, 5 * time.Second}[r.IntN(2)], copies: 1 + r.IntN(2)}
	for _, i := range r.Perm(len(workloads))[:some] {
		p.chosen = append(p.chosen, workloads[i])
	}
	if *workloadsFlag != "" {
		p.chosen = nil
		for _, w := range workloads {
			if slices.Contains(listed(*workloadsFlag), w.name) {
				p.chosen = append(p.chosen, w)
			}
		}
	}
	var kinds []kind
	for k := range draws {
		if *faultsFlag == "" || slices.Contains(listed(*faultsFlag), string(k)) {
			kinds = append(kinds, k)
		}
	}
	slices.Sort(kinds)
	// Of most workloads there is little left to see after a kill that takes their data with it. Where nodes are evicted, other faults are short.
	rares := []kind{kill, evict, part, follow}
	rare := rares[r.IntN(len(rares))]
	if r.IntN(3) > 0 && p.copies == 1 {
		rare = ""
	}
	if *copiesFlag > 0 {
		p.copies = *copiesFlag
	}
	if *faultsFlag == "" {
		kinds = slices.DeleteFunc(kinds, func(k kind) bool { return slices.Contains(rares, k) && k != rare })
	}
	if p.held = slices.Contains(kinds, follow); p.held {
		p.copies = max(p.copies, 2)
		kinds = slices.DeleteFunc(kinds, func(k kind) bool { return slices.Contains(unheldFaults, k) })
		p.chosen = slices.DeleteFunc(p.chosen, func(w workload) bool { return slices.Contains(unheldWorkloads, w.name) })
	}
	if p.lease = 30 * time.Second; slices.Contains(kinds, evict) || slices.Contains(kinds, part) {
		p.lease = shortLease
	}
	p.faults = schedule(r, kinds, size, length)
	p.secure = r.IntN(2) == 0
	return p
}

// TestChaos runs rounds until its time is over. Each has a seed that repeats it.
func TestChaos(t *testing.T) {
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	if _, skip := harness.Interpreter(); skip != "" {
		t.Skip(skip)
	}
	seed, began := *seedFlag, time.Now()
	if seed == 0 {
		seed = uint64(began.UnixNano()) % 1e9
	}
	total := newTally()
	rounds := 0
	for ; rounds == 0 || time.Since(began) < *forFlag && !testing.Short(); rounds++ {
		t.Run(fmt.Sprint(seed+uint64(rounds)), func(t *testing.T) { round(t, draw(seed+uint64(rounds)), total) })
	}
	text := fmt.Sprintf("%d rounds in %v\n%v", rounds, time.Since(began).Round(time.Second), total)
	t.Log(text)
	if *tallyFlag != "" {
		if err := os.WriteFile(*tallyFlag, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// round is one cluster from its beginning to its end.
func round(t *testing.T, p plan, total *tally) {
	t.Logf("repeat with: go test ./integration/chaos -run TestChaos -for 1s -seed %d\n%v", p.seed, p)
	flags := []string{"--fault-timeout", p.patience.String(), "--lease", p.lease.String()}
	if p.held {
		flags = append(flags, "--hold")
	}
	c := harness.New(t, harness.Options{Nodes: size, Network: harness.Namespaces, Secure: p.secure, Memory: memory, Flags: flags})
	python, _ := harness.Interpreter()
	crew := &crew{t: t, c: c, python: python, seed: p.seed, last: map[string]int{}}
	t.Cleanup(crew.stop)
	n := &nemesis{t: t, c: c, crew: crew, chosen: p.chosen, copies: p.copies}
	n.settle()
	cl := c.Node(1).Client()
	cl.SetXattr(".", "user.dsm.replicas", fmt.Sprint(p.copies))
	cl.Close()
	for _, w := range p.chosen {
		crew.once(w.name, "setup", 1)
	}
	for node := range c.Nodes() {
		n.man(node + 1)
	}
	n.run(p.faults)
	healed := now()
	n.settle()
	n.revive()
	slowest := alive(t, p, crew, healed)
	finish(t, p, crew)
	n.measure()
	judge(t, p, crew, total, n.events)
	total.recovered(n.events, slowest, n.peak)
}

// alive waits until each workload works on each node, and returns how long the last one took. Then it waits until each has done a few operations: there may have been a fault all the time.
func alive(t *testing.T, p plan, crew *crew, healed int64) (slowest time.Duration) {
	works := func(w *worker) bool {
		for _, o := range w.history() {
			if o.Call > healed && (o.Result == ok || slices.Contains(answers, o.Err)) {
				slowest = max(slowest, time.Duration(o.Return-healed))
				return true
			}
		}
		return false
	}
	for _, w := range p.chosen {
		if p.promised(w) < whole {
			continue
		}
		for node := range size {
			if !harness.Eventually(bound, func() bool {
				on := crew.on(node + 1)
				return slices.ContainsFunc(on, func(k *worker) bool { return k.workload == w.name && works(k) })
			}) {
				t.Errorf("%s does not work on n%d %v after all faults were undone%s", w.name, node+1, bound, lastWords(crew, w.name, node+1))
			}
		}
	}
	for _, w := range p.chosen {
		if done := 0; p.promised(w) == whole && !harness.Eventually(bound, func() bool {
			done = outcomes(crew.histories()[w.name])[ok]
			return done >= few
		}) {
			t.Errorf("%s: %d operations were done: that says nothing", w.name, done)
		}
	}
	return slowest
}

// outcomes is how many operations had each result.
func outcomes(ops []operation) map[string]int {
	results := map[string]int{}
	for _, o := range ops {
		if slices.Contains(answers, o.Err) {
			o.Result = ok // that is an answer as good as any
		}
		results[o.Result]++
	}
	return results
}

// lastWords is the end of the history of a node's workers of a workload.
func lastWords(crew *crew, workload string, node int) string {
	var b strings.Builder
	const most = 4
	for _, w := range crew.all {
		if w.workload != workload || w.node != node {
			continue
		}
		ops := w.history()
		for _, o := range ops[max(0, len(ops)-most):] {
			fmt.Fprintf(&b, "\n    %v", o)
		}
		w.mu.Lock()
		if w.mu.err != nil {
			fmt.Fprintf(&b, "\n    worker %d: %v", w.number, w.mu.err)
		}
		w.mu.Unlock()
	}
	return b.String()
}

// finish ends the workers and has each node publish what they left, and read everything.
func finish(t *testing.T, p plan, crew *crew) {
	for _, w := range crew.all {
		if w.runs() && !w.end() {
			t.Errorf("%s on n%d does not end when it is told to, %v after all faults were undone%s", w.workload, w.node, bound, lastWords(crew, w.workload, w.node))
		}
	}
	for _, action := range []string{"publish", "final"} {
		for _, w := range p.chosen {
			for node := range size {
				if action == "publish" && !w.publishes {
					continue
				}
				for _, o := range crew.once(w.name, action, node+1) {
					if o.Result != ok && p.promised(w) == whole {
						t.Errorf("%s: %s", w.name, o)
					}
				}
			}
		}
	}
}

// judge has the checkers look at the histories, and keeps those of a round that failed.
func judge(t *testing.T, p plan, crew *crew, total *tally, events []event) {
	all := crew.histories()
	for _, w := range p.chosen {
		ops := all[w.name]
		errs := w.check(ops)
		const most = 5
		for _, err := range errs[:min(len(errs), most)] {
			t.Errorf("%s: %s", w.name, err)
		}
		if len(errs) > most {
			t.Errorf("%s: and %d more", w.name, len(errs)-most)
		}
		results := outcomes(ops)
		t.Logf("%-9s %5d operations: %d done, %d refused, %d of unknown outcome", w.name, len(ops), results[ok], results[refused], results[unknown])
		if !w.rival {
			total.pauses(events, ops)
			for _, err := range p.overdue(events, ops) {
				t.Errorf("%s: %s", w.name, err)
			}
		}
		total.counted(w.name, results)
	}
	dir := *keepFlag
	if t.Failed() && dir == "" {
		dir = filepath.Join(os.TempDir(), "dsmfs-chaos")
	}
	if dir == "" {
		return
	}
	dir = filepath.Join(dir, fmt.Sprint(p.seed))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Error(err)
	}
	for name, ops := range all {
		if err := save(filepath.Join(dir, name+".jsonl"), ops); err != nil {
			t.Error(err)
		}
	}
	t.Logf("histories: %s, events (s):%s", dir, clocked(events))
}

// clocked is the events on the clock of the histories.
func clocked(events []event) string {
	var b strings.Builder
	events = slices.Clone(events)
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.began, b.began) })
	for _, e := range events {
		fmt.Fprintf(&b, "\n    %.3f..%.3f %v", float64(e.began)/1e9, float64(e.ended)/1e9, e.fault)
	}
	return b.String()
}
