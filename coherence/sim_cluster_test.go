package coherence

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages"
)

// sim is a cluster of nodes whose every event happens when the seed says so: messages (in order between two nodes, otherwise in
// any), broken sessions, moves of slots, the catalog's entries, and what programs and kernels do.
//
// In a synctest bubble programs make the calls of production, each in a goroutine of its own; handovers, expiry and the making of room run
// as in production too. One event happens at a time: the next one comes when every goroutine waits for something. Only the goroutine of
// the test uses the generator of random numbers, applies the catalog's entries and delivers messages. Outside of a bubble a test takes
// the steps of a few calls itself: see sim_step_test.go.
type sim struct {
	t      *testing.T
	rng    *rand.Rand
	bubble bool
	nodes  []*simNode
	net    map[link][]frame
	deaf   map[link]bool // broken, and the sender was not told yet
	log    []entry       // the catalog
	checks uint64
	homed  []merged // by wholeProblem, used again
	// onShrink is told when a node has applied a smaller size.
	onShrink func(n *simNode, size int64)
	unaware  bool // kernels are told of sizes some time after their node
	queues   bool // READs may wait in the queues of the kernels
	// endsLeft, if not nil, takes back what nobody ends any more of rounds, which nodes do by themselves after a while.
	endsLeft func() bool
	// outlive says that programs attach to nodes that are held.
	outlive bool
	// careful says that programs load, and store back later; a node has one that stores to the page cache, or attached ones.
	careful     bool
	whole       bool          // the area is versioned: it has one home, and one node that stores
	lastProgram int           // numbers those that attach
	taker       *simNode      // see withTaker
	takenAlong  int           // how often it took something along
	small       bool          // the area has smallPages
	farther     dsm.PageIndex // how many extents all hot pages but the first two are moved back by
	places      bool          // the area gets a slot of its own, and that moves
	placed      int           // how often
	copies      int           // of each slot that the catalog wants: see assign
	alone       bool          // calls may fail that need a home which is evicted

	// mu is of net, log and wishes, and of the view and inode of each node. Also the goroutine of the test takes it to look at the log: what goes on when time
	// has passed is not ordered after what that goroutine did before.
	mu       sync.Mutex
	wishes   []*wish
	requests []*request
	pinned   []pinnedVersion
	seen     seen
}

// entry is a committed catalog entry: a new state of the inode or of the view.
type entry struct {
	ino  *dsm.Inode
	view *dsm.View
}

// simNode is a node with one area, a fake kernel page cache and the View and
// Sender that its data plane needs.
type simNode struct {
	sim     *sim
	i       int
	id      dsm.NodeID
	node    *Node
	config  Config        // of node
	held    *hold.Memory  // in which it keeps what the next daemon has; nil: nothing
	shelf   *hold.Shelf   // likewise, descriptors
	ended   []*pages.Area // what daemons that were killed had mapped
	daemons int           // of restarts
	area    *Area
	applied int // entries of the catalog
	// publishes and handled count calls of publish and handle.
	publishes, handled int
	ino                dsm.Inode
	view               *dsm.View
	kernel             *fakeKernel

	skew     time.Duration // of its clock
	starving atomic.Bool   // its memory cannot be made longer
	starved  atomic.Bool   // that was so at some time
	busy     bool          // a program is in write(2) to the memory, and what is to be freed there waits for it
	frees    []func()      // guarded by sim.mu
	dead     bool          // see kill
	promised int64         // of its memory to files
	fenced   atomic.Bool   // its lease has run out: see sim_away_test.go
	away     bool          // it is evicted, and has not joined again
	lost     atomic.Bool   // programs have lost locks by that, and do not know
	losses   int           // how often that began or ended
	reopens  bool          // programs that had lost locks have closed it, and are about to open it again
	again    *request      // that open
	since    map[int64]int // the stores to each byte of before it came back: homes may have merged them
	evicted  bool          // it was, at some time
	cut      bool          // and nothing reaches it, or comes from it
	gone     bool          // and the catalog says so
	changed  chan struct{} // closed and replaced when an entry is applied
	reader   bool          // a program has it open to read
	writer   *simProgram   // has it open for writing, or nil
	down     bool          // its daemon was killed, and the next one has not resumed
	between  func()        // called by goOn when the catalog knows that the node is back
	attached []*simProgram
	marking  *marking      // of a program that has attached; or nil
	reading  []*simProgram // programs that stored before, and have the area still attached to read
	entering *request      // an open under way
	faulting map[dsm.PageIndex]bool
	newest   dsm.Version   // that programs could read
	rounds   int           // how often it has contributed to one
	giving   bool          // a program is handing something over for a round
	dying    bool          // its daemon is about to be killed
	closes   int           // how often its last program has closed the area
	drafted  int           // how often a program has stored to memory of its own: see findBest
	given    map[int64]int // stores of each byte that were delivered: see seen
}

