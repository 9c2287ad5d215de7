package coherence

import (
	"encoding/binary"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// temporaries are what a program has loaded from a page and not stored back yet: the program is between
// the load and the store of "w[:] = f(w)".
type temporaries struct {
	page   dsm.PageIndex
	values [hotElems]int32

	drafted int // simNode.drafted when they were loaded
}

// sumOfTemporaries is an area that such programs add to: a node has one that stores through the page cache, or several that
// are attached, and others that read.
var sumOfTemporaries = simCase{name: "sum-temporaries", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), careful: true,
	rules: func(r *simRun, ino *dsm.Inode) {
		ino.Spec.Apply = []dsm.Apply{dsm.ApplyAuto, dsm.ApplySync}[r.rng.IntN(2)]
	},
	store: addTemporaries, check: checkInts}

// addTemporaries loads, or adds to what was loaded and stores it back.
func addTemporaries(r *simRun, n *simNode) {
	prog := n.aProgram()
	if prog == nil || prog.syncing > 0 {
		return
	}
	if t := prog.temporaries; t != nil {
		if b := n.memory(prog, t.page, true); b != nil {
			prog.temporaries = nil
			for i := range t.values {
				d := int32(r.rng.IntN(2000) - 1000)
				binary.LittleEndian.PutUint32(b[4*i:], uint32(t.values[i]+d))
				r.sums[int(t.page)*hotElems+i] += d
			}
		}
		return
	}
	t := &temporaries{page: r.aHot()}
	if b := n.memory(prog, t.page, false); b != nil {
		for i := range t.values {
			t.values[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
		}
		prog.temporaries = t
	}
}
