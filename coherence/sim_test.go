package coherence

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// sim is a cluster of nodes whose every event happens when the seed says so:
// messages (in order between two nodes, otherwise in any), broken sessions, moves
// of slots, the catalog's entries, and what programs and kernels do.
type sim struct {
	t     *testing.T
	rng   *rand.Rand
	nodes []*simNode
	net   map[[2]int][]frame
	log   []entry // the catalog
	now   time.Time
	// onShrink is told when a node has applied a smaller size.
	onShrink func(n *simNode, size int64)
	lastID   uint64
}

type frame struct {
	msg     any
	payload []byte
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
	area    *Area
	applied int // entries of the catalog
	ino     dsm.Inode
	view    *dsm.View
	kernel  *fakeKernel
	writer  bool
	acq     []*acquiring
	handing map[dsm.NodeID]*handing
}

// handing is a handover under way: the extents not acked, by message id.
type handing struct {
	slots []dsm.Slot
	epoch dsm.Epoch
	under map[uint64]dsm.ExtentIndex
}

const simArea = dsm.AreaID(7)

func newSim(t *testing.T, seed uint64, nodes int, ino dsm.Inode) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 1)), net: make(map[[2]int][]frame), now: time.Unix(1e9, 0)}
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
		n := &simNode{sim: s, i: i, id: dsm.NodeID(i + 1), applied: 2, ino: ino, view: view,
			handing: make(map[dsm.NodeID]*handing)}
		n.node = New(Config{Self: n.id, View: n, Sender: n, Log: slog.New(slog.DiscardHandler), Linger: time.Hour,
			Now: func() time.Time { return s.now }})
		n.node.handovers.stepped = true
		n.kernel = newFakeKernel(n)
		s.nodes = append(s.nodes, n)
	}
	t.Cleanup(func() {
		for _, n := range s.nodes {
			for _, a := range n.node.all() {
				if !a.mu.TryLock() {
					return // a step panicked: show that, do not wait for its lock
				}
				a.mu.Unlock()
			}
			n.node.Close()
		}
	})
	return s
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

