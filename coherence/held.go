package coherence

import (
	"context"
	"errors"
	"math"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages"
)

// A node that is held has its areas in a pages.Keep. If the daemon is killed, the next one has the bytes that programs have stored,
// published or not. As nobody else is in the cluster, it may count all of them as published: it is their home, and the only replica. Once others
// are there no daemon follows this one, and the node serves them like any other.

// heldMemory is newMemory for a node that is held.
func (n *Node) heldMemory(id dsm.AreaID, size int64, demand bool) (*pages.Area, error) {
	if demand {
		return n.cfg.Store.NewHeldDemandArea(id, size)
	}
	return n.cfg.Store.NewHeldArea(id, size)
}

// Resume takes over the areas of the daemon that was killed. The catalog must be up to date, and no area open. alone says that the node is still the home of all that
// it was the home of, evicted that the cluster has evicted it.
func (n *Node) Resume(ctx context.Context, alone, evicted bool) error {
	if err := n.resumeConflicts(); err != nil {
		return err
	}
	n.readVersions()
	n.ledger.left = n.cfg.Store.Served()
	n.handovers.resume()
	defer n.keepServed()
	if !alone {
		return n.resumeAmong(ctx, evicted)
	}
	var failed []error
	for _, left := range n.cfg.Store.Areas() {
		n.dropMerged(left.ID) // nobody else can send anything again
		now, least, gen, ok := n.cfg.View.AreaSince(left.ID, left.Rev)
		if !ok || now.Kind != dsm.KindFile {
			failed = append(failed, left.Drop())
			continue
		}
		versions, uncertain := n.versionsOf(left.ID), least
		if gen == 0 {
			least, uncertain = now.Size, math.MaxInt64
		}
		left.Demand = now.Spec.Residency == dsm.ResidencyDemand
		versioned := now.Spec.Mode == dsm.ModeVersioned
		if left.Newest() && (left.Attached() || left.Demand || versioned) {
			left.Home = versioned
			a, err := n.area(left.ID)
			if err == nil {
				a.step(func() {
					a.inodeChangedLocked(now)
					err = a.resumeAttachedLocked(left, versions, least, uncertain)
				})
			}
			if err != nil {
				return errors.Join(append(failed, err)...)
			}
			continue
		}
		mem, err := left.Take(now.Size, least)
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		a, err := n.area(left.ID)
		if err != nil {
			return errors.Join(append(failed, err, mem.Close())...)
		}
		a.step(func() {
			a.resumeLocked(mem, versions.Whole)
			a.versionsLeftLocked(versions, true)
		})
	}
	return errors.Join(failed...)
}

// resumeAttachedLocked takes over an area whose working copy programs may have attached: it stays, and they go on to store to it. Or it is on demand, and the working copy has not all of it. So what is not published is published like any other store,
// to this node as the home, which has what the base copy has. That goes for what was being published as well: the next daemon does not know what the one before it had merged as the home, so it would
// merge it twice.
func (a *Area) resumeAttachedLocked(left pages.Left, versions leftVersions, least, uncertain int64) error {
	mem, sent, err := a.takeBothLocked(left, least, uncertain)
	if err != nil {
		return err
	}
	for _, s := range sent {
		s.Drop()
	}
	a.becomeHomeLocked(mem, versions.Whole)
	if err := a.replicaOfLocked(nil, least, false); err != nil {
		return err
	}
	a.versionsLeftLocked(versions, true)
	return nil
}

// resumeLocked makes the node the home of the bytes in mem. whole is that of becomeHomeLocked.
func (a *Area) resumeLocked(mem *pages.Area, whole dsm.Version) {
	mem.SetDrops(&a.mu.drops)
	a.mu.mem, a.mu.cached = mem, pages.NewCached(mem)
	a.followedLocked()
	a.becomeHomeLocked(mem, whole)
	a.freeIfUnusedLocked()
}

// becomeHomeLocked makes the node the home of what the base copy has. That is a version of a versioned area, or whole is 0.
func (a *Area) becomeHomeLocked(mem *pages.Area, whole dsm.Version) {
	v := a.drawLocked() // so it is later than any before
	if a.versionedLocked() && whole > 0 {
		v = whole
	}
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
}

// followedLocked says that the memory follows the inode.
func (a *Area) followedLocked() {
	if a.mu.mem != nil {
		a.mu.mem.FollowedTo(a.mu.ino.Rev)
	}
}

// mostHeld is the size of the largest area that another daemon takes over.
const mostHeld = 64 << 30

// unheldLocked says that no other daemon can follow this one, if a program has, or is about to have, an area open that is too large.
func (a *Area) unheldLocked() {
	n := a.node
	if n.cfg.Store != nil && n.cfg.Unheld != nil && a.mu.ino.Size > mostHeld {
		n.cfg.Unheld("a program has a file of more than 64 GiB open")
	}
}

// stillHeldLocked is unheldLocked for an area that has another size.
func (a *Area) stillHeldLocked() {
	if a.mu.replica.opens > 0 {
		a.unheldLocked()
	}
}
