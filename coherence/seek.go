package coherence

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// SEEK_DATA and SEEK_HOLE: the homes say which pages have data, that is, bytes that are not all zero. So all nodes see the
// same. Each node adds the pages that it has stored to and not published, even if the stores were zeroes: a hole may be
// reported as data, but never data as a hole.

// seekFirst is how many extents the first Survey asks for. Each further one asks for four times as many, up to subscribePart.
const seekFirst = 64

// Seek returns the first offset from off on that has data or, with hole, that has none. The end of the area counts as a
// hole. ok is false if off is not before the end, or if no data follows.
func (a *Area) Seek(ctx context.Context, off int64, hole bool) (at int64, ok bool, err error) {
	a.collect()
	for from, n := dsm.ExtentOf(off), dsm.ExtentIndex(seekFirst); ; from, n = from+n, min(4*n, subscribePart) {
		data, size, err := a.dataLocal(ctx, from, from+n)
		switch {
		case err != nil:
			return 0, false, err
		case off >= size:
			return 0, false, nil
		}
		if at, ok := find(data, from, from+n, off, size, hole); ok {
			return at, true, nil
		}
		if int64(from+n)*dsm.ExtentSize >= size {
			return size, hole, nil
		}
	}
}

// find is Seek within the extents [from, to). data has the pages with data.
func find(data map[dsm.ExtentIndex]dsm.PageSet, from, to dsm.ExtentIndex, off, size int64, hole bool) (at int64, ok bool) {
	for e := from; e < to && int64(e)*dsm.ExtentSize < size; e++ {
		set := data[e]
		if hole {
			set = dsm.AllPages.Minus(set)
		}
		start := int64(e) * dsm.ExtentSize
		if i := set.Next(int(max(off-start, 0) / dsm.PageSize)); i < dsm.ExtentPages {
			at = max(start+int64(i)*dsm.PageSize, off)
			return min(at, size), hole || at < size
		}
	}
	return 0, false
}

// dataLocal returns which pages of the extents [from, to) have data, and the size of the area. It notes which pages are unpublished
// before the homes are asked. If it noted them later, it could miss a page that a home merges after its answer.
func (a *Area) dataLocal(ctx context.Context, from, to dsm.ExtentIndex) (data map[dsm.ExtentIndex]dsm.PageSet, size int64, err error) {
	q := &surveying{from: from, to: to}
	own := make(map[dsm.ExtentIndex]dsm.PageSet)
	err = a.survey(ctx, q, func() {
		for e := from; e < to; e++ {
			if x := a.mu.replica.extents[e]; x != nil {
				own[e] = x.unpublished()
			}
		}
	}, func() {
		data, size = q.data, a.mu.ino.Size
		for e, set := range own {
			data[e] = data[e].Or(set)
		}
		for e := range data {
			data[e] = data[e].And(a.withinLocked(e))
		}
	})
	return data, size, err
}

// unpublished returns the pages with stores that the home may not have merged.
func (x *replicaExtent) unpublished() dsm.PageSet {
	set := x.dirty
	if x.pub != nil {
		set = set.Or(x.pub.sent)
	}
	for _, pub := range x.parts {
		set = set.Or(pub.sent)
	}
	for i := range x.stash {
		set.Add(i)
	}
	return set
}

// Recounts reports whether publishes of this node may have changed the number of pages with data since the last call, or those of
// other nodes the number that Counted has returned.
func (a *Area) Recounts() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.mu.recount
	a.mu.recount = false
	return r
}
