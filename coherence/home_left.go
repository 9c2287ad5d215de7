package coherence

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/pages"
)

// What the home of an extent knows of it outlives the daemon with its bytes (pages.Keep): which publishes they contain. So where nobody else has all of a slot, the next daemon can go on as its home, and a publish that is sent
// again counts once.

// beginAddingLocked is called before something is merged into an extent. It reports whether that must not be done twice: then the next daemon takes it back if this one is killed before addedLocked.
func (a *Area) beginAddingLocked(e dsm.ExtentIndex) (adds bool) {
	if adds = a.node.cfg.Store != nil && a.mu.kernel.Adds(); adds {
		a.mu.mem.BeginAdding(e)
	}
	return adds
}

// addedLocked has the next daemon know which publishes of some nodes an extent contains. It is called when they are merged, and before they are answered. adds is what beginAddingLocked has said.
func (a *Area) addedLocked(e dsm.ExtentIndex, x *homeExtent, adds bool, from ...dsm.NodeID) {
	if adds {
		by := make([]pages.AddedBy, len(from))
		for i, n := range from {
			by[i] = pages.AddedBy{Writer: n, Seq: x.writers[n], Part: x.parts[n]}
		}
		a.mu.mem.Added(by)
		defer a.mu.mem.EndAdding()
	}
	for _, n := range from {
		a.keepMergedLocked(e, x, n)
	}
}

// keepMergedLocked has the next daemon know which publishes of a node an extent contains.
func (a *Area) keepMergedLocked(e dsm.ExtentIndex, x *homeExtent, writer dsm.NodeID) {
	if a.node.cfg.Store == nil {
		return
	}
	m := x.kept[writer]
	if m == nil {
		m = a.node.cfg.Store.KeepMerged(a.id, e, writer)
		x.kept[writer] = m
	}
	m.Set(x.writers[writer], x.parts[writer])
}

// keepExtentLocked has the next daemon know that the node has state of an extent as its home, also if its bytes are all zero and nobody is left who has published to it: what others have of it may be older.
func (a *Area) keepExtentLocked(e dsm.ExtentIndex, x *homeExtent) {
	if s := a.node.cfg.Store; s != nil {
		x.kept = map[dsm.NodeID]*pages.Merged{a.node.cfg.Self: s.KeepMerged(a.id, e, a.node.cfg.Self)}
	}
}

// ledger is what the next daemon is told of slots. The lock is held while that is changed.
type ledger struct {
	lockrank.Mutex
	left dsm.Ledger // what the daemon before had all of, as the home, when Resume began; it does not change
}

// keepServed has the next daemon know of which slots this node has all: those of which it is the home, and those that it hands over.
func (n *Node) keepServed() {
	if n.cfg.Store == nil {
		return
	}
	for {
		v := n.cfg.View.Current()
		due := n.dueSlots()
		if n.inLedger(v, func(s *pages.Keep) { n.enter(s, v, due) }) {
			return
		}
	}
}

// inLedger changes what the next daemon is told of slots, by what a view says. It returns false, and has changed nothing, if there is a newer one: so the changes are in the order of the views.
func (n *Node) inLedger(v *dsm.View, change func(s *pages.Keep)) bool {
	n.ledger.Lock()
	defer n.ledger.Unlock()
	if n.cfg.View.Current() != v {
		return false
	}
	if s := n.cfg.Store; s != nil {
		change(s)
	}
	return true
}

// enter enters the slots of a view. Those that areas have to themselves come first, and then which view it is: from then on the slot that such an area shares says nothing of it (dsm.Ledger.Has).
func (n *Node) enter(s *pages.Keep, v *dsm.View, due map[dsm.Slot]bool) {
	kept, self := s.Served(), n.cfg.Self
	var shared []func()
	for slot, row := range v.Rows() {
		name, since := v.NameOf(slot), row.Had
		switch {
		case row.Holder() == self:
		case row.Primary == self:
			since = row.Epoch
		default:
			continue
		}
		switch x, ok := kept[name]; {
		case due[slot] || row.Holder() != self && !n.slotReady(slot, row):
			if !ok || x.Since != since { // else it is ready now
				continue
			}
		case slot < dsm.Slots:
			shared = append(shared, func() { s.Serves(name, since) })
		default:
			s.Serves(name, since)
		}
		delete(kept, name)
	}
	s.Serves(dsm.LastEntered, v.Epoch)
	delete(kept, dsm.LastEntered)
	for _, serves := range shared {
		serves()
	}
	for name := range kept {
		s.ServesNot(name)
	}
}

