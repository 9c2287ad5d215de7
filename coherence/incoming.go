package coherence

import (
	"bytes"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// How pages that homes push come into the copies of a replica.

// installLocked puts the first bytes of a page in place. No program has seen the page yet.
func (a *Area) installLocked(e dsm.ExtentIndex, i int, n []byte, zero bool) {
	p := page(e, i)
	if zero { // the working copy is zero, but the base may be what this node had as the home
		a.mu.mem.ZeroBase(p)
		return
	}
	done := func() {}
	if a.mu.mem.HasNewest() { // the area has grown since: one copy without the other would look like a store
		done = a.mergesLocked(e, a.extentLocked(e), i, true)
	}
	copy(a.mu.mem.Working(p), n)
	a.mu.mem.SetBase(p, n)
	done()
}

// mergePageLocked brings a newer value of a page, n, from its home into the working copy. This is the three-way
// merge of the base copy, the working copy and n; with a publication under way, of the bytes that the publication
// accounts for in place of the base. If delta is not nil, it stands for n: the home's last value with delta applied, which is version v.
func (a *Area) mergePageLocked(e dsm.ExtentIndex, i int, x *replicaExtent, n []byte, delta *merge.Delta, v dsm.Version, contains contained) {
	p := page(e, i)
	mem := a.mu.mem
	a.mu.cached.BeforeMerge(p)
	h := a.mu.home.extents[e]
	own := a.isSelf(a.rowLocked(e).Primary) && h != nil && h.version == v // else the push has waited, and the home has gone on
	clean := !x.unmerged(i) && !x.dirty.Has(i) && !a.sharedLocked()       // then the working copy is the same as the base
	switch {
	case delta == nil || clean:
	case own:
		n = mem.Home(p)
	default:
		n = bytes.Clone(mem.Base(p))
		for pub := range x.publications() {
			if pub.seq <= contains.of(pub) && pub.pages.Has(i) { // the home had merged it before, and its ack was dropped
				pub.overlay(n, i)
			}
		}
		a.mu.kernel.Overlay(delta, i, n)
	}
	if clean && own {
		mem.FollowToHome(p)
		if delta != nil {
			a.mu.kernel.Overlay(delta, i, mem.Working(p))
		} else {
			copy(mem.Working(p), n)
		}
		a.mergedLocked(x, i)
		return
	}
	if !mem.Homed(e) && !a.bareLocked(p) && !x.unmerged(i) {
		switch {
		case clean && delta == nil:
			a.replaceLocked(e, x, i, n)
			return
		case a.sharedLocked() && !a.mu.absence.has(e) && a.mu.replica.writtenTo(p) == nil:
			mem.ReplaceShared(a.mu.kernel, p, n, x.keptOf(i, true))
			a.mergedLocked(x, i)
			return
		}
	}
	defer a.mergesLocked(e, x, i, true)()
	if delta != nil && clean {
		a.mu.kernel.Overlay(delta, i, mem.Working(p))
		switch {
		case mem.Homed(e): // its home was this node until just now
			mem.SetBase(p, mem.Working(p))
		case !a.bareLocked(p):
			a.mu.kernel.Overlay(delta, i, mem.OwnBase(p))
		}
		return
	}
	if x.unmerged(i) {
		var mine, incoming [dsm.PageSize]byte
		x.accounted(mine[:], i, mem.Base(p))
		copy(incoming[:], n)
		for pub := range x.publications() {
			if pub.seq <= contains.of(pub) {
				pub.pages.Remove(i) // n contains it: nothing is left to do at the ack
			} else if pub.pages.Has(i) {
				pub.overlay(incoming[:], i)
			}
			delete(pub.snap, i) // from here on the publication accounts for the new base with its overlay
		}
		a.mergeLocked(a.mu.kernel, x, i, a.mineLocked(x, i, mine[:], incoming[:]), incoming[:], n)
	} else if clean {
		copy(mem.Working(p), n)
		if a.bareLocked(p) && !mem.Homed(e) {
			return
		}
	} else {
		a.mergeLocked(a.mu.kernel, x, i, a.mineLocked(x, i, mem.Base(p), n), n, n)
	}
	mem.SetBase(p, n)
}

// mineLocked returns what page i is compared with to find what this node has stored there, which stays: see storedBaseLocked. While the extent is compared with what others have published
// in this node's absence, what was written counts only where it differs, and conflicts are kept.
func (a *Area) mineLocked(x *replicaExtent, i int, base, incoming []byte) []byte {
	if a.mu.absence.has(x.index) {
		a.mu.replica.published(x.index, dsm.Range(i, i+1))
		return a.conflictsLocked(x.index, i, base, incoming)
	}
	return a.storedBaseLocked(a.mu.kernel, page(x.index, i), base, new([dsm.PageSize]byte))
}

// mergeLocked brings the incoming bytes of page i of an extent into the working copy: see merge.Kernel. next is what the base copy becomes, and what is under way of the page is as it will be
// then. mergesLocked was called.
func (a *Area) mergeLocked(k merge.Kernel, x *replicaExtent, i int, base, incoming, next []byte) {
	p := page(x.index, i)
	if !a.sharedLocked() {
		k.Merge(p, base, a.mu.mem.Working(p), incoming, nil)
		return
	}
	a.mu.mem.MergeShared(k, p, x.keptOf(i, true), base, incoming, next)
}
