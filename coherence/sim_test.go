package coherence

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "seed of the first simulation; 0: see sim.fresh")
	simFresh = flag.Bool("sim.fresh", false, "draw seeds; otherwise each kind has the same ones each time")
	simRuns  = flag.Int("sim.runs", usualRuns(), "simulations of each kind")
	simPart  = flag.String("sim.part", "0/1", "K/N: every Nth kind from the Kth on, so that several processes share the work")
	simSteps = flag.Int("sim.steps", 1500, "events of a simulation")
)

const simNodes = 4

// usualRuns is fewer where a run takes several times as long, or where the same seeds are run besides (DSMFS_SEEDS, see .ci/run).
func usualRuns() int {
	switch {
	case pagetest.Race: // one goroutine at a time has few races
		return 1
	case invariants.Enabled:
		return 3
	case os.Getenv("DSMFS_SEEDS") != "":
		return 1
	}
	return 10
}

// TestSimulation runs programs that make the calls of production. Every call is answered once faults stop, every area agrees with
// itself after each event (Area.problemLocked), who syncs or opens sees what was published before, and in the end all nodes have the same.
func TestSimulation(t *testing.T) {
	// So that a seed has one order: one goroutine at a time, and what a sync.Pool keeps is not up to the collector.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	part, parts := 0, 1
	if n, err := fmt.Sscanf(*simPart, "%d/%d", &part, &parts); n != 2 || part < 0 || part >= parts {
		t.Fatalf("-sim.part %q: want K/N with K below N: %v", *simPart, err)
	}
	for i, c := range simCases {
		if i%parts != part {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for k := range *simRuns {
				for range 2 { // pools keep what they have over one
					runtime.GC()
				}
				seed := *simSeed + uint64(k)
				switch {
				case *simFresh:
					seed = rand.Uint64()
				case *simSeed == 0:
					seed = usualSeed(c.name) + uint64(k)
				}
				if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { runSim(t, seed, c) })
				}) {
					t.Fatalf("reproduce: go test ./coherence -run 'TestSimulation/%s' -sim.seed=%d -sim.runs=1", c.name, seed)
				}
			}
		})
	}
}

// usualSeed returns the first seed of a kind. It is the same each time, so that what fails is up to the change that is being tested, not to the
// draw; builds with other checks have others. make simulate draws new ones.
func usualSeed(kind string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, kind, pagetest.Race, invariants.Enabled, 2)
	return h.Sum64()
}

func runSim(t *testing.T, seed uint64, c simCase) {
	memory := int64(0)
	if c.ino.Spec.Residency == dsm.ResidencyDemand {
		memory = 1
	}
	nodes, ino := simNodes, c.ino
	// A seed decides where the area lives. Areas on demand are always spread.
	if draw := rand.New(rand.NewPCG(seed, 2)); ino.Spec.Residency == dsm.ResidencyFull && ino.Spec.Placement == dsm.PlaceAuto && ino.Spec.Mode == dsm.ModeRelaxed && draw.IntN(2) == 0 {
		ino.Spec.Placement = dsm.PlaceOne
	}
	if draw := rand.New(rand.NewPCG(seed, 3)); ino.Spec.Mode == dsm.ModeRelaxed && draw.IntN(2) == 0 {
		ino.Spec.Staleness = time.Duration(1+draw.IntN(50)) * time.Millisecond
	}
	farther := dsm.PageIndex(0)
	if c.auto {
		farther = dsm.AutoExtents - 2
		ino.Size, ino.Spec.Placement = simSize+int64(farther)*dsm.ExtentSize, dsm.PlaceAuto
	}
	if c.small {
		ino.Size = smallPages * dsm.PageSize
	}
	if c.dies {
		nodes++
	}
	r := &simRun{sim: newSimOf(t, seed, nodes, ino, 30*time.Millisecond, memory), kind: c,
		crash: simCrash{left: make(map[int64]bool)}, bytes: make(map[int64]byte), storers: make(map[int64]int), maybe: make(map[int64]bool), sums: make(map[int]int32), fsums: make(map[int]float64), best: make(map[int]uint32)}
	r.small, r.farther, r.places = c.small, farther, ino.Spec.Together(0) // and by a view of its own from time to time
	r.drawHot()
	r.seen.tally = c.tally
	r.onShrink, r.careful, r.unaware, r.queues = r.shrunk, c.careful, c.unaware, true
	r.outlive = c.attaches
	if c.dies {
		r.withTaker()
	}
	draw := rand.New(rand.NewPCG(seed, 4))
	copies := 1 + draw.IntN(dsm.MostReplicas)
	if c.crashes || c.aways {
		copies = max(copies, 2)
	}
	if r.alone = c.alone; c.alone {
		copies = 1
	}
	r.withBackups(copies, draw.IntN(2) == 0)
	if c.restarts {
		r.holdAll()
		r.sim.endsLeft = r.endsLeft
	}
	for i, n := range r.programNodes() {
		if r.rng.IntN(2) == 0 {
			n.node.links.window = (1 + r.rng.IntN(4)) * dsm.PageSize
		}
		if draw.IntN(2) == 0 {
			n.node.copyLinks.window = (1 + draw.IntN(4)) * dsm.PageSize
			n.node.fillLinks.window = n.node.copyLinks.window
		}
		n.busy = c.starves && i%2 == 0
		n.find()
		n.node.ViewChanged(n.view) // there may be backups to fill
		n.openReader()
		r.calm()
		if i < 2 || r.rng.IntN(2) == 0 { // at times a node only reads, and its page cache is stored into in place
			n.openWriter()
		}
	}
	for range *simSteps {
		r.pass(time.Duration(r.rng.IntN(2000)) * time.Microsecond)
		r.event(r.aNode())
		r.crashOn()
		r.awayOn()
		r.scrubOn()
		r.conflictOn()
		r.restartOn()
		r.endLeftOn()
		r.rest()
		r.check()
		r.checkVersions()
		if c.restarts {
			r.checkMerged()
		}
	}
	r.settle()
	r.checkVersions()
	r.endFills()
	r.wholeRows()
	r.checkStandbys()
	r.checkScrub()
	if c.crashes {
		r.t.Logf("%d nodes have died", r.crash.crashed)
	}
	if c.aways {
		r.t.Logf("nodes were evicted %d times", r.evictions)
	}
	if c.restarts {
		r.t.Logf("daemons were killed %d times, with %d programs attached; %d times two at once", r.restarts, r.kept, r.both)
	}
	if (c.aways || c.restarts) && !c.locks {
		r.checkNoConflicts()
	}
	for _, n := range r.programNodes() {
		c.check(r, n)
		r.checkGifts(n)
	}
	for _, n := range r.programNodes() {
		n.leaveAll()
	}
	r.calm()
}

