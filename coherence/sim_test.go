package coherence

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// sim is a cluster of nodes whose every event happens when the seed says so:
// messages (in order between two nodes, otherwise in any), broken sessions, moves
// of slots, the catalog's entries, and what programs and kernels do.
type sim struct {
	t     *testing.T
	rng   *rand.Rand
	nodes []*simNode
	netMu sync.Mutex // guards net where timers of the product send, too
	net   map[link][]frame
	deaf  map[link]bool // broken, and the sender was not told yet
	log   []entry       // the catalog
	now   time.Time
	// onShrink is told when a node has applied a smaller size.
	onShrink func(n *simNode, size int64)
	unaware  bool // kernels are told of sizes some time after their node
	lastID   uint64
	// lastProgram numbers the programs that attach.
	lastProgram int
	// careful says that programs load, and store back later; a node has one that stores.
	careful bool
}

// entry is a committed catalog entry: a new state of the inode or of the view.
type entry struct {
	ino  *dsm.Inode
	view *dsm.View
}

// simNode is a node with one area, a fake kernel page cache and the View and
// Sender that its data plane needs.
type simNode struct {
	sim      *sim
	i        int
	id       dsm.NodeID
	node     *Node
	area     *Area
	applied  int // entries of the catalog
	ino      dsm.Inode
	view     *dsm.View
	kernel   *fakeKernel
	opening  bool        // an open for writing waits to be let in
	writer   bool        // a program may store
	cached   *simProgram // the program that stores through the page cache, if writer
	attached []*simProgram
	acq      []simSync
	handing  map[dsm.NodeID]*handing
}

const simArea = dsm.AreaID(7)

func newSim(t *testing.T, seed uint64, nodes int, ino dsm.Inode) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 1)), net: make(map[link][]frame), deaf: make(map[link]bool), now: time.Unix(1e9, 0)}
	ino.Ino, ino.Kind, ino.Gen, ino.Rev = dsm.Ino(simArea), dsm.KindFile, 1, 1
	view := &dsm.View{Cluster: 1, Epoch: 1}
	for i := range nodes {
		view.Members = append(view.Members, dsm.Member{ID: dsm.NodeID(i + 1)})
	}
	for sl := range view.Slots {
		view.Slots[sl] = dsm.SlotHome{Primary: dsm.NodeID(s.rng.IntN(nodes) + 1), Epoch: 1}
	}
	s.log = []entry{{&ino, nil}, {nil, view}}
	for i := range nodes {
		n := &simNode{sim: s, i: i, id: dsm.NodeID(i + 1), applied: 2, ino: ino, view: view, cached: new(simProgram),
			handing: make(map[dsm.NodeID]*handing)}
		n.node = New(Config{Self: n.id, View: n, Sender: n, Log: slog.New(slog.DiscardHandler), Linger: time.Hour,
			Now: func() time.Time { return s.now }})
		n.node.handovers.stepped = true
		n.kernel = newFakeKernel(n)
		n.kernel.size, n.kernel.gen = ino.Size, ino.Gen
		s.nodes = append(s.nodes, n)
	}
	t.Cleanup(s.close)
	return s
}

func (s *sim) close() {
	for _, n := range s.nodes {
		for _, a := range n.node.all() {
			if !a.mu.TryLock() {
				return // a step panicked: show that, do not wait for its lock
			}
			a.mu.Unlock()
		}
		n.node.Close()
	}
	for _, n := range s.nodes { // the timer of a last Close holds the area for as long as Linger
		*n = simNode{}
	}
	*s = sim{}
}

func (n *simNode) Current() *dsm.View { return n.view }
func (n *simNode) Area(id dsm.AreaID) (dsm.Inode, bool) {
	return n.ino, id == simArea
}
func (n *simNode) WaitApplied(_ context.Context, rev dsm.Generation, e dsm.Epoch) error {
	for n.ino.Rev < rev || n.view.Epoch < e {
		n.apply()
	}
	return nil
}
func (n *simNode) SlotsReady(_ context.Context, _ []dsm.Slot, _ dsm.Epoch) error { return nil }
func (n *simNode) SetLayout(context.Context, dsm.AreaID, dsm.Layout) error       { return nil }

