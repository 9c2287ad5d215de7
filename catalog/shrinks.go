package catalog

import (
	"fmt"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// shrink is a shrink of a file, for nodes that get the catalog as a snapshot. Such a node sees the last size only, and what it has past the
// smallest size since is not in the file any more.
type shrink struct {
	Rev  dsm.Generation // the index of the shrink
	Size int64          // to which
}

// maxShrinks bounds inode.shrinks. A file needs many only if each shrink is to more than the one before, as when a program reserves room each time
// that it appends.
const maxShrinks = 64

// addShrink records a shrink. Earlier ones to no less are contained in it, so the sizes of shrinks increase. The slice is new: images share the old.
func (in *inode) addShrink(c shrink) {
	n := slices.IndexFunc(in.shrinks, func(o shrink) bool { return o.Size >= c.Size })
	if n < 0 {
		n = len(in.shrinks)
	}
	in.shrinks = append(slices.Clone(in.shrinks[:n]), c)
	if len(in.shrinks) <= maxShrinks {
		return
	}
	// Who knows nothing since before the one that is dropped keeps bytes between its size and the next: so that is as little as can be.
	drop := 0
	for i := range maxShrinks {
		if in.shrinks[i+1].Size-in.shrinks[i].Size < in.shrinks[drop+1].Size-in.shrinks[drop].Size {
			drop = i
		}
	}
	in.shrinks = slices.Delete(in.shrinks, drop, drop+1)
}

// shrinkSince returns the shrink to the smallest size after index rev, if there is one.
func (in *inode) shrinkSince(rev dsm.Generation) (c shrink, ok bool) {
	i := slices.IndexFunc(in.shrinks, func(o shrink) bool { return o.Rev > rev })
	if i < 0 {
		return shrink{}, false
	}
	return in.shrinks[i], true
}

// checkShrinks looks at shrinks that may come from another node.
func (in *inode) checkShrinks() error {
	last := shrink{Size: -1}
	for _, c := range in.shrinks {
		if in.Kind != dsm.KindFile || c.Rev <= last.Rev || c.Size <= last.Size || c.Rev > in.Gen || c.Size > in.Size {
			return fmt.Errorf("a shrink to %d bytes at %d, of %d at %d", c.Size, c.Rev, in.Size, in.Gen)
		}
		last = c
	}
	if len(in.shrinks) > maxShrinks {
		return fmt.Errorf("%d shrinks", len(in.shrinks))
	}
	return nil
}