func (n *simNode) Send(to dsm.NodeID, m any, payload [][]byte) {
	// Through the encoder, so that nothing is shared and everything is encodable.
	k := [2]int{n.i, int(to) - 1}
	n.sim.net[k] = append(n.sim.net[k], frame{m, flat(append([][]byte{nil}, payload...))})
}

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
		n.kernel.truncate(n.ino.Size)
		if n.ino.Size < old.Size && n.sim.onShrink != nil {
			n.sim.onShrink(n, n.ino.Size)
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

// open opens the area on a node, running the network until it is open.
func (n *simNode) open(write bool) {
	a, err := n.node.area(simArea)
	if err != nil {
		n.sim.t.Fatal(err)
	}
	n.area, n.writer = a, write
	a.step(func() { err = a.opened(write) })
	if err != nil {
		n.sim.t.Fatal(err)
	}
	n.sim.until("open", func() bool { return len(a.mu.replica.subs) == 0 })
}

// reopen closes the area on a node that has nothing unpublished, drops the
// replica and opens the area again; reports whether it did.
func (n *simNode) reopen(write bool) bool {
	n.kernel.finishNotices()
	n.kernel.harvest(1)
	n.endAcquires()
	done := false
	n.area.step(func() {
		if n.area.requestPublish() == nil && len(n.area.mu.replica.subs) == 0 {
			n.area.dropReplica()
			done = true
		}
	})
	if !done {
		return false
	}
	clear(n.kernel.cache)
	n.writer = write
	n.area.step(func() {
		if err := n.area.opened(write); err != nil {
			n.sim.t.Fatal(err)
		}
	})
	return true
}

// until delivers everything until cond holds.
func (s *sim) until(what string, cond func() bool) {
	for i := 0; !cond(); i++ {
		if !s.deliver() {
			for _, n := range s.nodes {
				if n.area != nil {
					s.t.Logf("node %d: applied %d of %d, parked %d, pubs %d", n.i, n.applied, len(s.log), len(n.area.mu.parked), n.area.mu.replica.nPubs)
				}
			}
			s.t.Fatalf("%s: nothing more to deliver", what)
		}
	}
}

// deliver delivers the oldest message between two random nodes.
func (s *sim) deliver() bool {
	var keys [][2]int
	for a := range s.nodes {
		for b := range s.nodes {
			if len(s.net[[2]int{a, b}]) > 0 {
				keys = append(keys, [2]int{a, b})
			}
		}
	}
	if len(keys) == 0 {
		return false
	}
	k := keys[s.rng.IntN(len(keys))]
	f := s.net[k][0]
	s.net[k] = s.net[k][1:]
	if ack, ok := f.msg.(*wire.HandoverAck); ok {
		s.nodes[k[1]].handedOver(s.nodes[k[0]], ack)
		return true
	}
	if err := s.nodes[k[1]].node.Handle(dsm.NodeID(k[0]+1), f.msg, f.payload); err != nil {
		s.t.Fatalf("%T from %d to %d: %v", f.msg, k[0], k[1], err)
	}
	return true
}

// breakSession loses what is under way between two nodes.
func (s *sim) breakSession() {
	a, b := s.rng.IntN(len(s.nodes)), s.rng.IntN(len(s.nodes))
	if a == b {
		return
	}
	cut := func(k [2]int) {
		if q := s.net[k]; len(q) > 0 {
			s.net[k] = q[:s.rng.IntN(len(q))]
		}
	}
	cut([2]int{a, b})
	if s.rng.IntN(2) == 0 {
		cut([2]int{b, a})
	}
	for _, p := range [][2]*simNode{{s.nodes[a], s.nodes[b]}, {s.nodes[b], s.nodes[a]}} {
		delete(p[0].handing, p[1].id)
		p[0].node.SessionReset(p[1].id)
	}
}

// moveSlots commits a view in which some slots of the area get another home, or in
// which handovers that are complete are over.
func (s *sim) moveSlots() {
	v := *s.lastView()
	v.Epoch++
	changed := false
	for e := range dsm.ExtentIndex(dsm.Extents(s.lastInode().Size)) {
		sl := dsm.SlotOf(simArea, e)
		row := &v.Slots[sl]
		switch {
		case row.Source != 0:
			if dsm.Epoch(s.nodes[row.Primary-1].node.received[sl].Load()) == row.Epoch {
				row.Source = 0
				changed = true
			}
		case s.rng.IntN(3) == 0:
			to := dsm.NodeID(s.rng.IntN(len(s.nodes)) + 1)
			if to != row.Primary {
				*row = dsm.SlotHome{Primary: to, Source: row.Primary, Epoch: v.Epoch}
				changed = true
			}
		}
	}
	if changed {
		s.log = append(s.log, entry{nil, &v})
	}
}

// handOver starts, or starts over, what a node has to hand over.
func (n *simNode) handOver() {
	for _, to := range n.sim.nodes {
		h := &n.node.handovers
		h.mu.Lock()
		slots := h.pendingLocked(n.view, to.id)
		h.mu.Unlock()
		if len(slots) == 0 || n.handing[to.id] != nil {
			continue
		}
		g := &handing{slots: slots, epoch: n.view.Epoch, under: make(map[uint64]dsm.ExtentIndex)}
		n.handing[to.id] = g
		if a := n.node.known(simArea); a != nil {
			var list []dsm.ExtentIndex
			a.step(func() {
				for e := range a.mu.home.extents {
					if slices.Contains(slots, dsm.SlotOf(simArea, e)) {
						list = append(list, e)
					}
				}
			})
			slices.Sort(list)
			for _, e := range list {
				n.handExtent(to, g, e)
			}
		}
		n.endHandover(to, g)
	}
}

func (n *simNode) handExtent(to *simNode, g *handing, e dsm.ExtentIndex) {
	n.sim.lastID++
	if n.node.known(simArea).handOver(to.id, e, n.sim.lastID) {
		g.under[n.sim.lastID] = e
	}
}

func (n *simNode) endHandover(to *simNode, g *handing) {
	if len(g.under) > 0 {
		return
	}
	delete(n.handing, to.id)
	for _, sl := range g.slots {
		n.node.handovers.mu.sent[sl] = n.view.Slots[sl].Epoch
	}
	n.Send(to.id, &wire.HandoverDone{Epoch: g.epoch, Slots: g.slots}, nil)
}

func (n *simNode) handedOver(to *simNode, ack *wire.HandoverAck) {
	g := n.handing[to.id]
	if g == nil {
		return
	}
	e, ok := g.under[ack.ID]
	if !ok {
		return
	}
	delete(g.under, ack.ID)
	if ack.Stale {
		_ = n.WaitApplied(context.Background(), ack.Rev, 0)
		n.handExtent(to, g, e)
	}
	n.endHandover(to, g)
}

// resize commits a new size.
func (s *sim) resize(size int64) {
	ino := s.lastInode()
	rev := ino.Rev + 1
	if size < ino.Size {
		ino.Gen = rev
	}
	ino.Size, ino.Rev = size, rev
	s.log = append(s.log, entry{&ino, nil})
}

// settle brings everything to rest: all stores published, merged and seen.
func (s *sim) settle() {
	for _, n := range s.nodes {
		for n.applied < len(s.log) {
			n.apply()
		}
	}
	drain := func() {
		for s.deliver() {
		}
	}
	for range 3 { // handovers under way end, and what they held up
		for _, n := range s.nodes {
			n.handOver()
		}
		drain()
	}
	for _, n := range s.nodes {
		n.endAcquires()
		n.kernel.finishNotices()
		n.kernel.harvest(1)
		var goal publishGoal
		n.area.step(func() { goal = n.area.requestPublish() })
		s.until(fmt.Sprintf("last publish of %d", n.i), func() bool { return n.area.reached(goal) })
	}
	for _, n := range s.nodes {
		var op *acquiring
		n.area.step(func() { op = n.area.startAcquire() })
		s.until("last acquire", func() bool { return len(op.pending) == 0 })
		n.kernel.finishNotices()
		n.area.step(func() { n.area.endAcquire(op) })
	}
	drain()
	for _, n := range s.nodes {
		n.kernel.finishNotices()
	}
	drain()
}

func (n *simNode) endAcquires() {
	for _, r := range n.acq {
		n.area.step(func() { n.area.endAcquire(r) })
	}
	n.acq = nil
}