// settle lets faults stop: every call must return, but a wait for what is to come, which does when every node has
// published once more. Then all have the same.
func (r *simRun) settle() {
	for _, q := range r.requests {
		if r.careful && q.what == "wait" {
			q.giveUp() // the program that waits does not store meanwhile
		}
	}
	r.endDeath()
	r.endAway()
	r.feed()
	r.calm("wait")
	r.endLocked()
	r.hot = slices.DeleteFunc(r.hotPages(), func(p dsm.PageIndex) bool { return int64(p)*dsm.PageSize >= r.lastInode().Size }) // or perhaps nothing is stored
	r.endRounds()
	for _, n := range r.programNodes() {
		n.kernel.learn()
		n.openReader()
		r.calm("wait")
		if r.whole {
			r.handTo(n)
		}
		n.openWriter()
		for try := 0; r.kind.marked && len(n.attached) == 0 && try < 20; try++ { // as the mount it may be refused
			r.calm("wait")
			n.attach()
			r.calm("wait")
		}
		r.calm("wait")
		for range 3 { // at first pages have to come
			for range 20 {
				r.kind.store(r, n)
			}
			r.calm("wait")
		}
	}
	for _, n := range r.programNodes() {
		n.kernel.harvest(1)
		for _, prog := range n.programs() {
			prog.temporaries = nil
			n.sync(prog)
			r.calm("wait")
		}
	}
	r.calm()
	for _, n := range r.programNodes() {
		for _, prog := range append(n.programs(), nil) {
			n.acquire(prog)
			r.calm()
		}
		n.checkDrafts()
	}
	r.checkDirectory()
}

// feed lets memory be made on all nodes, and the time pass after which they try again.
func (r *simRun) feed() {
	if !r.kind.starves {
		return
	}
	for _, n := range r.programNodes() {
		n.starving.Store(false)
		n.busy = false
	}
	r.pass(shortRetryMost)
	for _, n := range r.programNodes() {
		if n.area.mu.short.ino != nil {
			r.t.Fatalf("node %d: the memory stays short", n.i)
		}
	}
}

// checkDirectory: at rest the homes know which pages on demand each node has. Of pages that were truncated and are there again they may
// take more for had: those were asked for before.
func (r *simRun) checkDirectory() {
	for _, n := range r.programNodes() {
		if !n.area.mu.replica.demand {
			continue
		}
		for e, x := range n.area.mu.replica.extents {
			e := dsm.ExtentIndex(e)
			home := r.nodes[n.area.rowLocked(e).Primary-1]
			l := home.area.mu.home.subs[n.id].extents[e]
			if l == nil {
				l = &lag{} // it was truncated, and nothing of it has come since
			}
			if x.have.Minus(l.has) != (dsm.PageSet{}) || !r.kind.resize && l.has != x.have {
				r.t.Fatalf("node %d has pages %x of extent %d, and its home, node %d, takes it for %x", n.i, x.have, e, home.i, l.has)
			}
		}
	}
}

