package coherence

import (
	"context"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// In a run with deaths there is one more node, without programs. Slots move to it, and in the midst of that it dies. What it may have
// served is lost, and calls that need that fail; then the area is cut to nothing, and grows again. All else must be as if it had never
// been there.

// withTaker makes the last node one that has no programs, and no slot yet.
func (s *sim) withTaker() {
	s.taker = s.nodes[len(s.nodes)-1]
	view := s.lastView()
	for sl := range view.Slots {
		if row := &view.Slots[sl]; row.Primary == s.taker.id {
			row.Primary = s.nodes[0].id
		}
	}
}

// programNodes are the nodes with programs.
func (s *sim) programNodes() []*simNode {
	if s.taker == nil {
		return s.nodes
	}
	return s.nodes[:len(s.nodes)-1]
}

// kill ends a node. Nobody says so to the others, but that their sessions with it break.
func (s *sim) kill(n *simNode) {
	s.mu.Lock()
	n.dead = true
	for i := range s.nodes {
		delete(s.net, link{i, n.i})
		delete(s.net, link{n.i, i})
	}
	s.mu.Unlock()
	n.node.Close()
	for _, o := range s.nodes {
		if o != n {
			o.reset(n)
		}
	}
	s.rest()
}

// bury marks a node as gone.
func (s *sim) bury(n *simNode) {
	n.gone = true
	s.changeView(func(v *dsm.View) {
		v.Members[n.i].Gone, v.Members[n.i].Leaving = true, true
	})
}

// die takes the death of the taker one step further: it ends while slots are on their way to it, the catalog hears of it, and what it has
// taken along is cut off. It reports whether there was anything to do.
func (r *simRun) die(now bool) bool {
	n := r.taker
	v := r.lastView()
	with := func(f func(row dsm.SlotHome) bool) (any bool) {
		for e := range dsm.ExtentIndex(r.lastInode().Spec.CoveringExtents(r.fullSize())) {
			any = any || f(*r.rowOf(v, e))
		}
		return any
	}
	moving := func(row dsm.SlotHome) bool { return row.Primary == n.id && row.Source != 0 }
	lost := func(row dsm.SlotHome) bool { return row.Primary == n.id && row.Source == 0 || row.Source == n.id }
	switch {
	case !n.dead:
		if !now && !with(moving) {
			return false
		}
		r.kill(n)
	case !n.gone:
		r.bury(n)
	case with(lost):
		r.lost++
		r.resize(0)
		r.changeView(func(v *dsm.View) {
			for _, row := range v.Rows() {
				switch {
				case !lost(*row):
				case row.Primary == n.id:
					*row = dsm.SlotHome{Primary: r.nodes[0].id, Epoch: v.Epoch}
				default:
					row.Source = 0
				}
			}
		})
		r.resize(r.fullSize())
	default:
		return false
	}
	return true
}

// endDeath has the taker die to the end, if there is one.
func (r *simRun) endDeath() {
	for more := r.taker != nil; more; more = r.die(true) {
		for moved := true; moved; {
			r.drain()
			moved = false
			for _, n := range r.nodes {
				for ; n.behindCatalog(); moved = true {
					n.apply()
				}
			}
		}
	}
}

// HandoverFailed commits a view in which slots are with this node again, or given up.
func (n *simNode) HandoverFailed(_ context.Context, back, lost []dsm.Slot, e dsm.Epoch) error {
	s := n.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.lastViewLocked().Clone()
	v.Epoch++
	changed := false
	for _, sl := range append(slices.Clone(back), lost...) {
		row := v.Row(sl)
		if row.Source != n.id || e < row.Epoch || !slices.Contains(deadOf(v), row.Primary) {
			continue
		}
		changed = true
		if slices.Contains(back, sl) {
			*row = dsm.SlotHome{Primary: n.id, Epoch: v.Epoch}
		} else {
			row.Source = 0
		}
	}
	if changed {
		s.log = append(s.log, entry{nil, v})
	}
	return nil
}

// BackupInSync implements View: no row has backups.
func (n *simNode) BackupInSync(context.Context, dsm.NodeID, []dsm.Slot, dsm.Epoch) error { return nil }

// BackupLags implements View.
func (n *simNode) BackupLags(context.Context, dsm.NodeID, []dsm.Slot, dsm.Epoch) error { return nil }

// MayServe implements View.
func (n *simNode) MayServe() bool { return true }
