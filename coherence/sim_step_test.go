package coherence

import (
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Tests of a few steps drive a cluster with what is here. They take the steps of a call themselves, instead of waiting for it, so what
// happens between two steps is in their hands.

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
	v := s.lastView().Clone()
	v.Epoch++
	change(v)
	s.commit(entry{nil, v})
}

// move commits a view in which the slots of the first extents are on their way to a node. The test runs in a bubble.
func (s *sim) move(to *simNode, extents dsm.ExtentIndex) {
	s.changeView(func(v *dsm.View) {
		for e := range extents {
			row := s.rowOf(v, e)
			if row.Primary != to.id {
				*row = s.movedTo(v, *row, to.id)
			}
		}
	})
	s.catchUp()
}

// catchUp lets every node apply all of the catalog.
func (s *sim) catchUp() {
	for _, n := range s.nodes {
		for n.behindCatalog() {
			n.apply()
		}
	}
}

// resized changes the size for every node.
func (s *sim) resized(size int64) {
	s.resize(size)
	s.catchUp()
}

// deliverAll delivers what is on a link until nothing is.
func (s *sim) deliverAll(k link) {
	for len(s.queue(k)) > 0 {
		s.deliverOn(k)
	}
}

// queue returns what is on a link.
func (s *sim) queue(k link) []frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.net[k])
}

// drain delivers until nothing is under way.
func (s *sim) drain() {
	s.rest()
	for i := 0; s.deliver(); i++ {
		if i == 200_000 {
			s.explain()
			s.t.Fatalf("no rest after %d messages", i)
		}
	}
}

// until delivers everything until cond is true.
func (s *sim) until(what string, cond func() bool) {
	for s.rest(); !cond(); {
		if !s.deliver() {
			s.explain()
			s.t.Fatalf("%s: nothing more to deliver", what)
		}
	}
}

// openAll has a program of each node open the area for writing.
func (s *sim) openAll() {
	for _, n := range s.nodes {
		n.open(true)
	}
}

// open opens the area on a node, running the network until it is open. A program always has it open for reading.
func (n *simNode) open(write bool) {
	n.find()
	n.startOpen(false)
	if write {
		n.startOpen(true)
	}
	n.sim.until("open", func() bool { return len(n.area.mu.replica.subs) == 0 })
}

// find has the node know the area.
func (n *simNode) find() {
	a, err := n.node.area(simArea)
	if err != nil {
		n.sim.t.Fatal(err)
	}
	n.area = a
}

// startOpen does what an open does before it waits.
func (n *simNode) startOpen(write bool) {
	n.area.step(func() {
		if err := n.area.openedLocked(write); err != nil {
			n.sim.t.Fatal(err)
		}
	})
	if write {
		n.writer = new(simProgram)
	} else {
		n.reader = true
	}
}

// startAcquire does what an acquire of a program that stores does before it waits.
func (n *simNode) startAcquire() *acquiring {
	var op *acquiring
	n.area.step(func() { op = n.area.startAcquireLocked(true) })
	return op
}

// bring reports whether page p is here, and fetches it if not.
func (n *simNode) bring(p dsm.PageIndex) (ok bool) {
	off := int64(p) * dsm.PageSize
	n.area.step(func() {
		if ok = n.area.presentLocked(off, dsm.PageSize); !ok {
			n.area.fetchLocked(off, dsm.PageSize)
		}
	})
	return ok
}

// read does one READ, if the page is here; it is fetched if not.
func (k *fakeKernel) read(p dsm.PageIndex) {
	c, off, a := new(cachedPage), int64(p)*dsm.PageSize, k.n.area
	a.step(func() {
		if _, ok := a.readLocked(c.data[:], off); ok {
			k.cache[p] = c
		} else {
			a.fetchLocked(off, len(c.data))
		}
	})
	c.given = c.data
}

// rested brings a cluster to rest: all stores are published, merged and seen.
func (s *sim) rested() {
	for range 3 { // handovers under way end, and what they delayed
		s.catchUp()
		s.drain()
	}
	for _, n := range s.nodes {
		n.kernel.learn()
		n.kernel.finishNotices()
		n.kernel.harvest(1)
		var goal publishGoal
		n.area.step(func() { goal = n.area.requestPublishLocked() })
		s.until("last publish", func() bool { return n.area.reachedLocked(goal) })
	}
	for _, n := range s.nodes {
		op := n.startAcquire()
		s.until("last acquire", func() bool { return len(op.pending) == 0 })
		n.kernel.finishNotices()
		n.area.step(func() { n.area.endAcquireLocked(op) })
	}
	s.drain()
	for _, n := range s.nodes {
		n.kernel.finishNotices()
	}
	s.drain()
}
