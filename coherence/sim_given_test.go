package coherence

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// gift is what a member of a group has handed over for a round: 1 for an element of its own in a page.
type gift struct {
	node int
	page dsm.PageIndex
	sure bool // it is in the round; else it may have been dropped
}

// give hands something over for the next round. It reports whether it has.
func (r *simRun) give(n *simNode, m *simMember) bool {
	if r.kind.ino.Layout.DType.Size() != 4 {
		return false
	}
	p, id := r.aHot(), r.group.id()
	if c := n.area.mu.replica.contribution; c != nil && (c.id != id || c.left) { // the call may wait for its end, and the round be another one then
		return false
	}
	var one [4]byte
	if binary.LittleEndian.PutUint32(one[:], 1); r.kind.ino.Layout.DType == dsm.DTypeF32 {
		binary.LittleEndian.PutUint32(one[:], math.Float32bits(1))
	}
	g := &gift{node: n.i, page: p}
	r.group.gifts = append(r.group.gifts, g)
	n.giving = true
	n.ask("accumulate", func(ctx context.Context) error {
		return accumulate(ctx, n.area, id, int64(p)*dsm.PageSize+givenAt(n.i), one[:])
	}, func(err error) {
		n.giving = false
		if err == nil && !n.dying && id == r.group.id() {
			m.gifts = append(m.gifts, g)
		}
	})
	return true
}

// givenAt is where in a page the element of a node is, behind those that programs store to.
func givenAt(node int) int64 { return int64(4 * (hotElems + node)) }

// checkGifts: what was handed over is in the area once if its round has ended with it, and at most once otherwise.
func (r *simRun) checkGifts(n *simNode) {
	type place struct {
		page dsm.PageIndex
		node int
	}
	sure, most := make(map[place]int), make(map[place]int)
	for _, g := range r.group.gifts {
		at := place{g.page, g.node}
		if most[at]++; g.sure {
			sure[at]++
		}
	}
	for at, most := range most {
		w, _ := n.page(at.page)
		b := binary.LittleEndian.Uint32(w[givenAt(at.node):])
		got := int(int32(b))
		if r.kind.ino.Layout.DType == dsm.DTypeF32 {
			got = int(math.Float32frombits(b))
		}
		if got < sure[at] || got > most {
			r.t.Fatalf("node %d page %d: %d of what node %d has handed over, want %d to %d", n.i, at.page, got, at.node, sure[at], most)
		}
	}
}

// hasGiven reports whether a program of the node has handed something over for the round under way, and so keeps the area open.
func (r *simRun) hasGiven(n *simNode) bool {
	m := r.group.members
	return m != nil && len(m[n.i].gifts) > 0
}
