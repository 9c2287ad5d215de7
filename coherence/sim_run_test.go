package coherence

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "seed of the simulation; 0: draw one")
	simRuns  = flag.Int("sim.runs", 200, "simulations of each kind")
	simSteps = flag.Int("sim.steps", 1500, "events of a simulation")
)

const simNodes = 4

// TestSimulation runs programs, kernels, messages, broken sessions, moving slots,
// new rules and resizes in a random order, then lets everything come to rest: every
// node must have exactly what the programs stored.
func TestSimulation(t *testing.T) {
	for _, c := range simCases {
		t.Run(c.name, func(t *testing.T) {
			for k := range *simRuns {
				seed := *simSeed
				if seed == 0 {
					seed = rand.Uint64()
				} else {
					seed += uint64(k)
				}
				if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runSim(t, seed, c) }) {
					t.Fatalf("reproduce: go test ./coherence -run 'TestSimulation/%s' -sim.seed=%d -sim.runs=1", c.name, seed)
				}
			}
		})
	}
}

func runSim(t *testing.T, seed uint64, c simCase) {
	r := &simRun{sim: newSim(t, seed, simNodes, c.ino), kind: c,
		bytes: make(map[int64]byte), maybe: make(map[int64]bool), sums: make(map[int]int32), fsums: make(map[int]float64)}
	r.onShrink, r.careful, r.unaware = r.shrunk, c.careful, c.unaware
	for i, n := range r.nodes {
		// At times a node only reads, and its page cache is stored into in place.
		n.open(i < 2 || r.rng.IntN(2) == 0)
	}
	for range *simSteps {
		r.now = r.now.Add(time.Duration(r.rng.IntN(2000)) * time.Microsecond)
		for _, n := range r.nodes {
			n.letIn()
		}
		r.event(r.nodes[r.rng.IntN(len(r.nodes))])
	}
	r.settle()
	for _, n := range r.nodes {
		c.check(r, n)
	}
}

// event makes something happen, on node n if it is not in between nodes.
func (r *simRun) event(n *simNode) {
	switch x := r.rng.IntN(112); {
	case x < 25:
		if n.writer || len(n.attached) > 0 {
			r.kind.store(r, n)
		} else {
			n.kernel.fault(hot[r.rng.IntN(4)])
		}
	case x < 26:
		if r.rng.IntN(2) == 0 {
			n.kernel.readPast(hot[r.rng.IntN(4)])
		} else {
			n.kernel.learn()
		}
	case x < 35:
		n.kernel.harvest(0.5)
	case x < 43:
		n.area.step(func() { n.area.requestPublish() })
	case x < 70:
		for range r.rng.IntN(6) {
			r.deliver()
		}
	case x < 78:
		n.kernel.takeNotice()
	case x < 86:
		n.kernel.carryOut()
	case x < 92:
		n.kernel.reportDone()
	case x < 93:
		if r.rng.IntN(10) == 0 {
			n.reopen(r.rng.IntN(2) == 0)
		}
	case x < 95:
		if !r.careful || len(n.attached) == 0 {
			n.toggle()
		}
	case x < 96:
		n.anAcquire()
	case x < 97:
		if r.careful {
			n.returnFromSync()
		} else {
			n.endAcquires()
		}
	case x < 98:
		r.breakSession()
	case x < 99:
		r.tellASender()
	case x < 100:
		r.moveSlots()
	case x < 101:
		n.handOver()
	case x < 102:
		if n.applied < len(r.log) {
			n.apply()
		}
	case x < 103:
		if r.kind.resize && n.applied == len(r.log) {
			r.resize(simSize - int64(r.rng.IntN(773))*dsm.PageSize)
		}
	case x < 106:
		n.collect(r.rng.IntN(2) == 0)
	case x < 107:
		if !r.careful || !n.opening && !n.writer {
			n.toggleAttach()
		}
	case x < 111:
		n.evict()
	default:
		if r.rng.IntN(4) == 0 && n.applied == len(r.log) {
			r.changeRules(func(ino *dsm.Inode) { r.kind.rules(r, ino) })
		}
	}
}
