package coherence

import (
	"context"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// simScrubs are the passes of the scrub that are under way.
type simScrubs struct {
	ctx  context.Context
	end  context.CancelFunc
	busy map[*simNode]chan struct{}
}

// scrubOn has a node compare its copies at times, whatever is going on. Nothing ever differs.
func (r *simRun) scrubOn() {
	s := &r.scrubs
	if s.busy == nil {
		s.busy = make(map[*simNode]chan struct{})
		s.ctx, s.end = context.WithCancel(r.t.Context())
	}
	if n := r.aNode(); r.copies > 1 && s.busy[n] == nil && r.rng.IntN(40) == 0 {
		s.busy[n] = r.scrub(s.ctx, n, new(Scrubbed))
	}
	for n, done := range s.busy {
		select {
		case <-done:
			delete(s.busy, n)
		default:
		}
	}
	r.noDifference()
}

// scrub begins a pass.
func (r *simRun) scrub(ctx context.Context, n *simNode, found *Scrubbed) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		*found, _ = n.node.Scrub(ctx, true)
	}()
	return done
}

func (r *simRun) noDifference() {
	for _, n := range r.nodes {
		if k := n.node.stats.differed.Load(); k > 0 {
			r.explain()
			r.t.Fatalf("%d copies differ from what node %d has, it believes", k, n.i)
		}
	}
}

// endFills lets the time pass for which what fills backups gives way to publishes.
func (r *simRun) endFills() {
	for range 3 {
		r.pass(fillPause)
		r.calm()
	}
}

// checkScrub: at rest a byte that is another one in a copy is found, whichever it is, and put right. Nothing else is.
func (r *simRun) checkScrub() {
	if r.copies == 1 {
		return
	}
	r.scrubs.end()
	r.calm()
	v := r.lastView()
	for e := range dsm.ExtentIndex(r.lastInode().Spec.CoveringExtents(r.lastInode().Size)) {
		row := r.rowOf(v, e)
		for id := range row.InSync() {
			home, backup := r.nodes[row.Primary-1], r.nodes[id-1]
			if row.Source != 0 || home.dead || home.area == nil || backup.area == nil {
				continue
			}
			r.pass(scrubPatience) // what no answer came to
			if got := r.scrubbed(home); got.Differed > 0 {
				r.t.Fatalf("%d copies differ", got.Differed)
			}
			flipped := backup.flip(e, r.rng.IntN(hotBytes))
			got := r.scrubbed(home)
			if flipped && got.Differed != 1 {
				r.explain()
				r.t.Fatalf("extent %d: a byte of the copy of node %d is another, and the scrub of its home, node %d, finds %+v", e, backup.i, home.i, got)
			}
			r.calm()
			r.checkStandbys()
			for _, n := range r.nodes {
				n.node.stats.differed.Store(0)
			}
		}
	}
}

// scrubbed has a node compare all its copies.
func (r *simRun) scrubbed(n *simNode) (found Scrubbed) {
	done := r.scrub(context.Background(), n, &found)
	for {
		r.calm()
		select {
		case <-done:
			return found
		default:
			r.pass(scrubPatience)
		}
	}
}

// flip changes a byte of a copy. It returns false if that has no page within the area.
func (n *simNode) flip(e dsm.ExtentIndex, at int) bool {
	a := n.area
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.standby == nil || a.mu.standby.extents[e] == nil {
		return false
	}
	for _, i := range slices.Sorted(maps.Keys(a.mu.standby.extents[e].pages)) {
		if off := int64(page(e, i))*dsm.PageSize + int64(at); off < a.mu.ino.Size {
			a.mu.standby.store.Page(page(e, i))[at] ^= 1
			return true
		}
	}
	return false
}
