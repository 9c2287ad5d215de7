package coherence

import (
	"bytes"
	"context"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// stashed is a store to a page that is not here. It takes effect when the page comes.
type stashed struct {
	off  int64
	data []byte
	way  way
}

// stashLocked keeps a store to one page until the page is here, and asks for the page.
func (a *Area) stashLocked(x *replicaExtent, s stashed) {
	p := dsm.PageIndex(s.off / dsm.PageSize)
	_, i := p.Extent()
	if x.stash == nil {
		x.stash = make(map[int][]stashed)
	}
	if s.way != writtenPast {
		a.mu.cached.Expect(p)
	}
	a.busyLocked(x.index, x)
	x.stash[i] = append(x.stash[i], s)
	a.fetchLocked(s.off, len(s.data))
}

// stashValidLocked keeps stores to a mapping of one page, but for those to a part of the page that another node has truncated: see pages.Cached.Void. That is known
// only now, not when the page comes.
func (a *Area) stashValidLocked(x *replicaExtent, data []byte, off int64) {
	from, to := a.mu.cached.Void(dsm.PageIndex(off / dsm.PageSize))
	lo := int(off % dsm.PageSize)
	from, to = min(max(from-lo, 0), len(data)), min(max(to-lo, 0), len(data))
	if from < to {
		a.mu.cached.NotTaken(off+int64(from), data[from:to])
	} else {
		from, to = 0, 0
	}
	for _, s := range []stashed{{off, data[:from], writtenBack}, {off + int64(to), data[to:], writtenBack}} {
		if len(s.data) > 0 {
			s.data = bytes.Clone(s.data)
			a.stashLocked(x, s)
		}
	}
}

// awaitUnstashed returns when none of the stores to [off, off+n) waits for its page, if another daemon may follow this one: that does not know of them, and the kernel asks it only for what was not answered. If the home is gone, or when ctx ends, it
// returns all the same.
func (a *Area) awaitUnstashed(ctx context.Context, off int64, n int) {
	waits := false
	if a.node.cfg.Store != nil {
		a.note(func() { waits = a.mu.mem != nil && a.mu.mem.Outlives() && a.stashedLocked(off, n) })
	}
	if !waits {
		return
	}
	err := a.awaitHomes(ctx, "write", func() bool { return !a.stashedLocked(off, n) }, func() dsm.NodeID { return a.deadForLocked(off, int64(n)) })
	if err != nil {
		a.node.cfg.Log.Debug("a write(2) is answered before its pages are here", "area", a.id, "offset", off, "err", err)
	}
}

// stashedLocked reports whether stores to [off, off+n) wait for their pages.
func (a *Area) stashedLocked(off int64, n int) bool {
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+int64(n); e++ {
		x := a.mu.replica.extents[e]
		if x == nil || len(x.stash) == 0 {
			continue
		}
		for i := range pagesOf(e, off, n).All() {
			if len(x.stash[i]) > 0 {
				return true
			}
		}
	}
	return false
}

// unstashLocked carries out the stores that waited for pages.
func (a *Area) unstashLocked(e dsm.ExtentIndex, came dsm.PageSet) {
	x := a.extentLocked(e)
	if len(x.stash) == 0 {
		return
	}
	for i := range came.All() {
		for _, s := range x.stash[i] {
			_ = a.storeHereLocked(s.data, s.off, s.way, true) // it is not refused
		}
		delete(x.stash, i)
	}
}

// shrinkStashLocked follows a shrink. What lies past the end is dropped at once, because the area may have grown again when the page
// comes. The page cache still has it: the ledger is told, or what the kernel writes back later would count as stored again.
func (a *Area) shrinkStashLocked(x *replicaExtent, size int64) {
	for _, i := range slices.Sorted(maps.Keys(x.stash)) { // in order: runs repeat from their seed
		for k := range x.stash[i] {
			s := &x.stash[i][k]
			room := max(size-s.off, 0)
			if int64(len(s.data)) <= room {
				continue
			}
			if s.way != writtenPast {
				a.mu.cached.NotTaken(s.off+room, s.data[room:])
			}
			s.data = s.data[:room]
		}
		x.stash[i] = slices.DeleteFunc(x.stash[i], func(s stashed) bool { return len(s.data) == 0 })
		if len(x.stash[i]) == 0 {
			delete(x.stash, i)
		}
	}
}
