package coherence

import (
	"context"
	"errors"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages"
)

// A node that is held has its areas in a pages.Keep. If the daemon is killed, the next one has the bytes that programs have stored,
// published or not. As nobody else is in the cluster, it may count all of them as published: it is their home, and the only replica. Once others
// are there no daemon follows this one, and the node serves them like any other.

// heldMemory is newMemory for a node that is held. Areas on demand are not held: there are none before others have joined.
func (n *Node) heldMemory(id dsm.AreaID, size int64, demand bool) (*pages.Area, error) {
	if demand {
		return newMemory(id, size, demand)
	}
	return n.cfg.Store.NewHeldArea(id, size)
}

// alone reports whether no other node is in the cluster.
func (n *Node) alone() bool { return len(n.cfg.View.Current().Members) <= 1 }

// Resume takes over the areas of the daemon that was killed. The catalog must be up to date, and no area open.
func (n *Node) Resume() error {
	var failed []error
	for _, left := range n.cfg.Store.Areas() {
		now, least, gen, ok := n.cfg.View.AreaSince(left.ID, left.Rev)
		if !ok || now.Kind != dsm.KindFile {
			failed = append(failed, left.Drop())
			continue
		}
		if gen == 0 {
			least = now.Size
		}
		mem, err := left.Take(now.Size, least)
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		a, err := n.area(left.ID)
		if err != nil {
			return errors.Join(append(failed, err, mem.Close())...)
		}
		a.step(func() { a.resumeLocked(mem) })
	}
	return errors.Join(failed...)
}

// resumeLocked makes the node the home of the bytes in mem.
func (a *Area) resumeLocked(mem *pages.Area) {
	mem.SetDrops(&a.mu.drops)
	a.mu.mem, a.mu.cached = mem, pages.NewCached(mem)
	a.followedLocked()
	v := a.drawLocked() // so it is later than any before
	mem.Data(func(p dsm.PageIndex) {
		e, i := p.Extent()
		if !a.inAreaLocked(e, i) {
			return
		}
		x := a.homeExtentLocked(e)
		x.version = v
		a.mu.home.setVersion(x, i, v)
		a.lookAtHomeLocked(e, x, i)
	})
	a.freeIfUnusedLocked()
}

// followedLocked says that the memory follows the inode.
func (a *Area) followedLocked() {
	if a.mu.mem != nil {
		a.mu.mem.FollowedTo(a.mu.ino.Rev)
	}
}

// allHereLocked reports whether the working copy has all that this node has as the home.
func (a *Area) allHereLocked() bool {
	if !a.mu.replica.subscribed {
		return false
	}
	for e := range a.mu.home.extents {
		if lacks := a.withinLocked(e).Minus(a.extentLocked(e).have); !lacks.Empty() {
			return false
		}
	}
	return true
}

// holds waits until all of the area is in the working copy, and says so to the next daemon, before a program may store.
func (a *Area) holds(ctx context.Context) error {
	if a.node.cfg.Store == nil || !a.node.alone() {
		return nil
	}
	if err := a.await(ctx, "open", a.allHereLocked); err != nil {
		return err
	}
	a.step(func() {
		if a.mu.mem != nil && a.mu.replica.subscribed {
			a.mu.mem.WorkingIsNewest()
		}
	})
	return nil
}