const simArea = dsm.AreaID(7)

// simRoom is how many pages on demand there is room for in TestSimulation: fewer than are hot.
const simRoom = 7

// newSim makes a cluster, of which no node has the area open. linger is Config.Linger.
func newSim(t *testing.T, seed uint64, nodes int, ino dsm.Inode) *sim {
	return newSimOf(t, seed, nodes, ino, time.Hour, 0)
}

// newSimOf is newSim with a memory budget, of which there is room for simRoom pages beside what full areas take, and the time that an
// area lingers.
func newSimOf(t *testing.T, seed uint64, nodes int, ino dsm.Inode, linger time.Duration, memory int64) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 1)), net: make(map[link][]frame), deaf: make(map[link]bool), copies: 1,
		bubble: time.Now().Year() == 2000, // where the clock of a bubble begins
		seen:   seen{stores: make(map[int64]int), published: make(map[int64]int), refused: make(map[int64]bool), added: make(map[int64]bool)}}
	if ino.Spec.Placement == dsm.PlaceAuto && ino.Spec.OneHome(ino.Size) {
		ino.Spec.Placement = dsm.PlaceSpread // an area this small has one home otherwise
	}
	ino.Ino, ino.Kind, ino.Gen, ino.Rev = dsm.Ino(simArea), dsm.KindFile, 1, 1
	view := &dsm.View{Cluster: 1, Epoch: 1}
	for i := range nodes {
		view.Members = append(view.Members, dsm.Member{ID: dsm.NodeID(i + 1)})
	}
	s.whole = ino.Spec.Mode == dsm.ModeVersioned
	for sl := range view.Slots {
		view.Slots[sl] = dsm.SlotHome{Primary: dsm.NodeID(s.rng.IntN(nodes) + 1), Epoch: 1, Had: dsm.Epoch(sl % 2)}
	}
	s.log = []entry{{&ino, nil}, {nil, view}}
	for i := range nodes {
		n := &simNode{sim: s, i: i, id: dsm.NodeID(i + 1), applied: 2, ino: ino, view: view,
			changed: make(chan struct{}), faulting: make(map[dsm.PageIndex]bool), given: make(map[int64]int)}
		n.skew = time.Duration(s.rng.IntN(10)) * time.Millisecond
		n.config = Config{Self: n.id, View: n, Sender: n, Log: slog.New(slog.DiscardHandler), Linger: linger, Memory: memory,
			Now: func() time.Time { return time.Now().Add(n.skew) }, LocksLost: func(dsm.AreaID) bool { return n.lost.Load() }}
		n.node = New(n.config)
		n.node.resize = func(mem interface{ Resize(size int64) error }, size int64) error {
			if n.starving.Load() && size > n.area.mu.ino.Size {
				n.starved.Store(true)
				return os.NewSyscallError("mmap", syscall.ENOMEM)
			}
			return resize(mem, size)
		}
		n.node.free = func(f func()) {
			s.mu.Lock()
			defer s.mu.Unlock()
			n.frees = append(n.frees, f)
		}
		n.node.closePatience = overdue
		n.kernel = newFakeKernel(n)
		if memory > 0 {
			n.node.room.least = simRoom * pageCost
		}
		n.node.SetPageCache(n)
		s.nodes = append(s.nodes, n)
	}
	t.Cleanup(s.close)
	return s
}

