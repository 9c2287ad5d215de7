package coherence

import (
	"fmt"
	"maps"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// checkStandbys: at rest every backup in sync has what its home has: bytes, versions, and whose publishes they contain.
func (s *sim) checkStandbys() {
	v := s.lastView()
	for e := range dsm.ExtentIndex(s.lastInode().Spec.CoveringExtents(s.lastInode().Size)) {
		row := s.rowOf(v, e)
		for id := range row.InSync() {
			if row.Source != 0 || v.IsGone(row.Primary) {
				continue
			}
			home, backup := s.nodes[row.Primary-1], s.nodes[id-1]
			if bad := home.standbyProblem(backup, e); bad != "" {
				s.explain()
				s.t.Fatalf("extent %d: its home is node %d, and node %d a backup: %s", e, home.i, backup.i, bad)
			}
		}
	}
}

// standbyProblem returns how what a backup has of an extent differs from what this node has as its home.
func (n *simNode) standbyProblem(backup *simNode, e dsm.ExtentIndex) string {
	a, b := n.node.known(simArea), backup.node.known(simArea)
	if a == nil || a.mu.home.extents[e] == nil {
		return ""
	}
	x := a.mu.home.extents[e]
	if b == nil || b.mu.standby == nil || b.mu.standby.extents[e] == nil {
		return fmt.Sprintf("it has nothing of it, and the home has version %d", x.version)
	}
	s := b.mu.standby.extents[e]
	if s.version != x.version && !a.versionedLocked() {
		return fmt.Sprintf("it has version %d, not %d", s.version, x.version)
	}
	if !sameSeqs(s.writers, x.writers) || !sameSeqs(s.parts, x.parts) {
		return fmt.Sprintf("it has publishes %v and parts %v, not %v and %v", s.writers, s.parts, x.writers, x.parts)
	}
	for i := range dsm.ExtentPages {
		v := dsm.Version(0)
		if i < len(x.pages) {
			v = x.pages[i]
		}
		p := page(e, i)
		switch {
		case s.pages[i] != v:
			return fmt.Sprintf("page %d: it has version %d, not %d", p, s.pages[i], v)
		case v != 0 && string(b.mu.standby.store.Look(p)) != string(a.mu.mem.Home(p)):
			b, h := b.mu.standby.store.Look(p), a.mu.mem.Home(p)
			i := 0
			for b[i] == h[i] {
				i++
			}
			return fmt.Sprintf("page %d differs in version %d: it has %d at %d, not %d", p, v, b[i], i, h[i])
		}
	}
	if newest, _ := a.newestLocked(); a.versionedLocked() && b.mu.standby.whole.Version != newest.Version {
		return fmt.Sprintf("its newest whole version is %d, not %d", b.mu.standby.whole.Version, newest.Version)
	}
	return ""
}

// sameSeqs compares the newest publish of each node; 0 is none.
func sameSeqs(a, b map[dsm.NodeID]dsm.Seq) bool {
	some := func(m map[dsm.NodeID]dsm.Seq) map[dsm.NodeID]dsm.Seq {
		m = maps.Clone(m)
		maps.DeleteFunc(m, func(_ dsm.NodeID, k dsm.Seq) bool { return k == 0 })
		return m
	}
	return maps.Equal(some(a), some(b))
}

// checkShown: what a node has of an extent, every backup has that could take over. At any time. Not so in versioned areas, of which an owner shows its own programs
// a version at once, and where each node makes of a shrink what is a version at the home.
func (s *sim) checkShown() {
	if s.lastInode().Spec.Mode == dsm.ModeVersioned {
		return
	}
	v := s.lastView()
	for e := range dsm.ExtentIndex(s.lastInode().Spec.CoveringExtents(s.lastInode().Size)) {
		row := s.rowOf(v, e)
		for id := range row.InSync() {
			backup := s.nodes[id-1].node.known(simArea)
			if row.Source != 0 || !row.Settled() || s.nodes[id-1].dead || s.nodes[id-1].behindCatalog() || backup == nil {
				continue
			}
			for _, n := range s.nodes {
				if n.dead || n.away || n.cut || n.area == nil || n.behindCatalog() {
					continue
				}
				if shown, has := n.area.shows(e), backup.hasAsBackup(e); shown > has {
					s.explain()
					s.t.Fatalf("node %d shows version %d of extent %d, and backup %d has %d", n.i, shown, e, id-1, has)
				}
			}
		}
	}
}

func (a *Area) shows(e dsm.ExtentIndex) (v dsm.Version) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.mu.replica.extents[e]; x != nil {
		v = x.version
	}
	return v
}

func (a *Area) hasAsBackup(e dsm.ExtentIndex) dsm.Version {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.standbyVersionLocked(e)
}