// checkDrafts: at rest every draft has what the working copy has.
func (n *simNode) checkDrafts() {
	for _, prog := range slices.Concat(n.attached, n.reading) {
		at := prog.at
		if prog.reads != nil { // the other attachment may be over, and its daemon too
			at = prog.reads
		}
		d := at.draft
		if d == nil {
			continue
		}
		for _, p := range n.sim.hotPages() {
			size := min(n.ino.Size-int64(p)*dsm.PageSize, dsm.PageSize)
			if size <= 0 {
				continue
			}
			if w := n.area.mu.mem.Working(p); string(d.mem.Memory(p)[:size]) != string(w[:size]) {
				n.sim.t.Fatalf("node %d page %d: a draft differs from the working copy", n.i, p)
			}
		}
	}
}

// mostAsked is how many calls of a node are under way at once.
const mostAsked = 8

// event makes something happen, on node n if it is not in between nodes.
func (r *simRun) event(n *simNode) {
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
		if r.rng.IntN(8) == 0 {
			r.decide()
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
		if r.whole && r.rng.IntN(4) > 0 {
			r.transfer()
		} else if r.rng.IntN(8) == 0 {
			r.replaceBackup()
		} else {
			r.moveSlots()
		}
	case x < 68:
		if n.behindCatalog() {
			if r.unaware && r.rng.IntN(4) == 0 {
				n.snapshot()
			} else {
				n.apply()
			}
		}
	case x < 69:
		if r.kind.resize && !n.behindCatalog() {
			r.resize(r.aSize())
			if r.unaware && r.rng.IntN(2) == 0 { // who gets a snapshot does not see the size between
				r.resize(r.fullSize())
				if o := r.aNode(); r.rng.IntN(2) == 0 {
					o.snapshot()
				}
			}
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
	case x < 77:
		n.kernel.learn()
	case x < 78:
		if r.taker != nil && r.rng.IntN(4) == 0 {
			r.die(false)
		}
	case x < 79:
		switch {
		case !r.kind.starves:
		case r.rng.IntN(4) == 0:
			n.starving.Store(!n.starving.Load())
		default:
			n.busy = !n.busy
		}
	default:
		r.decide()
	}
}

// aSize is a size to which the area is changed: a whole number of pages, or in the midst of what is stored to a page.
func (r *simRun) aSize() int64 {
	if r.rng.IntN(2) == 0 {
		pages := 773
		if r.small {
			pages = smallPages
		}
		return r.fullSize() - int64(r.rng.IntN(pages))*dsm.PageSize
	}
	return max(int64(r.aHot())*dsm.PageSize, dsm.PageSize) + int64(r.rng.IntN(hotBytes))
}

// call has a program of node n do something, or reports that none does.
func (r *simRun) call(n *simNode) bool {
	switch x := r.rng.IntN(100); {
	case x < 25:
		if len(n.programs()) > 0 {
			r.kind.store(r, n)
		} else if n.reader {
			n.kernel.fault(r.aHot())
		}
	case x < 26:
		n.kernel.readPast(r.aHot())
	case x < 32:
		n.publish()
	case x < 36:
		if prog, ok := n.anAcquire(r.rng.IntN(4) > 0); ok {
			n.sync(prog)
		}
	case x < 37:
		if prog, ok := n.anAcquire(r.rng.IntN(2) == 0); ok {
			n.acquire(prog)
		}
	case x < 38:
		if prog, ok := n.anAcquire(r.rng.IntN(2) == 0); ok {
			n.wait(prog)
		}
	case x < 39:
		if r.rng.IntN(4) == 0 {
			n.inspect()
		}
	case x < 40:
		if r.rng.IntN(8) == 0 && !r.hasGiven(n) {
			n.leaveAll()
		}
	case x < 42:
		if n.writer != nil {
			n.leaveWriter()
		} else {
			n.openWriter()
		}
	case x < 43:
		if k := len(n.attached); k == 0 || k < r.mostAttached() && r.rng.IntN(2) == 0 {
			n.attach()
		} else {
			n.leaveAttached(n.attached[r.rng.IntN(k)])
		}
		if k := len(n.reading); k > 0 && r.rng.IntN(2) == 0 {
			n.leaveReading(n.reading[r.rng.IntN(k)])
		}
	case x < 44:
		n.openReader()
	case x < 46:
		n.readDirect(r.aHot())
	case x < 60 && r.kind.rounds:
		for _, n := range r.programNodes() {
			r.round(n)
		}
	default:
		return false
	}
	return true
}
