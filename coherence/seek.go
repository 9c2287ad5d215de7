package coherence

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Where an area has data is what its homes say: pages whose bytes are not all zero. It is the same on every node. A node
// adds what it has stored and not published, whatever that is: data is never taken for a hole.

// seekFirst is how many extents are asked for at first; then four times as many each time, up to subscribePart.
const seekFirst = 64

// Seek returns the first offset from off on that has data or, if hole, that has none; the end of the area is a hole.
// There is none (ok is false) past the end, and where no data follows.
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

// find looks in the extents [from, to).
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

// dataLocal returns which pages of the extents [from, to) have data, and the size of the area. What this node has not published
// is noted before the homes are asked: of what is published meanwhile they know.
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

// unpublished returns the pages with stores that the home may not have.
func (x *replicaExtent) unpublished() dsm.PageSet {
	set := x.dirty
	if x.pub != nil {
		set = set.Or(x.pub.sent)
	}
	for i := range x.stash {
		set.Add(i)
	}
	return set
}

// Recounts reports whether the number of pages with data may have changed by publishes of this node since the last call.
func (a *Area) Recounts() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.mu.recount
	a.mu.recount = false
	return r
}
