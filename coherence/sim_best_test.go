package coherence

import (
	"encoding/binary"
	"math"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// bestOf is an area whose elements end as the smallest or largest value that any program has found for them.
func bestOf(rule dsm.MergeRule, t dsm.DType, apply dsm.Apply) dsm.Inode {
	return dsm.Inode{Size: simSize, Spec: dsm.Spec{Merge: rule, DType: t, Apply: apply}, Layout: dsm.Layout{DType: t}}
}

// better returns which of two values the rule of the run keeps, by the definition.
func (r *simRun) better(a, b uint32) uint32 {
	spec := r.kind.ino.Spec
	if spec.DType == dsm.DTypeI32 {
		if (int32(b) < int32(a)) == (spec.Merge == dsm.MergeMin) {
			return b
		}
		return a
	}
	x, y := float64(math.Float32frombits(a)), float64(math.Float32frombits(b))
	switch {
	case math.IsNaN(x):
		return a
	case math.IsNaN(y):
		return b
	case spec.Merge == dsm.MergeMin && math.Min(x, y) != x, spec.Merge == dsm.MergeMax && math.Max(x, y) != x:
		return b
	}
	return a
}

// find draws a value for an element. In time they become better, so that there is always something to change; one element becomes NaN.
func (r *simRun) find(i int) uint32 {
	r.found++
	v := r.rng.IntN(2000) + r.found/4
	if r.kind.ino.Spec.Merge == dsm.MergeMin {
		v = -v
	}
	if r.kind.ino.Spec.DType == dsm.DTypeI32 {
		return uint32(int32(v))
	}
	if i == hotElems-1 && r.rng.IntN(50) == 0 {
		return 0x7fc00000
	}
	return math.Float32bits(float32(v) / 8)
}

// findBest has a program look for better values: it loads elements, and later stores back the better one of what it has loaded and what it
// has found, though others may have come in between. Nothing else keeps two programs of a node from undoing what the other one
// has just stored to their one memory, so none stores to elements that another one has loaded. Nor does it where some have memory of their own
// and others do not, as when the rule has changed meanwhile: what the first have stored gets to the memory of the others at any time.
func findBest(r *simRun, n *simNode) {
	prog := n.aProgram()
	if prog == nil || prog.syncing > 0 {
		return
	}
	if t := prog.temporaries; t != nil {
		if !prog.hasDraft() && t.drafted != n.drafted {
			prog.temporaries = nil
			return
		}
		if prog.hasDraft() {
			n.drafted++
		}
		if b := n.memory(prog, t.page, true); b != nil {
			prog.temporaries = nil
			for i, v := range t.values {
				is := r.better(uint32(v), r.find(i))
				at := int(t.page)*hotElems + i
				binary.LittleEndian.PutUint32(b[4*i:], is)
				r.best[at] = r.better(r.best[at], is)
				r.finds(n, at, is)
			}
		}
		return
	}
	t := &temporaries{page: r.aHot(), drafted: n.drafted}
	for _, other := range n.programs() {
		if other != prog && (other.temporaries != nil && other.temporaries.page == t.page || other.hasDraft() != prog.hasDraft()) {
			return
		}
	}
	if b := n.memory(prog, t.page, false); b != nil {
		for i := range t.values {
			t.values[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
		}
		prog.temporaries = t
	}
}

func checkBest(r *simRun, n *simNode) {
	for _, p := range r.hotPages() {
		w, c := n.page(p)
		for i := range hotElems {
			want := r.best[int(p)*hotElems+i]
			if r.crash.crashed > 0 {
				want = r.bestLeft(n, int(p)*hotElems+i, binary.LittleEndian.Uint32(w[4*i:]))
			}
			work, got := binary.LittleEndian.Uint32(w[4*i:]), binary.LittleEndian.Uint32(c.data[4*i:])
			if work != want || got != want {
				r.t.Fatalf("node %d page %d element %d: working %#x, in the page cache %#x, want %#x", n.i, p, i, work, got, want)
			}
		}
	}
}

// addsRule is applyRule that also changes between the rules that add.
func addsRule(r *simRun, ino *dsm.Inode) {
	applyRule(r, ino)
	ino.Spec.Merge = []dsm.MergeRule{dsm.MergeSum, dsm.MergeMean}[r.rng.IntN(2)]
}

// hasDraft reports whether the program has memory of its own.
func (p *simProgram) hasDraft() bool { return p.ownMemory() != nil }

// ownMemory is the draft that it stores into, nil if it has none.
func (p *simProgram) ownMemory() *draft {
	if p == nil || p.at == nil {
		return nil
	}
	return p.at.draft
}
