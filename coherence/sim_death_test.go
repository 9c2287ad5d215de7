package coherence

import (
	"context"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// In a run with deaths there is one more node, without programs. Slots move to it, and in the midst of that it dies. What it may have
// served is lost, and calls that need that fail; then the area shrinks to nothing, and grows again. All else must be as if it had never
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

// programNodes are the nodes with programs, of those that live.
func (s *sim) programNodes() []*simNode {
	return slices.DeleteFunc(slices.Clone(s.nodes), func(n *simNode) bool { return n == s.taker || n.dead })
}

// aNode is one of the nodes with programs.
func (s *sim) aNode() *simNode {
	list := s.programNodes()
	return list[s.rng.IntN(len(list))]
}

// kill ends a node, and its programs. Nobody says so to the others, but that their sessions with it end. Before that they get some of what it
// has sent.
func (s *sim) kill(n *simNode) { s.killAfter(n, func(sent int) int { return s.rng.IntN(sent + 1) }) }

// killAfter is kill. keep says how many of the messages arrive that are on a link.
func (s *sim) killAfter(n *simNode, keep func(sent int) int) {
	s.mu.Lock()
	n.dead = true
	for i := range s.nodes {
		if i == n.i {
			continue
		}
		to, from := link{i, n.i}, link{n.i, i}
		k := keep(len(s.net[from]))
		dropped(s.net[to])
		dropped(s.net[from][k:])
		delete(s.net, to)
		delete(s.deaf, to)
		delete(s.deaf, from)
		s.net[from] = append(slices.Clip(s.net[from][:k]), frame{msg: sessionEnd{}})
	}
	s.mu.Unlock()
	for _, q := range s.requests {
		if q.n == n {
			q.cancel()
		}
	}
	s.rest()
	for _, prog := range n.attached {
		prog.untrack()
		prog.at.Detach()
	}
	for _, prog := range slices.Concat(n.attached, n.reading) {
		if prog.reads != nil {
			prog.reads.Detach()
		}
	}
	n.node.Close()
	n.area, n.reader, n.writer, n.attached, n.reading = nil, false, nil, nil, nil
	s.rest()
	if k := n.outstanding(); k > 0 {
		s.t.Fatalf("%d calls of node %d outlive it", k, n.i)
	}
}

// bury marks a node as gone.
func (s *sim) bury(n *simNode) {
	n.gone = true
	s.changeView(func(v *dsm.View) {
		v.Members[n.i].Gone, v.Members[n.i].Leaving = true, true
		s.takeOver(v, n.id)
	})
}

// die takes the death of the taker one step further: it ends while slots are on their way to it, the catalog hears of it, and what it has
// taken along is truncated. It reports whether there was anything to do.
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
	hit := func(row dsm.SlotHome) bool { return row.Primary == n.id && row.Source == 0 || row.Source == n.id }
	switch {
	case !n.dead:
		if !now && !with(moving) {
			return false
		}
		r.kill(n)
	case !n.gone:
		r.bury(n)
	case with(hit):
		r.takenAlong++
		r.resize(0)
		if r.rng.IntN(2) == 0 { // it grows before the catalog gives the slots to others
			r.resize(r.fullSize())
			return true
		}
		r.changeView(func(v *dsm.View) {
			for _, row := range v.Rows() {
				switch {
				case !hit(*row):
				case row.Primary == n.id:
					*row = dsm.SlotHome{Primary: r.nodes[0].id, Epoch: v.Epoch}
				default:
					row.Source = 0
				}
			}
			r.assign(v)
		})
		r.resize(r.fullSize())
	default:
		return false
	}
	return true
}

// endDeath has the taker die to the end, if there is one, and the catalog hear of all deaths.
func (r *simRun) endDeath() {
	for r.kind.crashes && r.buryOne() {
	}
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

// HandoverFailed commits a view in which slots are with this node again, or given up. Who may have served them has had its backups wait for what
// it said.
func (n *simNode) HandoverFailed(ctx context.Context, back, lost []dsm.Slot, e dsm.Epoch) error {
	s := n.sim
	if err := n.awaitBack(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.lastViewLocked().Clone()
	v.Epoch++
	changed := false
	for _, sl := range append(slices.Clone(back), lost...) {
		row := v.Row(sl)
		if row.Source != n.id || e < row.Epoch || !row.Failed(v) {
			continue
		}
		changed = true
		if slices.Contains(back, sl) {
			*row = row.CameBack(v)
		} else if !row.TakeOver(v) && v.IsGone(row.Primary) {
			row.Arrived()
		}
	}
	if changed {
		s.assign(v)
		s.log = append(s.log, entry{nil, v})
	}
	return nil
}
