package coherence

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestLive runs programs that make the calls of production. Every call is answered once faults stop, every area agrees with
// itself after each event (Area.problemLocked), who syncs or opens sees what was published before, and in the end all nodes have the same.
func TestLive(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that a seed has one order
	for _, c := range liveCases {
		t.Run(c.name, func(t *testing.T) {
			for k := range *liveRuns {
				seed := *simSeed
				if seed == 0 {
					seed = rand.Uint64()
				} else {
					seed += uint64(k)
				}
				if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { runLive(t, seed, c) })
				}) {
					t.Fatalf("reproduce: go test ./coherence -run 'TestLive/%s' -sim.seed=%d -live.runs=1", c.name, seed)
				}
			}
		})
	}
}

var liveRuns = flag.Int("live.runs", 20, "live simulations of each kind")

func runLive(t *testing.T, seed uint64, c liveCase) {
	r := &liveRun{cluster: startCluster(t, seed, simNodes, c.ino), kind: c,
		bytes: make(map[int64]byte), sums: make(map[int]int32), fsums: make(map[int]float64)}
	r.onShrink = r.shrunk
	for i, n := range r.nodes {
		n.openReader()
		r.calm()
		if i < 2 || r.rng.IntN(2) == 0 { // at times a node only reads, and its page cache is stored into in place
			n.openWriter()
		}
	}
	for range *simSteps {
		r.pass(time.Duration(r.rng.IntN(2000)) * time.Microsecond)
		r.event(r.nodes[r.rng.IntN(len(r.nodes))])
		r.rest()
		r.check()
	}
	r.settle(func(n *liveNode) { c.store(r, n) })
	for _, n := range r.nodes {
		c.check(r, n)
	}
	for _, n := range r.nodes {
		n.leaveAll()
	}
	r.calm()
}

// mostAsked is how many calls of a node are under way at once.
const mostAsked = 8

// event makes something happen, on node n if it is not in between nodes.
func (r *liveRun) event(n *liveNode) {
	if n.outstanding() < mostAsked && r.call(n) {
		return
	}
	switch x := r.rng.IntN(80); {
	case x < 9:
		n.kernel.harvest(0.5)
	case x < 40:
		for range r.rng.IntN(6) {
			r.deliver()
		}
	case x < 48:
		n.kernel.takeNotice()
	case x < 56:
		n.kernel.carryOut()
	case x < 62:
		n.kernel.reportDone()
	case x < 63:
		r.breakSession()
	case x < 64:
		r.tellASender()
	case x < 65:
		r.moveSlots()
	case x < 68:
		if n.behindCatalog() {
			n.apply()
		}
	case x < 69:
		if r.kind.resize && !n.behindCatalog() {
			r.resize(simSize - int64(r.rng.IntN(773))*dsm.PageSize)
		}
	case x < 73:
		n.evict()
	case x < 75:
		if k := len(r.requests); k > 0 {
			r.requests[r.rng.IntN(k)].giveUp()
		}
	case x < 76:
		if r.rng.IntN(4) == 0 && !n.behindCatalog() {
			r.changeRules(func(ino *dsm.Inode) { r.kind.rules(r, ino) })
		}
	}
}

// call has a program of node n do something, or reports that none does.
func (r *liveRun) call(n *liveNode) bool {
	switch x := r.rng.IntN(100); {
	case x < 25:
		if n.writer || n.attached {
			r.kind.store(r, n)
		} else if n.reader {
			n.kernel.fault(hot[r.rng.IntN(4)])
		}
	case x < 26:
		n.kernel.readPast(hot[r.rng.IntN(4)])
	case x < 32:
		n.publish()
	case x < 36:
		n.sync(n.mayStore() && r.rng.IntN(4) > 0)
	case x < 37:
		n.acquire(n.mayStore() && r.rng.IntN(2) == 0)
	case x < 38:
		n.wait()
	case x < 39:
		if r.rng.IntN(4) == 0 {
			n.inspect()
		}
	case x < 40:
		if r.rng.IntN(8) == 0 {
			n.leaveAll()
		}
	case x < 42:
		if n.writer {
			n.leaveWriter()
		} else {
			n.openWriter()
		}
	case x < 43:
		if n.attached {
			n.leaveAttached()
		} else {
			n.attach()
		}
	case x < 44:
		n.openReader()
	default:
		return false
	}
	return true
}
