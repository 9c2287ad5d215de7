package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// IsCompared says to the next daemon that an extent is being compared with what others have published, from now until WasCompared. wins says that the values
// of this node stay where both have stored.
func (a *Area) IsCompared(e dsm.ExtentIndex, wins bool) {
	if !a.Outlives() {
		return
	}
	x, ok := a.compared[e]
	if !ok {
		if a.compared == nil {
			a.compared = make(map[dsm.ExtentIndex]frame)
		}
		x = a.frames.take() // for its tag
		a.compared[e] = x
	}
	more := uint64(0)
	if wins {
		more = 1
	}
	a.frames.tag(x, frameCompared, uint64(e), more)
}

// WasCompared takes that back.
func (a *Area) WasCompared(e dsm.ExtentIndex) {
	if a == nil {
		return
	}
	if x, ok := a.compared[e]; ok {
		delete(a.compared, e)
		a.frames.put(x)
	}
}

// Compared returns the extents that are being compared, each with wins. After TakeBoth these are those of the daemon before.
func (a *Area) Compared() map[dsm.ExtentIndex]bool {
	all := make(map[dsm.ExtentIndex]bool, len(a.compared))
	for e, x := range a.compared {
		all[e] = a.kept.store.tag(x.slab, x.i).More.Load() != 0
	}
	return all
}

// leftCompared takes over what an earlier daemon was comparing.
func (a *Area) leftCompared(left []tagged) {
	a.compared = make(map[dsm.ExtentIndex]frame, len(left))
	for _, x := range left {
		a.compared[dsm.ExtentIndex(x.arg)] = x.frame
	}
}
