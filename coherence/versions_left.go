package coherence

import (
	"bytes"
	"context"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// A daemon that follows one which was killed goes on with a versioned area like this. What programs of the node had stored and not published is in the working copy, and is
// for their next publish. The published bytes:
//
//	the node is alone      the base copy has them. If the daemon was killed while it merged a version, they are of no version, and nobody reads them before the next
//	                       publish: the program that was publishing asks again, or its file is closed. If none has it open for writing, the daemon makes a version
//	others have them       the home sends its newest version, and until then none can be read
//
// A backup is the owner then. If the node was, it takes the area back, unless a program of the new owner has it open for writing: then its own programs cannot publish. Older versions are not there
// any more.

// toldKeepLocked has the next daemon know, at the end of a step, which version the published bytes are of.
func (a *Area) toldKeepLocked() {
	w := &a.mu.whole
	if a.versionedLocked() && a.mu.mem != nil {
		a.mu.mem.IsLost(a.mu.owning.lost, a.mu.owning.late)
		a.mu.mem.IsOwned(a.mu.owning.reclaims || a.mu.own != 0 && a.isSelf(a.rowLocked(0).Primary))
	}
	if !w.changing {
		return
	}
	w.changing = false
	if newest, ok := a.newestLocked(); ok && a.mu.mem != nil && !w.torn && !w.taking && newest.Version == a.inPlaceVersionLocked() {
		a.mu.mem.IsWhole(newest.Version, newest.Size, newest.Writer)
	}
}

// leftVersions is what the daemon before has said of the versions of an area.
type leftVersions struct {
	pages.LeftVersions
	shrunk bool // the area has been shorter since than the version
}

// versionsLeftLocked takes in what the daemon before has said of versions. home says that this node still is the home of what it was the home of.
func (a *Area) versionsLeftLocked(left leftVersions, home bool) {
	if !a.versionedLocked() {
		return
	}
	w := &a.mu.whole
	a.heardLocked(left.Last)
	a.mu.owning.lost, a.mu.owning.late = left.Lost, left.Late
	if left.Older {
		a.pausedLocked(1)
	} else {
		a.pausedLocked(max(left.Whole, 1))
	}
	a.abandonLocked() // nothing of a version is published alone
	switch {
	case !home:
		a.oustedLocked()
		w.torn = a.mu.replica.subscribed
		a.mu.owning.reclaims = left.Owner
		return
	case !a.ownHomeLocked() && left.Last == 0: // nothing was published
		return
	}
	w.told = max(w.told, left.Last)
	switch {
	case left.Halved:
		w.torn, w.halved = true, true
	case left.shrunk:
		a.versionOfShrinkLocked(left.Writer)
		w.replica = a.inPlaceVersionLocked()
	default:
		v := VersionInfo{Version: left.Whole, Size: left.Size, Writer: left.Writer}
		if v.Version == 0 {
			v.Version, v.Size = a.mu.newest, a.mu.ino.Size // that of becomeHomeLocked: all of it was merged
		}
		a.tookOverLocked(v) // perhaps no backup has it
		w.replica = v.Version
	}
}

// oustedLocked reports whether another node owns the area, or owned it, and this one has not had its newest version since. If programs of this node have stored to it and not published, this node owned it, and was
// taken for dead, or its daemon was killed; or they had it open before it was versioned, and another node became the owner.
func (a *Area) oustedLocked() bool {
	if a.mu.own == 0 || !a.versionedLocked() {
		return false
	}
	o := &a.mu.owning
	elsewhere := !a.isSelf(a.rowLocked(0).Primary)
	o.ousted = o.ousted || elsewhere
	o.owned = o.owned || !elsewhere || o.reclaims
	o.storing = o.storing || elsewhere && o.owned && (a.mu.replica.writers > 0 || o.reclaims && a.node.resuming.Load())
	return o.ousted
}

// fenceLocked is called before a version that others have published is put in place. What programs of this node, which was ousted, have stored and not published makes no sense together with it: a version has one writer.
// So it is kept as conflicts, as a whole, and publishes fail. batch has the parts of the version.
func (a *Area) fenceLocked(batch []message) {
	if !a.oustedLocked() || len(a.mu.replica.busy.extents) == 0 && !a.mu.owning.storing || !a.othersPublishedLocked(batch) {
		return
	}
	if c := a.mu.replica.contribution; c != nil && !c.gone {
		a.mu.owning.fences++
	}
	a.abandonLocked()
	merged := make(map[dsm.ExtentIndex]dsm.Seq)
	for _, b := range batch {
		push := b.msg.(*wire.Push)
		merged[push.Extent] = push.Parts
	}
	for _, e := range a.busyExtentsLocked() {
		x := a.mu.replica.extents[e]
		for _, part := range slices.Clone(x.parts) {
			if part.seq > merged[e] {
				a.takeBackLocked(e, x, part)
				a.countAgainLocked(part)
			}
		}
		if part := x.pub; part != nil && part.seq > merged[e] {
			a.takeBackLocked(e, x, part)
			a.countAgainLocked(part)
		}
	}
	a.mu.mem.IsLost(true, false) // before anything is taken back: the end of the step says what is so
	switch o := &a.mu.owning; {
	case a.forfeitDirtyLocked():
		a.loseLocked()
	case o.storing:
		o.late = a.mu.replica.writers > 0 || a.node.resuming.Load()
	}
}

// loseLocked says that what programs had stored was taken back.
func (a *Area) loseLocked() {
	a.mu.owning.lost = a.mu.replica.writers > 0 || a.node.resuming.Load()
	a.mu.owning.forfeits++
	a.tellOfConflictsLocked("programs of this node have stored to a versioned area, and another node, which owned it meanwhile, has published: what was stored here is not published")
}

// ownerRefusedLocked returns why nothing that programs of this node have stored may be published, since some of it has been taken back: half of it would be a version. What has been found since is taken back, too.
func (a *Area) ownerRefusedLocked() error {
	o := &a.mu.owning
	switch {
	case o.lost:
		a.forfeitDirtyLocked()
	case o.late && a.forfeitDirtyLocked():
		o.late = false
		a.loseLocked()
	default:
		return nil
	}
	return a.errFencedLocked(o.forfeits - 1)
}

// nobodyLostLocked lets programs that open the area publish again, when nobody has it open any more that was refused. What those have stored since is taken back first.
func (a *Area) nobodyLostLocked() {
	if o := &a.mu.owning; a.mu.replica.writers == 0 {
		_ = a.ownerRefusedLocked()
		o.lost, o.late = false, false
	}
}

// othersPublishedLocked reports whether a version has something that this node has not published.
func (a *Area) othersPublishedLocked(batch []message) bool {
	for _, b := range batch {
		push := b.msg.(*wire.Push)
		x, payload := a.extentLocked(push.Extent), flat(b.payload)
		for i := range push.Pages.All() {
			n := zeroPages[:dsm.PageSize]
			if !push.Zero.Has(i) {
				n, payload = payload[:dsm.PageSize], payload[dsm.PageSize:]
			}
			if !a.inAreaLocked(push.Extent, i) {
				continue
			}
			var own [dsm.PageSize]byte
			copy(own[:], a.mu.mem.Base(page(push.Extent, i)))
			for _, part := range x.parts {
				if part.seq <= push.Parts && part.pages.Has(i) {
					part.overlay(own[:], i)
				}
			}
			if !bytes.Equal(n, own[:]) {
				return true
			}
		}
	}
	return false
}

// errFencedLocked is the error of a publish if what was stored has been taken back (see fenceLocked), since before or at any time while programs have the area open for writing. before is what forfeits
// was when the publish began.
func (a *Area) errFencedLocked(before uint8) error {
	if !a.mu.owning.lost && a.mu.owning.forfeits == before {
		return nil
	}
	return errs.E(errs.Access, "publish", "another node has owned area %d meanwhile, and has published: what programs here had stored is kept as conflicts", a.id)
}

// readVersions notes what the daemon before has said of the versions of areas.
func (n *Node) readVersions() {
	versions := make(map[dsm.AreaID]leftVersions)
	for _, left := range n.cfg.Store.Areas() {
		v := leftVersions{LeftVersions: left.Versions()}
		if v.LeftVersions == (pages.LeftVersions{}) {
			continue
		}
		now, least, gen, ok := n.cfg.View.AreaSince(left.ID, left.Rev)
		v.shrunk = !ok || now.Size < v.Size || gen != 0 && least < v.Size
		versions[left.ID] = v
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.versions = versions
}

// versionsOf returns what readVersions has noted of an area.
func (n *Node) versionsOf(id dsm.AreaID) leftVersions {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.versions[id]
}

// GoesOnAt returns the version in which a program goes on that was reading a version when the daemon before was killed. It is 0 if that is not known.
func (a *Area) GoesOnAt() dsm.Version {
	left := a.node.versionsOf(a.id)
	if left.Older || left.shrunk {
		return 0
	}
	return left.Whole
}

// reclaimLocked has the area taken back that this node owned when the daemon before was killed.
func (a *Area) reclaimLocked() {
	if o := &a.mu.owning; o.reclaims && a.versionedLocked() && a.mu.own != 0 && !a.isSelf(a.rowLocked(0).Primary) {
		a.mu.arrived = append(a.mu.arrived, func() { a.node.handovers.reclaim(a) })
	} else {
		o.reclaims = false
	}
}

// reclaim takes the area back. Meanwhile opens for writing wait.
func (h *handovers) reclaim(a *Area) {
	h.later(func() {
		ctx, cancel := context.WithTimeout(h.ctx, giveTimeout)
		err := a.transfer(ctx, h.node.cfg.Self)
		cancel()
		if err != nil && h.ctx.Err() == nil && !errs.Is(err, errs.NotExist) {
			h.node.cfg.Log.Warn("this node owned a versioned area, and does not any more", "area", a.id, "err", err,
				"todo", "programs that have it open for writing go on; for others dsmfs area transfer, or take() in Python, moves it here")
		}
		a.step(func() {
			a.mu.owning.reclaims = false
			a.mu.wake = true
		})
	})
}

// ownAgain takes the area back before something is published, if this node was ousted: a version has one writer, and the owner takes none from others. errs.Busy or errs.Access if programs of the owner have it open for
// writing.
func (a *Area) ownAgain(ctx context.Context) error {
	if err := a.reclaimed(ctx); err != nil {
		return err
	}
	ousted, err := false, error(nil)
	a.step(func() {
		ousted, err = a.ownedElsewhereLocked(), a.ownerRefusedLocked()
	})
	if err != nil || !ousted {
		return err
	}
	return a.transfer(ctx, a.node.cfg.Self)
}

// ownedElsewhereLocked reports whether another node owns the area, and programs of this one have stored to it.
func (a *Area) ownedElsewhereLocked() bool {
	return a.mu.own != 0 && a.versionedLocked() && !a.isSelf(a.rowLocked(0).Primary) && slices.ContainsFunc(a.busyExtentsLocked(), func(e dsm.ExtentIndex) bool {
		x := a.mu.replica.extents[e]
		return !x.dirty.Empty() || len(x.parts) > 0
	})
}

// ownToStore is own for a program that is to store. It waits while the area is being taken back.
func (a *Area) ownToStore(ctx context.Context) error {
	if !a.versioned() {
		return nil
	}
	if err := a.reclaimed(ctx); err != nil {
		return err
	}
	if err := a.own(ctx); err != nil {
		return err
	}
	killed := false
	a.note(func() { killed = a.mu.whole.killed })
	if killed { // first: else it would be part of what this program publishes
		if _, err := a.publishLeft(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Reclaimed returns when a versioned area that this node owned when the daemon before was killed is its own again, or cannot be.
func (n *Node) Reclaimed(ctx context.Context, id dsm.AreaID) error {
	n.mu.Lock()
	a := n.mu.areas[id]
	n.mu.Unlock()
	if a == nil {
		return nil
	}
	return a.reclaimed(ctx)
}

func (a *Area) reclaimed(ctx context.Context) error {
	return a.await(ctx, "own", func() bool { return !a.mu.owning.reclaims })
}