// dueSlots returns the slots of which this node takes over something that it has not got the memory for.
func (n *Node) dueSlots() map[dsm.Slot]bool {
	due := make(map[dsm.Slot]bool)
	for _, a := range n.all() {
		a.note(func() {
			if !a.dueLocked() {
				return
			}
			for e, x := range a.mu.standby.extents {
				if x.due {
					due[a.slotLocked(e)] = true
				}
			}
		})
	}
	return due
}

// Served returns the slots that this node, or the daemon before, has all of, as their home.
func (n *Node) Served() dsm.Ledger { return n.cfg.Store.Served() }

// staysHomeLocked reports whether this node goes on as the home of an extent, with what the daemon before had. The next home may be killed before it has heard that it has all: so this node stays it as the source, too.
func (a *Area) staysHomeLocked(e dsm.ExtentIndex) bool {
	slot, self := a.slotLocked(e), a.node.cfg.Self
	return a.mu.view.Row(slot).Holder() == self && a.node.ledger.left.Has(a.mu.view, self, slot, a.mu.ino.Spec.SlotOf(a.id, e)).Served
}

// staysAHomeLocked reports whether that is so of any extent.
func (a *Area) staysAHomeLocked() bool {
	for e := range dsm.ExtentIndex(max(a.coveringLocked(), 1)) { // the first one has the newest version, also if nothing is left
		if a.staysHomeLocked(e) {
			return true
		}
	}
	return false
}

// resumeHomesLocked makes the node the home again of what the base copy has of the extents of which it stays the home. No program could store to the area.
func (a *Area) resumeHomesLocked(mem *pages.Area, whole dsm.Version) {
	mem.SetDrops(&a.mu.drops)
	a.mu.mem, a.mu.cached = mem, pages.NewCached(mem)
	a.followedLocked()
	for e := range dsm.ExtentIndex(a.extentsLocked()) {
		if !a.staysHomeLocked(e) {
			a.forgetLocked(e)
		}
	}
	a.homesLeftLocked(whole)
	a.freeIfUnusedLocked()
}

// homesLeftLocked makes the node the home again of the extents of which it stays that. All their pages have one new version: what was pushed to whom is not known any more. In a versioned area
// they have the last whole one.
func (a *Area) homesLeftLocked(whole dsm.Version) {
	had := make(map[dsm.ExtentIndex]dsm.PageSet) // the others have no memory, and are zero
	a.mu.mem.Data(func(p dsm.PageIndex) {
		e, i := p.Extent()
		s := had[e]
		s.Add(i)
		had[e] = s
	})
	merged := a.node.cfg.Store.MergedOf(a.id)
	for _, m := range merged {
		if _, ok := had[m.Extent()]; !ok {
			had[m.Extent()] = dsm.PageSet{}
		}
	}
	v := whole
	if !a.versionedLocked() || v == 0 {
		v = a.drawLocked()
	}
	for e, pages := range had {
		if int(e) >= a.extentsLocked() || !a.staysHomeLocked(e) {
			continue
		}
		x := a.homeExtentLocked(e)
		x.version = v
		for i := range a.withinLocked(e).All() {
			if a.mu.home.setVersion(x, i, v); pages.Has(i) {
				a.lookAtHomeLocked(e, x, i)
			}
		}
	}
	for _, m := range merged {
		x := a.mu.home.extents[m.Extent()]
		if x == nil || a.leftLocked(m.Writer(), 0) {
			m.Drop()
			continue
		}
		x.kept[m.Writer()] = m
		x.writers[m.Writer()], x.parts[m.Writer()] = m.Get()
	}
}

// dropMerged forgets what the daemon before knew as the home of an area.
func (n *Node) dropMerged(id dsm.AreaID) {
	for _, m := range n.cfg.Store.MergedOf(id) {
		m.Drop()
	}
}

// forgetWriter forgets which publishes of a node the extent contains.
func (x *homeExtent) forgetWriter(n dsm.NodeID) {
	delete(x.writers, n)
	delete(x.parts, n)
	x.kept[n].Drop()
	delete(x.kept, n)
}

// forgetWriters forgets all of them: the bytes are another home's.
func (x *homeExtent) forgetWriters() {
	for _, m := range x.kept {
		m.Drop()
	}
	x.kept = nil
}
