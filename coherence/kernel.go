package coherence

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// AwaitTruncated returns when the kernel has dropped what shrinks on other nodes have truncated of an area, or when ctx ends. What programs store to their mappings
// from then on is not void: see pages.Cached.Void.
func (n *Node) AwaitTruncated(ctx context.Context, id dsm.AreaID) {
	a := n.known(id)
	if a == nil {
		return
	}
	err := a.awaitNotices(ctx, func() bool { return a.mu.removed || a.mu.cached == nil || a.mu.cached.Truncated() })
	if err != nil {
		n.cfg.Log.Debug("the kernel has not dropped yet what was truncated", "area", id, "err", err)
	}
}

// KernelShrinks says that the answer to a SETATTR is about to tell the kernel of a new size. The kernel then drops what
// it has past that size, before it writes anything back. It hears later of sizes that other nodes set. Until then
// its write-back counts as the change from what it was given: see pages.Cached.
func (a *Area) KernelShrinks(size int64) {
	a.step(func() {
		if a.mu.cached != nil {
			a.mu.cached.KernelShrinks(size)
		}
	})
}

// KernelTold says that an answer is about to tell the kernel of the size. It is called before every such answer,
// whichever request it is for: see pages.Cached.KernelTold.
func (a *Area) KernelTold(size int64) {
	a.step(func() {
		if a.mu.cached != nil {
			a.mu.cached.KernelTold(size)
		}
	})
}

// KernelLocks says that the kernel has locked the file against write(2), truncations and holes that are punched, as for a FSYNC.
func (a *Area) KernelLocks() {
	a.note(func() {
		if a.mu.cached != nil {
			a.mu.cached.KernelLocks()
		}
	})
}

// KernelDrops says that the kernel is about to be told to drop pages of its page cache, and not by a notice of the
// area. The caller calls ended when the kernel has dropped them.
func (a *Area) KernelDrops() (ended func()) {
	var end func()
	a.note(func() {
		if a.mu.cached != nil {
			end = a.mu.cached.KernelDrops()
		} else {
			end = a.mu.drops.Begin() // there may be a ledger before it has ended
		}
	})
	a.node.room.ring() // who waits for room is waited for: see bring
	return func() { a.note(end) }
}

// WriteBack is WriteAt for stores to mappings that the kernel writes back from its page cache. It fails if it is not
// known any more what the page cache was given of a page: then nobody can tell which bytes the program changed.
// msync and fsync fail with it.
func (a *Area) WriteBack(ctx context.Context, p []byte, off int64) error {
	return a.write(ctx, p, off, writtenBack)
}
