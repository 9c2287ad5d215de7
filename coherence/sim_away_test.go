package coherence

import (
	"context"
	"maps"
	"reflect"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// In a run with evictions a node is cut off at any moment: the catalog marks it as gone, backups take over from it, and it goes on without hearing of
// that. Then what was sent before arrives after all, or is dropped with the sessions, and the node joins again. Nothing that its programs stored is lost, and
// nothing counts twice.

// awayOn has a node be evicted at times, or takes that further.
func (r *simRun) awayOn() {
	if !r.kind.aways {
		return
	}
	for _, n := range r.nodes {
		n.opensAgain()
	}
	if r.rng.IntN(40) > 0 {
		return
	}
	n := r.awayNode()
	switch {
	case n == nil:
		if list := r.programNodes(); len(list) > 0 {
			if n = list[r.rng.IntN(len(list))]; r.alone || !r.loses(n) {
				r.evictions++
				r.group.putOut(n)
				r.isEvicted(n)
			}
		}
	case n.cut && r.rng.IntN(2) == 0:
		n.cut = false
	default:
		if r.kind.locks && r.rng.IntN(2) == 0 {
			n.lost.Store(true)
			n.losses++
		}
		r.comesBack(n)
		n.since = maps.Clone(r.seen.stores)
	}
	for _, n := range r.nodes {
		if n.lost.Load() && !n.away && r.rng.IntN(40) == 0 {
			r.closesLocked(n)
		}
	}
}

// closesLocked has the programs of a node close the area that believed to have locks: what they have stored since it was back is given up. They open it again, but for the
// kernel it is open all the time, as if others had it open too.
func (r *simRun) closesLocked(n *simNode) {
	n.kernel.harvest(1)
	void := maps.Clone(n.given)
	n.area.Forfeit()
	n.lost.Store(false)
	n.losses++
	n.reopens = n.isOpen()
	for _, p := range r.hotPages() {
		w := make([]byte, hotBytes)
		if n.isOpen() && int64(p)*dsm.PageSize < n.area.mu.ino.Size {
			copy(w, n.area.mu.mem.Working(p))
		}
		for i, v := range w {
			off := int64(p)*dsm.PageSize + int64(i)
			if r.owner(off) != n.i {
				continue
			}
			k := r.seen.storeOf(off, v)
			if k > n.since[off] && k <= void[off] {
				r.t.Fatalf("node %d: byte %d: store %d was made when locks were lost, and is not given up", n.i, off, k)
			}
			n.given[off] = k
			r.seen.added[off] = true
		}
	}
}

// opensAgain has programs of a node open the area again that had lost their locks. They store when that has acquired: a home may have merged what
// was given up, and would be in conflict with what they store without having seen it.
func (n *simNode) opensAgain() {
	if !n.reopens || n.again != nil || n.area == nil {
		return
	}
	losses := n.losses
	n.again = n.ask("open again", func(ctx context.Context) error { return n.area.Acquire(ctx, true) }, func(err error) {
		n.again = nil
		if err == nil && n.losses == losses {
			n.reopens = false
		}
	})
}

// endLocked ends that for all nodes.
func (r *simRun) endLocked() {
	for _, n := range r.nodes {
		if n.lost.Load() {
			r.closesLocked(n)
		}
	}
	r.calm("wait")
	for _, n := range r.nodes {
		n.opensAgain()
	}
	r.calm("wait")
}

// awayNode is the node that is evicted, or nil.
func (s *sim) awayNode() *simNode {
	for _, n := range s.nodes {
		if n.away {
			return n
		}
	}
	return nil
}

// endAway has the node that is evicted come back.
func (s *sim) endAway() {
	if n := s.awayNode(); n != nil {
		s.comesBack(n)
	}
}

// isEvicted commits a view in which a node is gone that lives, and is cut off.
func (s *sim) isEvicted(n *simNode) {
	n.fenced.Store(true)
	s.mu.Lock()
	n.away, n.cut, n.evicted = true, true, true
	s.mu.Unlock()
	s.changeView(func(v *dsm.View) {
		v.Members[n.i].Gone, v.Members[n.i].Leaving = true, true
		s.takeOver(v, n.id)
	})
}

// comesBack has a node join again that was evicted, as package main does it.
func (s *sim) comesBack(n *simNode) { s.comesBackWhile(n, func() {}) }

// comesBackWhile is comesBack, in the midst of which something happens: the node is a member again, and has subscribed to nothing yet.
func (s *sim) comesBackWhile(n *simNode, meanwhile func()) {
	n.kernel.harvest(1)
	n.node.Returning()
	s.changeView(func(v *dsm.View) {
		m := &v.Members[n.i]
		m.Gone, m.Leaving, m.Inc, m.Since = false, false, m.Inc+1, v.Epoch
		s.assign(v)
	})
	for _, o := range s.nodes {
		if o != n && s.rng.IntN(2) == 0 { // else the connections have outlived the cut
			s.breakLink(link{n.i, o.i})
			s.breakLink(link{o.i, n.i})
		}
	}
	s.mu.Lock()
	n.away, n.cut = false, false
	s.mu.Unlock()
	n.snapshot()
	meanwhile()
	n.node.Rejoined()
	n.fenced.Store(false)
	s.rest()
}

// checkNoConflicts: a byte has one node that stores to it, so nothing was changed on both sides; but any node may punch a hole. What was stored to a versioned area by a
// node that was ousted is a conflict as a whole.
func (r *simRun) checkNoConflicts() {
	for _, n := range r.programNodes() {
		found := n.node.ListConflicts(&wire.ListConflicts{Area: simArea})
		for _, x := range found.List {
			for i := range x.Kept {
				off := x.Off + int64(i)
				if r.whole { // what is kept is kept as a whole
					if v := x.Kept[i]; !r.kind.marked && off < madeConflicts && v != 0 && r.seen.storeOf(off, v) <= 0 {
						r.t.Fatalf("node %d: byte %d is kept as %d, which nobody has stored", n.i, off, v)
					}
					continue
				}
				if !punchable(off) && off < madeConflicts {
					r.t.Fatalf("node %d: byte %d is in conflict: it has stored %d", n.i, off, x.Kept[i])
				}
			}
		}
		if found.Lost > 0 {
			r.t.Fatalf("node %d: no room for %d bytes of conflicts", n.i, found.Lost)
		}
	}
}

// delays reports whether the oldest frame of a link does not arrive now: an end is cut off, or the receiver would wait for what it does not hear of
// before it has joined again.
func (s *sim) delays(k link) bool {
	from, to := s.nodes[k[0]], s.nodes[k[1]]
	if from.cut || to.cut {
		return true
	}
	f := s.net[k][0]
	if _, end := f.msg.(sessionEnd); end || !to.away {
		return false
	}
	m := reflect.ValueOf(f.msg).Elem()
	rev, epoch := m.FieldByName("Rev"), m.FieldByName("Epoch")
	return rev.IsValid() && rev.Uint() > uint64(to.ino.Rev) || epoch.IsValid() && epoch.Uint() > uint64(to.view.Epoch)
}

// awaitBack returns when the node is a member: the catalog answers it no earlier. If the daemon is killed before, it is an error.
func (n *simNode) awaitBack(ctx context.Context) error {
	for {
		n.sim.mu.Lock()
		away, changed := n.away, n.changed
		n.sim.mu.Unlock()
		if !away {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var awayCases = []simCase{
	{name: "last-away", ino: dsm.Inode{Size: simSize}, aways: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "auto-away", ino: dsm.Inode{Size: simSize}, aways: true, auto: true, resize: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "cut-away", ino: dsm.Inode{Size: simSize}, aways: true, resize: true, unaware: true, rules: applyRule, store: storeBytes, check: checkBytes},
	{name: "locks-away", ino: dsm.Inode{Size: simSize}, aways: true, locks: true, resize: true, rules: applyRule, store: storeBytes, check: checkBytes},
	{name: "demand-away", ino: onDemand(dsm.Inode{Size: simSize}), aways: true, resize: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "sum-away", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), aways: true, tally: intTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "sum-demand-away", ino: onDemand(sumOf(dsm.DTypeI32, dsm.ApplyAuto)), aways: true, tally: intTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "last-alone-away", ino: dsm.Inode{Size: simSize}, aways: true, alone: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "sum-alone-away", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), aways: true, alone: true, tally: intTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "round-away", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), aways: true, rounds: true, tally: intTally, rules: applyRule, store: addOnes, check: checkOnes},
	{name: "round-alone-away", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), aways: true, alone: true, rounds: true, tally: intTally, rules: applyRule, store: addOnes, check: checkOnes},
	{name: "last-away-restart", ino: dsm.Inode{Size: simSize}, aways: true, restarts: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "auto-away-restart", ino: dsm.Inode{Size: simSize}, aways: true, restarts: true, auto: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "sum-away-restart", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), aways: true, restarts: true, tally: intTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "locks-away-restart", ino: dsm.Inode{Size: simSize}, aways: true, restarts: true, locks: true, rules: applyRule, store: storeBytes, check: checkBytes},
	{name: "last-attached-away-restart", ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Apply: dsm.ApplyArrival}}, aways: true, restarts: true, attaches: true, rules: heldRule, store: storeBytes, check: checkBytes},
	{name: "max-away", ino: bestOf(dsm.MergeMax, dsm.DTypeI32, dsm.ApplyAuto), aways: true, careful: true, rules: applyRule, store: findBest, check: checkBest},
}

func init() { simCases = append(simCases, awayCases...) }