// apply applies the next entry of the catalog to the node.
func (n *simNode) apply() {
	if n.applied == len(n.sim.log) {
		n.sim.t.Fatalf("node %d waits for a catalog entry that was never made", n.i)
	}
	e := n.sim.log[n.applied]
	n.applied++
	if e.ino != nil {
		old := n.ino
		n.ino = *e.ino
		n.node.AreaChanged(old, n.ino)
		if n.ino.Size < old.Size && n.sim.onShrink != nil {
			n.sim.onShrink(n, n.ino.Size)
		}
		if n.ino.Size != old.Size && (!n.sim.unaware || n.sim.rng.IntN(4) == 0) {
			n.kernel.setattr()
		} else if n.ino.Size == old.Size {
			n.kernel.gen = max(n.kernel.gen, n.ino.Gen)
		}
		return
	}
	n.view = e.view
	for _, a := range n.node.all() {
		a.step(func() {})
	}
}

func (s *sim) lastInode() dsm.Inode {
	for i := len(s.log) - 1; ; i-- {
		if s.log[i].ino != nil {
			return *s.log[i].ino
		}
	}
}

func (s *sim) lastView() *dsm.View {
	for i := len(s.log) - 1; ; i-- {
		if s.log[i].view != nil {
			return s.log[i].view
		}
	}
}

// resize commits a new size.
func (s *sim) resize(size int64) {
	ino := s.lastInode()
	ino.Rev++
	if size < ino.Size {
		ino.Gen = ino.Rev
	}
	ino.Size = size
	s.log = append(s.log, entry{&ino, nil})
}

// changeRules commits new rules.
func (s *sim) changeRules(change func(ino *dsm.Inode)) {
	ino := s.lastInode()
	ino.Rev++
	ino.Gen = ino.Rev
	change(&ino)
	s.log = append(s.log, entry{&ino, nil})
}

// newHomed is newSim with all slots at the first node.
func newHomed(t *testing.T, nodes int, ino dsm.Inode) *sim {
	s := newSim(t, 1, nodes, ino)
	s.changeView(func(v *dsm.View) {
		for i := range v.Slots {
			v.Slots[i].Primary = s.nodes[0].id
		}
	})
	s.catchUp()
	return s
}

// changeView commits a view that differs from the last one.
func (s *sim) changeView(change func(v *dsm.View)) {
	v := *s.lastView()
	v.Epoch++
	change(&v)
	s.log = append(s.log, entry{nil, &v})
}

// move commits a view in which the slots of the first extents are on their way to a node.
func (s *sim) move(to *simNode, extents dsm.ExtentIndex) {
	s.changeView(func(v *dsm.View) {
		for e := range extents {
			row := &v.Slots[dsm.SlotOf(simArea, e)]
			if row.Primary != to.id {
				*row = dsm.SlotHome{Primary: to.id, Source: row.Primary, Epoch: v.Epoch}
			}
		}
	})
	s.catchUp()
}

// catchUp lets every node apply all of the catalog.
func (s *sim) catchUp() {
	for _, n := range s.nodes {
		for n.applied < len(s.log) {
			n.apply()
		}
	}
}

// settle brings everything to rest: all stores published, merged and seen.
func (s *sim) settle() {
	s.catchUp()
	s.drain()
	for range 3 { // handovers under way end, and what they held up
		for _, n := range s.nodes {
			n.handOver()
		}
		s.drain()
	}
	for _, n := range s.nodes {
		n.endAcquires()
		n.kernel.learn()
		n.kernel.finishNotices()
		if n.letIn(); n.opening {
			s.t.Fatalf("node %d: an open for writing is never let in", n.i)
		}
		n.kernel.harvest(1)
		n.collect(s.rng.IntN(2) == 0)
		var goal publishGoal
		n.area.step(func() { goal = n.area.requestPublish() })
		s.until(fmt.Sprintf("last publish of %d", n.i), func() bool { return n.area.reached(goal) })
	}
	for _, n := range s.nodes {
		var op *acquiring
		n.area.step(func() { op = n.area.startAcquire(true) })
		s.until("last acquire", func() bool { return len(op.pending) == 0 })
		n.kernel.finishNotices()
		n.area.step(func() { n.area.endAcquire(op) })
	}
	for _, n := range s.nodes {
		n.checkDrafts()
	}
	s.drain()
	for _, n := range s.nodes {
		n.kernel.finishNotices()
	}
	s.drain()
}
