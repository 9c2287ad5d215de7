package coherence

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// A publish of the owner is a round of one writer: what has changed is copied to deltas, and from there to the home's bytes. Where the home's bytes are the base copy as well, and there is no
// backup, the deltas are left out: a page that differs is copied to the home at once. What others see, and what the next daemon finds, is the same as after the round.

// versionHereLocked makes a version without deltas. It returns false, and has done nothing, where that cannot be. op is the acquire that follows.
func (a *Area) versionHereLocked() (op *acquiring, done bool) {
	busy := a.busyExtentsLocked()
	if !a.copiesHereLocked(busy) {
		return nil, false
	}
	h := &a.mu.home
	var v dsm.Version
	changed := make(map[dsm.ExtentIndex]dsm.PageSet)
	notFinite, n := 0, 0
	for _, e := range busy {
		x := a.mu.replica.extents[e]
		set := x.dirty
		x.dirty = dsm.PageSet{}
		x.started++
		x.acked = x.started
		var differ dsm.PageSet
		for i := range set.All() {
			p := page(e, i)
			a.mu.mem.PrefetchNext(e, &set, i)
			w, to := a.bytesOfLocked(p), a.mu.mem.Home(p)
			if string(w) == string(to[:len(w)]) {
				continue
			}
			if v == 0 {
				v = a.drawLocked()
				a.keepReadableLocked()
				a.changingLocked()
			}
			notFinite += a.mu.kernel.NotFiniteSince(p, to, w)
			a.historyLocked().Before(p, to)
			merge.Snapshot(to, w)
			differ.Add(i)
		}
		if differ.Empty() {
			continue
		}
		changed[e] = differ
		n += differ.Len()
		y := a.homeExtentLocked(e)
		y.version = v
		for i := range differ.All() {
			h.setVersion(y, i, v)
			had := y.data.Has(i)
			a.lookAtHomeLocked(e, y, i)
			a.mu.recount = a.mu.recount || had != y.data.Has(i)
		}
		if a.extentsLocked() == 1 {
			a.mu.counted = counted{pages: int64(y.data.Len()), known: true, taken: a.mu.counted.taken}
		}
	}
	if notFinite > 0 {
		a.foundNotFiniteLocked("a program has published numbers that are not finite", notFinite).published += uint64(notFinite)
	}
	if v != 0 {
		a.node.stats.publishes.Add(uint64(len(changed)))
		a.node.stats.publishesMerged.Add(uint64(len(changed)))
		a.node.stats.publishedBytes.Add(uint64(n) * dsm.PageSize)
		a.publishedLocked(a.node.cfg.Self, v, changed, func() {})
	}
	return a.startAcquiringLocked(&acquiring{storing: true}), true
}

// copiesHereLocked reports whether versionHereLocked can make the next version, of what is stored to the busy extents. It takes no longer than a batch of a publish.
func (a *Area) copiesHereLocked(busy []dsm.ExtentIndex) bool {
	w, mem, k := &a.mu.whole, a.mu.mem, &a.mu.kernel
	switch {
	case !a.ownedHereLocked() || a.apartLocked(0) || mem.HasTwins() || !a.newestIsHereLocked(a.node.cfg.Self):
		return false
	case w.halved || w.shrunk || w.taking || w.torn || w.coming != (VersionInfo{}):
		return false
	case len(a.mu.drafts) > 0 || a.candidateLocked() != nil: // contributeFound does more
		return false
	case a.mu.owning.ousted || a.mu.owning.lost || a.mu.owning.late || a.forfeitsLocked() || !a.mu.cached.Idle():
		return false
	case !k.Last() || k.RefusesNotFinite() || a.mu.notFinite != nil && len(a.mu.notFinite.pages) > 0:
		return false
	}
	n := 0
	for _, e := range busy {
		x := a.mu.replica.extents[e]
		lacks := x.dirty.Minus(x.have)
		n += x.dirty.Len()
		if !mem.Homed(e) || x.publishing() || x.joins || len(x.stash) > 0 || !lacks.Empty() || !x.outdated.Empty() || a.mu.absence.has(e) {
			return false
		}
	}
	return n <= publishBatch
}

// ownedHereLocked reports whether the area is whole here, is owned by this node, and nothing else makes a version of it but the call of publishVersion that is under way.
func (a *Area) ownedHereLocked() bool {
	row := a.rowLocked(0)
	return a.mu.own != 0 && a.isSelf(row.Primary) && a.node.slotReady(a.slotLocked(0), row) && a.mu.replica.subscribed && a.mu.cached != nil &&
		a.mu.whole.id == (dsm.RoundID{}) && a.mu.replica.contribution == nil && a.publishableLocked() == nil
}

// acquiredNowLocked is what follows versionHereLocked: see versionNowLocked.
func (a *Area) acquiredNowLocked(op *acquiring) (rest func(context.Context) error, err error) {
	a.localLocked()
	a.drainLocked()
	idle := a.mu.cached.Idle()
	a.drainedLocked()
	if len(op.pending) > 0 || !idle {
		return func(ctx context.Context) error { return a.finishAcquire(ctx, op, nil) }, nil
	}
	a.endAcquireLocked(op)
	return nil, nil
}
