package coherence

import (
	"context"
	"errors"
	"math"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages"
)

// A daemon that follows another one in a cluster of several nodes is, to the others, a node that has died and joined again, whose programs
// live on: see design.md. It is the home of nothing that it was the home of; backups are. What its programs have open it has from the Keep:
// both copies, what the page cache was given, and what was sent and not answered. So it goes on as after an eviction, but its publishes
// count.

// resumeAmong takes over the areas of the daemon that was killed, if others are in the cluster. An area that no program can have stored
// to is dropped: the homes have all of it. Resumed follows.
func (n *Node) resumeAmong(ctx context.Context, evicted bool) error {
	n.resuming.Store(true)
	var failed []error
	for _, left := range n.cfg.Store.Areas() {
		versions := n.versionsOf(left.ID)
		for done := false; !done; {
			now, least, gen, ok := n.cfg.View.AreaSince(left.ID, left.Rev)
			a, err := n.area(left.ID)
			stays := false
			if ok && now.Kind == dsm.KindFile && err == nil {
				a.note(func() { stays = a.staysAHomeLocked() })
			}
			if !stays {
				n.dropMerged(left.ID)
			}
			if !ok || now.Kind != dsm.KindFile || !left.Newest() && !stays || errs.Is(err, errs.NotExist) {
				if err == nil {
					a.step(func() {
						a.mu.kernelHad = left.KernelHas()
						a.versionsLeftLocked(versions, false)
					})
				}
				failed = append(failed, left.Drop())
				break
			}
			uncertain := least
			if gen == 0 {
				least, uncertain = now.Size, math.MaxInt64
			}
			if ctx.Err() != nil {
				err = &errs.Error{Op: "resume", Area: left.ID, Kind: errs.Timeout, Err: ctx.Err()}
			}
			if err == nil {
				a.step(func() {
					a.inodeChangedLocked(now)                 // the catalog may not have told yet, or will not before this is over
					if done = a.mu.ino.Rev == now.Rev; done { // else it has changed once more
						if stays {
							left.Homed = a.staysHomeLocked
						}
						err = a.resumeOneLocked(left, versions, least, uncertain, evicted)
					}
				})
			}
			if err != nil {
				return errors.Join(append(failed, err)...)
			}
		}
	}
	return errors.Join(failed...)
}

// Resumed says that what programs have open is open again.
func (n *Node) Resumed() {
	n.resuming.Store(false)
	defer n.endLeftLater()
	for _, a := range n.all() {
		a.step(func() {
			a.reclaimLocked()
			r := &a.mu.replica
			a.nobodyLostLocked()
			if a.mu.absence != nil { // what is given up from here on is not what the daemon before was about to give up
				defer func() {
					if !a.mu.absence.compares() {
						a.mu.absence.before = 0
					}
				}()
			}
			if a.mu.whole.halved && r.writers == 0 { // nobody is about to publish
				a.mu.arrived = append(a.mu.arrived, func() { n.handovers.publishLeft(a) })
			}
			if !r.subscribed {
				return
			}
			a.dropLeftDraftsLocked()
			switch {
			case r.opens == 0: // the kernel keeps nothing over the next open, and takes no notice before
				a.mu.cached = pages.NewCached(a.mu.mem)
				a.lingerLocked()
			case r.writers == 0: // the ledger before may not have known what the page cache had
				a.mu.cached = pages.ResumeCached(a.mu.mem, false, 0)
			case a.forfeitsLocked():
				a.forfeitLocked()
			}
		})
		a.followAll()
	}
}

// resumeOneLocked takes over an area of which a program had a replica, or of which this node stays a home.
func (a *Area) resumeOneLocked(left pages.Left, versions leftVersions, least, uncertain int64, evicted bool) error {
	left.Demand = a.mu.ino.Spec.Residency == dsm.ResidencyDemand
	if left.Newest() {
		return a.resumeReplicaLocked(left, versions, least, uncertain, evicted)
	}
	a.mu.kernelHad = left.KernelHas()
	mem, err := left.Take(a.mu.ino.Size, least)
	if err != nil {
		return err
	}
	a.resumeHomesLocked(mem, versions.Whole)
	a.versionsLeftLocked(versions, a.versionedLocked())
	return nil
}