func (s *sim) close() {
	for _, q := range s.requests {
		q.cancel()
	}
	for _, n := range s.nodes {
		if n.dead {
			continue
		}
		for _, a := range n.node.all() {
			if !a.mu.TryLock() {
				return // a step panicked: show that, do not wait for its lock
			}
			a.mu.Unlock()
		}
		n.node.Close()
		if n.held != nil {
			for _, mem := range n.ended {
				_ = mem.Close() // what the process would have unmapped
			}
			if err := n.shelf.Close(); err != nil {
				s.t.Error(err)
			}
			if err := n.held.Close(); err != nil {
				s.t.Error(err)
			}
		}
	}
	if !s.bubble {
		for _, n := range s.nodes { // the timer of a last Close keeps the area for as long as Linger
			*n = simNode{}
		}
		*s = sim{}
	}
}

func (n *simNode) Current() *dsm.View {
	n.sim.mu.Lock()
	defer n.sim.mu.Unlock()
	return n.view
}

func (n *simNode) Area(id dsm.AreaID) (dsm.Inode, bool) {
	n.sim.mu.Lock()
	defer n.sim.mu.Unlock()
	return n.ino, id == simArea
}

func (n *simNode) AreaSince(id dsm.AreaID, rev dsm.Generation) (now dsm.Inode, least int64, gen dsm.Generation, ok bool) {
	n.sim.mu.Lock()
	defer n.sim.mu.Unlock()
	least = n.ino.Size
	for i, last := 0, int64(0); i < n.applied; i++ {
		ino := n.sim.log[i].ino
		if ino == nil {
			continue
		}
		if ino.Rev > rev && ino.Size < last && ino.Size <= least {
			least, gen = ino.Size, ino.Rev
		}
		last = ino.Size
	}
	return n.ino, least, gen, id == simArea
}

func (n *simNode) SetLayout(context.Context, dsm.AreaID, dsm.Layout) error { return nil }

// apply applies the next entry of the catalog to the node.
func (n *simNode) apply() {
	if !n.sim.unaware && n.kernel.goOn() {
		n.sim.rest() // a truncation waits for a write(2)
	}
	if !n.behindCatalog() {
		n.sim.t.Fatalf("node %d waits for a catalog entry that was never made", n.i)
	}
	n.sim.mu.Lock()
	e, old := n.sim.log[n.applied], n.ino
	n.applied++
	if e.ino != nil {
		n.ino = *e.ino
	} else {
		n.view = e.view
	}
	close(n.changed)
	n.changed = make(chan struct{})
	n.sim.mu.Unlock()
	switch {
	case e.ino != nil:
	case !n.sim.bubble:
		for _, a := range n.node.all() {
			a.step(func() {})
		}
		return
	default:
		n.node.ViewChanged(e.view)
		n.sim.rest()
		return
	}
	n.node.AreaChanged(old, n.ino)
	if n.ino.Size < old.Size {
		n.kernel.voided(n.ino.Size)
	}
	if n.ino.Size < old.Size && n.sim.onShrink != nil {
		n.sim.onShrink(n, n.ino.Size)
	}
	switch k := n.kernel; {
	case k.deaf:
	case n.ino.Size != old.Size && (!n.sim.unaware || k.change == nil && n.sim.rng.IntN(4) == 0):
		k.setattr()
	case n.ino.Size == old.Size && k.gen == old.Gen:
		k.gen = n.ino.Gen
	}
}

// snapshot has the node get the catalog as a snapshot: it sees the last entries only.
func (n *simNode) snapshot() {
	if !n.away {
		n.look()
		n.node.Reset()
		n.sim.rest()
	}
}

// look shows the node the catalog's newest state, and does not tell the data plane of it.
func (n *simNode) look() {
	n.sim.mu.Lock()
	old := n.ino
	n.ino, n.view, n.applied = n.sim.lastInodeLocked(), n.sim.lastViewLocked(), len(n.sim.log)
	close(n.changed)
	n.changed = make(chan struct{})
	n.sim.mu.Unlock()
	_, least, _, _ := n.AreaSince(simArea, old.Rev)
	if least < old.Size {
		n.kernel.voided(least)
	}
	if least < old.Size && n.sim.onShrink != nil {
		n.sim.onShrink(n, least) // now, for a write(2) that is under way may be done after the shrink
	}
}

// behindCatalog reports whether there is a entry that the node has not applied.
func (n *simNode) behindCatalog() bool {
	n.sim.mu.Lock()
	defer n.sim.mu.Unlock()
	return !n.dead && !n.away && n.applied < len(n.sim.log)
}

