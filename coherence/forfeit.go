package coherence

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// The locks of a node that is evicted are gone, and its programs do not know. What they have stored under them is not merged with what others store under
// the same locks after that: the two make no sense together, also where they touch different elements. So it is forfeit, as a whole: the working copy goes back to the base
// copy, and the values are kept as conflicts. The same is done with what these programs store until they have closed the file.
//
// What a home had merged before stays: it was seen by others.
//
// It is the same if the daemon was killed, and the cluster has evicted the node before another daemon followed. That one takes back at once what was sent. The rest waits until
// it knows again what the kernel has (Resumed), which is told then.

// forfeitsLocked reports whether what programs store is forfeit.
func (a *Area) forfeitsLocked() bool {
	lost := a.node.cfg.LocksLost
	return lost != nil && a.mu.replica.subscribed && a.mu.ino.Spec.Forfeits() && lost(a.id)
}

// Forfeit takes back what programs have stored under locks that the cluster had dropped. It is called before LocksLost says that they have closed
// the file, and does nothing if it does not say that they believe to have locks.
func (a *Area) Forfeit() {
	a.collect()
	a.step(func() {
		if a.forfeitsLocked() {
			a.forfeitLocked()
			a.startPublicationsLocked() // calls may wait for what was taken back
		}
	})
}

// takeBackAllLocked takes back what was sent and is not answered. What programs have stored is dirty then.
func (a *Area) takeBackAllLocked() {
	for _, e := range a.busyExtentsLocked() {
		x := a.mu.replica.extents[e]
		if x.pub != nil && x.pub.round == (dsm.RoundID{}) {
			a.takeBackLocked(e, x, x.pub)
		}
	}
}

// forfeitLocked takes back all stores that are not merged at a home.
func (a *Area) forfeitLocked() {
	a.takeBackAllLocked()
	if a.forfeitDirtyLocked() { // else the log would be told of what was lost before once more
		a.tellOfConflictsLocked("programs of this node have stored under locks that the cluster had dropped: that is not published")
	}
}

// forfeitDirtyLocked takes back what is not sent. It reports whether there was any.
func (a *Area) forfeitDirtyLocked() (any bool) {
	for _, e := range a.busyExtentsLocked() {
		x := a.mu.replica.extents[e]
		pages := x.dirty.And(x.have)
		any = any || !pages.Empty() || len(x.stash) > 0
		for i := range pages.All() {
			a.forfeitPageLocked(e, x, i)
		}
		x.dirty = x.dirty.Minus(pages)
		a.mu.replica.published(e, pages)
		a.changedLocked(e, pages, nil)
		for _, i := range slices.Sorted(maps.Keys(x.stash)) {
			for _, s := range x.stash[i] {
				a.keepLocked(s.off, s.data, nil)
				if s.way != writtenPast {
					a.mu.cached.NotTaken(s.off, s.data)
				}
			}
		}
		x.stash = nil
	}
	a.endComparisonsLocked()
	return any
}

// endComparisonsLocked has the comparisons end of extents of which nothing is left that this node has stored: comparedAllLocked does it in this step. A home may have merged a store
// that is forfeit, and not have answered. Compared with that, what programs store when they have opened the file again would be in conflict, and its publish come to nothing.
func (a *Area) endComparisonsLocked() {
	if !a.mu.absence.compares() {
		return
	}
	for e := range a.mu.absence.returning {
		if x := a.mu.replica.extents[e]; x == nil || x.dirty.Empty() && x.pub == nil {
			a.mu.absence.set(e, answered)
		}
	}
}

func (a *Area) forfeitPageLocked(e dsm.ExtentIndex, x *replicaExtent, i int) {
	p := page(e, i)
	var mine, base, own [dsm.PageSize]byte
	merge.Snapshot(mine[:], a.bytesOfLocked(p))
	if copy(base[:], a.mu.mem.Base(p)); x.unmerged(i) { // a part of a round is
		x.accounted(base[:], i, a.mu.mem.Base(p))
	}
	own = base
	a.mu.cached.BeforeMerge(p)
	defer a.mergesLocked(e, x, i, true)()
	for _, run := range a.mu.kernel.Differing(p, base[:], mine[:]) {
		from, to := run.Off, run.Off+run.Len
		a.keepLocked(int64(p)*dsm.PageSize+from, mine[from:to], base[from:to])
		copy(own[from:to], mine[from:to])
	}
	a.mergeLocked(a.mu.kernel, x, i, own[:], base[:], a.mu.mem.Base(p))
}