// resumeReplicaLocked makes a replica of what was left. All pages are here, or those of an area on demand that were, of a version that is not known. The area has been as short as least since. From the
// byte uncertain on others may have truncated what programs see. evicted is that of Resume.
func (a *Area) resumeReplicaLocked(left pages.Left, versions leftVersions, least, uncertain int64, evicted bool) error {
	_, sent, err := a.takeBothLocked(left, least, uncertain)
	if err != nil {
		return err
	}
	a.compareLeftLocked()
	if left.Homed != nil {
		a.homesLeftLocked(versions.Whole)
	}
	if err := a.replicaOfLocked(sent, least, evicted); err != nil {
		return err
	}
	a.versionsLeftLocked(versions, left.Homed != nil && a.versionedLocked())
	return nil
}

// takeBothLocked takes both copies of what was left, and what was sent and not answered.
func (a *Area) takeBothLocked(left pages.Left, least, uncertain int64) (mem *pages.Area, sent []*pages.Sent, err error) {
	if mem, sent, err = left.TakeBoth(a.mu.kernel, a.mu.ino.Size, least); err != nil {
		return nil, nil, err
	}
	if now := a.mu.ino; mem.Size() < now.Size {
		// A process of the daemon before is still freeing what is past that size, so this was short, too.
		a.mu.ino.Size, a.mu.ino.Rev = mem.Size(), min(left.Rev, now.Rev-1)
		a.fallShortLocked(now, errs.E(errs.Busy, "resume", "memory past the end is being freed, which waits for a program that is in write(2) to it"))
	}
	mem.SetDrops(&a.mu.drops)
	mem.HasParts(false) // until parts are taken over
	a.mu.mem, a.mu.cached = mem, pages.ResumeCached(mem, true, uncertain)
	a.followedLocked()
	mem.WorkingIsNewest()
	return mem, sent, nil
}

// replicaOfLocked makes the replica of what was taken. evicted is that of Resume.
func (a *Area) replicaOfLocked(sent []*pages.Sent, least int64, evicted bool) error {
	mem, r := a.mu.mem, &a.mu.replica
	r.subscribed, r.n = true, a.extentsLocked()
	r.onRequest = a.defersLocked()
	r.demand = mem.Demand()
	a.materializeLastLocked()
	a.pagesLeftLocked()
	for _, s := range sent {
		e := s.Extent()
		pub, err := a.publicationLocked(s, least)
		if err != nil {
			return err
		}
		if int(e) >= r.n {
			s.Drop()
			continue
		}
		x := a.extentLocked(e)
		if pub.round != (dsm.RoundID{}) {
			a.partLeftLocked(e, x, pub)
			continue
		}
		x.pub = pub
		x.started++
		pub.number = x.started
		r.underWay += pub.weight()
		a.busyLocked(e, x)
	}
	var now [dsm.PageSize]byte
	mem.Stored(func(p dsm.PageIndex) {
		e, i := p.Extent()
		if !a.inAreaLocked(e, i) {
			return
		}
		x := a.extentLocked(e)
		if r.demand && !x.have.Has(i) {
			return
		}
		if x.accounted(now[:], i, mem.Base(p)); string(now[:]) != string(mem.Working(p)) {
			a.dirtyLocked(e, x, dsm.Range(i, i+1))
		}
	})
	a.draftsLeftLocked()
	switch {
	case a.forfeitsLocked(): // the cluster has evicted this node meanwhile
		a.takeBackAllLocked()
	case evicted: // as in returningLocked
		a.compareLocked(false, func(dsm.ExtentIndex) bool { return true })
	}
	a.resubscribeLocked(a.slotsLocked(0), nil)
	a.markAgainLocked()
	return nil
}