// commit appends a entry to the catalog.
func (s *sim) commit(e entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, e)
}

// entries returns how many entries the catalog has.
func (s *sim) entries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.log)
}

func (s *sim) lastInode() dsm.Inode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastInodeLocked()
}

func (s *sim) lastInodeLocked() dsm.Inode {
	for i := len(s.log) - 1; ; i-- {
		if s.log[i].ino != nil {
			return *s.log[i].ino
		}
	}
}

func (s *sim) lastView() *dsm.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastViewLocked()
}

func (s *sim) lastViewLocked() *dsm.View {
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
		s.seen.shrink(s.entries())
	}
	if size > ino.Size { // as the catalog does
		v := s.lastView()
		ino.Spec.Detours = v.Detours(simArea, ino.Spec, ino.Size, size)
		if own := v.OwnOf(simArea); ino.Size == 0 && own != nil && own.Homeless(v) {
			s.changeView(func(v *dsm.View) { v.Place(simArea, dsm.SlotHome{Primary: s.aNode().id, Epoch: v.Epoch}) })
		}
	}
	ino.Size = size
	s.commit(entry{&ino, nil})
}

// changeRules commits new rules.
func (s *sim) changeRules(change func(ino *dsm.Inode)) {
	ino := s.lastInode()
	ino.Rev++
	ino.Gen = ino.Rev
	change(&ino)
	s.commit(entry{&ino, nil})
}

// slotOf returns the slot of an extent of the area.
func (s *sim) slotOf(v *dsm.View, e dsm.ExtentIndex) dsm.Slot {
	return v.SlotOf(simArea, s.lastInode().Spec, e)
}

// rowOf returns the row of an extent of the area.
func (s *sim) rowOf(v *dsm.View, e dsm.ExtentIndex) *dsm.SlotHome { return v.Row(s.slotOf(v, e)) }

// firstRowLocked returns the row of the area's first extent.
func (s *sim) firstRowLocked(v *dsm.View) *dsm.SlotHome {
	return v.Row(v.SlotOf(simArea, s.lastInodeLocked().Spec, 0))
}

// moveSlots commits a view in which some slots of the area get another home, or in
// which handovers that are complete are over.
func (s *sim) moveSlots() {
	v := s.lastView().Clone()
	v.Epoch++
	if s.whole && v.Placed(simArea) != 0 {
		return // it moves when a node takes it
	}
	changed := s.places && !s.whole && s.placeAnew(v)
	for e := range dsm.ExtentIndex(s.lastInode().Spec.CoveringExtents(s.lastInode().Size)) {
		sl := s.slotOf(v, e)
		row := v.Row(sl)
		switch gone := deadOf(v); {
		case slices.Contains(gone, row.Primary) || slices.Contains(gone, row.Source):
		case row.Source != 0:
			if dsm.Epoch(s.nodes[row.Primary-1].node.received[sl].Load()) == row.Epoch {
				row.Arrived()
				changed = true
			}
		case s.rng.IntN(3) == 0 && row.Settled() && !s.twoUnheard():
			to := dsm.NodeID(s.rng.IntN(len(s.nodes)) + 1)
			if to != row.Primary && !slices.Contains(gone, to) && !s.isAlone(to) {
				*row = s.movedTo(v, *row, to)
				changed = true
			}
		}
	}
	if !changed {
		return
	}
	s.assign(v)
	s.commit(entry{nil, v})
}

// isAlone reports whether a node was evicted, of what moves to which nobody has a copy.
func (s *sim) isAlone(n dsm.NodeID) bool {
	return s.alone && s.nodes[n-1].away && s.nodes[n-1].held == nil
}

// placeAnew gives the area a slot of its own, as catalog/place.go does, at some node. It reports whether it did.
func (s *sim) placeAnew(v *dsm.View) bool {
	row := *s.rowOf(v, 0)
	gone := deadOf(v)
	to := dsm.NodeID(s.rng.IntN(len(s.nodes)) + 1)
	if v.Placed(simArea) != 0 || !row.Settled() || s.twoUnheard() || slices.Contains(gone, row.Primary) || slices.Contains(gone, to) || s.isAlone(to) || s.rng.IntN(2) == 0 {
		return false
	}
	s.placed++
	return v.Place(simArea, s.movedTo(v, row, to))
}
