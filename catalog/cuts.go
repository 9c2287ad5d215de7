package catalog

import (
	"fmt"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// cut is a shrink of a file, for nodes that get the catalog as a snapshot. Such a node sees the last size only, and what it has past the
// smallest size since is not in the file any more.
type cut struct {
	Rev  dsm.Generation // the index of the shrink
	Size int64          // to which
}

// maxCuts bounds inode.cuts. A file needs many only if each shrink is to more than the one before, as when a program reserves room each time
// that it appends.
const maxCuts = 64

// addCut records a shrink. Earlier ones to no less are contained in it, so the sizes of cuts increase. The slice is new: images share the old.
func (in *inode) addCut(c cut) {
	n := slices.IndexFunc(in.cuts, func(o cut) bool { return o.Size >= c.Size })
	if n < 0 {
		n = len(in.cuts)
	}
	in.cuts = append(slices.Clone(in.cuts[:n]), c)
	if len(in.cuts) <= maxCuts {
		return
	}
	// Who knows nothing since before the one that is dropped keeps bytes between its size and the next: so that is as little as can be.
	drop := 0
	for i := range maxCuts {
		if in.cuts[i+1].Size-in.cuts[i].Size < in.cuts[drop+1].Size-in.cuts[drop].Size {
			drop = i
		}
	}
	in.cuts = slices.Delete(in.cuts, drop, drop+1)
}

// cutSince returns the shrink to the smallest size after index rev, if there is one.
func (in *inode) cutSince(rev dsm.Generation) (c cut, ok bool) {
	i := slices.IndexFunc(in.cuts, func(o cut) bool { return o.Rev > rev })
	if i < 0 {
		return cut{}, false
	}
	return in.cuts[i], true
}

// checkCuts looks at cuts that may come from another node.
func (in *inode) checkCuts() error {
	last := cut{Size: -1}
	for _, c := range in.cuts {
		if in.Kind != dsm.KindFile || c.Rev <= last.Rev || c.Size <= last.Size || c.Rev > in.Gen || c.Size > in.Size {
			return fmt.Errorf("a shrink to %d bytes at %d, of %d at %d", c.Size, c.Rev, in.Size, in.Gen)
		}
		last = c
	}
	if len(in.cuts) > maxCuts {
		return fmt.Errorf("%d shrinks", len(in.cuts))
	}
	return nil
}