// pagesLeftLocked says which pages of an area on demand are here. Of others there are no bases, but for those of the home.
func (a *Area) pagesLeftLocked() {
	mem, r := a.mu.mem, &a.mu.replica
	if !r.demand {
		return
	}
	var had []dsm.ExtentIndex
	mem.Stored(func(p dsm.PageIndex) {
		if e, _ := p.Extent(); a.inAreaLocked(p.Extent()) && (len(had) == 0 || had[len(had)-1] != e) {
			had = append(had, e)
		}
	})
	for _, e := range had {
		x := a.extentLocked(e)
		x.have = mem.Here(e).And(a.withinLocked(e))
		if r.units += x.have.Len(); !mem.Homed(e) {
			a.forgetAllButLocked(e)
		}
		a.node.room.broughtLocked(a, e, x.have)
	}
}

// Reopen is Open for what a program had open when the daemon was killed. It does not wait for other nodes.
func (n *Node) Reopen(ctx context.Context, id dsm.AreaID, write bool) (*Area, error) {
	a, err := n.area(id)
	if err != nil {
		return nil, err
	}
	if !n.resuming.Load() && !a.bothTaken() { // it was alone
		return n.Open(ctx, id, write)
	}
	a.step(func() {
		_ = a.growLocked() // if it is short, the programs go on with what it has
		if err = a.openAgainLocked(write); err == nil {
			a.kernelMayHaveLocked()
		}
	})
	return a, err
}

// openAgainLocked is openLocked for a program that may have it open.
func (a *Area) openAgainLocked(write bool) error {
	r := &a.mu.replica
	if !r.subscribed {
		if err := a.startReplicaLocked(); err != nil {
			return err
		}
	}
	a.unheldLocked()
	r.opens++
	a.keepFreshLocked()
	if write {
		a.beginWritingLocked()
	}
	return nil
}

// kernelMayHaveLocked has the kernel drop what it has of an area whose replica has just begun anew, because nothing of it was left.
func (a *Area) kernelMayHaveLocked() {
	if had := a.mu.kernelHad; a.node.resuming.Load() && (had > a.mu.ino.Size || !a.mu.cached.Resumed()) {
		a.mu.mem.KernelHas(had) // it has been shrunk meanwhile
		a.mu.kernelHad = 0
		a.mu.cached = pages.ResumeCached(a.mu.mem, a.mu.replica.writers > 0, 0)
	}
}

// awaitAllHere waits until all of the area is in the working copy, and says so to the next daemon, before a program may store or accumulate. Of an area on demand that is what is here.
func (a *Area) awaitAllHere(ctx context.Context) error {
	if a.node.cfg.Store == nil {
		return nil
	}
	return a.awaitHomes(ctx, "open", func() bool {
		if a.mu.mem != nil && !a.mu.mem.Outlives() {
			return true // no daemon follows: see endsWithDaemonLocked
		}
		if !a.mu.replica.demand && !a.allHereLocked() {
			return false
		}
		a.keepBasesLocked()
		if a.mu.replica.subscribed { // at once: with the next view a slot may move, and its pages come again
			a.mu.mem.WorkingIsNewest()
		}
		return true
	}, a.deadInAreaLocked)
}

// allHereLocked reports whether all pages are here. A dead home in which nothing of the area lives any more, as after a shrink, need not have answered.
func (a *Area) allHereLocked() bool {
	r := &a.mu.replica
	if !r.subscribed {
		return true
	}
	if !a.subscribedLocked() {
		return false
	}
	for e := range dsm.ExtentIndex(a.coveringLocked()) { // an extent without state is as its slot says
		if r.extents[e] == nil && e < r.zero && !r.slots.at(slotIndex(a.slotLocked(e))).here {
			return false
		}
	}
	for e, x := range r.extents {
		if lacks := a.withinLocked(e).Minus(x.have); !lacks.Empty() {
			return false
		}
	}
	return true
}
