package coherence

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// cluster is a cluster of nodes whose every event happens when the seed says so:
// messages (in order between two nodes, otherwise in any), broken sessions, moves
// of slots, the catalog's entries, and what programs and kernels do.
type cluster struct {
	t     *testing.T
	rng   *rand.Rand
	nodes []*liveNode
	net   map[lane][]parcel
	deaf  map[lane]bool // broken, and the sender was not told yet
	log   []commitment  // the catalog
	// onShrink is told when a node has applied a smaller size.
	onShrink func(n *liveNode, size int64)

	mu       sync.Mutex // of net and log, and the view and inode of each node
	requests []*request
	seen     seen
}

// commitment is a committed catalog commitment: a new state of the inode or of the view.
type commitment struct {
	ino  *dsm.Inode
	view *dsm.View
}

// liveNode is a node with one area, a fake kernel page cache and the View and
// Sender that its data plane needs.
type liveNode struct {
	cluster *cluster
	i       int
	id      dsm.NodeID
	node    *Node
	area    *Area
	applied int // entries of the catalog
	ino     dsm.Inode
	view    *dsm.View
	kernel  *liveKernel
	writer  bool // a program may store
	// A program has attached, and what it stored since it was last looked for.
	attached bool
	found    map[dsm.PageIndex]bool

	skew       time.Duration // of its clock
	changed    chan struct{} // closed and replaced when a commitment is applied
	reader     bool          // a program has it open to read
	entering   *request      // an open under way
	attachment *Attachment
	untrack    func() // ends the tracking of the attached program
	faulting   map[dsm.PageIndex]bool
	given      map[int64]int // stores of each byte that were delivered: see seen
}

func startCluster(t *testing.T, seed uint64, nodes int, ino dsm.Inode) *cluster {
	s := &cluster{t: t, rng: rand.New(rand.NewPCG(seed, 1)), net: make(map[lane][]parcel), deaf: make(map[lane]bool),
		seen: seen{stores: make(map[int64]int), published: make(map[int64]int)}}
	ino.Ino, ino.Kind, ino.Gen, ino.Rev = dsm.Ino(simArea), dsm.KindFile, 1, 1
	view := &dsm.View{Cluster: 1, Epoch: 1}
	for i := range nodes {
		view.Members = append(view.Members, dsm.Member{ID: dsm.NodeID(i + 1)})
	}
	for sl := range view.Slots {
		view.Slots[sl] = dsm.SlotHome{Primary: dsm.NodeID(s.rng.IntN(nodes) + 1), Epoch: 1}
	}
	s.log = []commitment{{&ino, nil}, {nil, view}}
	for i := range nodes {
		n := &liveNode{cluster: s, i: i, id: dsm.NodeID(i + 1), applied: 2, ino: ino, view: view,
			changed: make(chan struct{}), faulting: make(map[dsm.PageIndex]bool), given: make(map[int64]int)}
		n.skew = time.Duration(s.rng.IntN(10)) * time.Millisecond
		cfg := Config{Self: n.id, View: n, Sender: n, Log: slog.New(slog.DiscardHandler), Linger: 30 * time.Millisecond,
			Now: func() time.Time { return time.Now().Add(n.skew) }}
		if ino.Spec.Residency == dsm.ResidencyDemand {
			cfg.Memory = 1
		}
		n.node = New(cfg)
		n.kernel = newLiveKernel(n)
		if s.rng.IntN(2) == 0 {
			n.node.links.window = (1 + s.rng.IntN(4)) * dsm.PageSize
		}
		n.node.room.least = liveRoom * pageCost
		n.node.SetPageCache(n)
		var err error
		if n.area, err = n.node.area(simArea); err != nil {
			t.Fatal(err)
		}
		s.nodes = append(s.nodes, n)
	}
	t.Cleanup(s.close)
	return s
}

// liveRoom is how many pages on demand there is room for: fewer than are hot.
const liveRoom = 7

func (s *cluster) close() {
	for _, q := range s.requests {
		q.cancel()
	}
	for _, n := range s.nodes {
		for _, a := range n.node.all() {
			if !a.mu.TryLock() {
				return // a step panicked: show that, do not wait for its lock
			}
			a.mu.Unlock()
		}
		n.node.Close()
	}
}

func (n *liveNode) Current() *dsm.View {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	return n.view
}

func (n *liveNode) Area(id dsm.AreaID) (dsm.Inode, bool) {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	return n.ino, id == simArea
}

func (n *liveNode) SetLayout(context.Context, dsm.AreaID, dsm.Layout) error { return nil }

// apply applies the next commitment of the catalog to the node.
func (n *liveNode) apply() {
	if !n.behindCatalog() {
		n.cluster.t.Fatalf("node %d waits for a catalog commitment that was never made", n.i)
	}
	n.cluster.mu.Lock()
	e, old := n.cluster.log[n.applied], n.ino
	n.applied++
	if e.ino != nil {
		n.ino = *e.ino
	} else {
		n.view = e.view
	}
	close(n.changed)
	n.changed = make(chan struct{})
	n.cluster.mu.Unlock()
	if e.ino != nil {
		n.node.AreaChanged(old, n.ino)
		n.kernel.truncate(n.ino.Size)
		if a := n.area; a != nil {
			a.KernelCuts(n.ino.Size)
		}
		if n.ino.Size < old.Size && n.cluster.onShrink != nil {
			n.cluster.onShrink(n, n.ino.Size)
		}
		return
	}
	n.node.ViewChanged(e.view)
	n.cluster.rest()
}

// behindCatalog reports whether there is a commitment that the node has not applied.
func (n *liveNode) behindCatalog() bool {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	return n.applied < len(n.cluster.log)
}

// commit appends a commitment to the catalog.
func (s *cluster) commit(e commitment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, e)
}

func (s *cluster) lastInode() dsm.Inode {
	for i := len(s.log) - 1; ; i-- {
		if s.log[i].ino != nil {
			return *s.log[i].ino
		}
	}
}

func (s *cluster) lastView() *dsm.View {
	for i := len(s.log) - 1; ; i-- {
		if s.log[i].view != nil {
			return s.log[i].view
		}
	}
}

// resize commits a new size.
func (s *cluster) resize(size int64) {
	ino := s.lastInode()
	ino.Rev++
	if size < ino.Size {
		ino.Gen = ino.Rev
		s.seen.cut(len(s.log))
	}
	ino.Size = size
	s.commit(commitment{&ino, nil})
}

// changeRules commits new rules.
func (s *cluster) changeRules(change func(ino *dsm.Inode)) {
	ino := s.lastInode()
	ino.Rev++
	ino.Gen = ino.Rev
	change(&ino)
	s.commit(commitment{&ino, nil})
}

// settle lets faults stop: every call must return, but a wait for what is to come, which does when every node has
// published once more. Then all have the same.
func (s *cluster) settle(store func(n *liveNode)) {
	s.calm("wait")
	for _, n := range s.nodes {
		n.openReader()
		s.calm("wait")
		n.openWriter()
		s.calm("wait")
		for range 20 {
			store(n)
		}
		s.calm("wait")
	}
	for _, n := range s.nodes {
		n.kernel.harvest(1)
		n.sync(true)
		s.calm("wait")
	}
	s.calm()
	for _, n := range s.nodes {
		n.acquire(true)
	}
	s.calm()
}

// moveSlots commits a view in which some slots of the area get another home, or in
// which handovers that are complete are over.
func (s *cluster) moveSlots() {
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
		s.commit(commitment{nil, &v})
	}
}
