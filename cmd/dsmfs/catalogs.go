package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/catalog"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/locks"
)

// catalogs is the catalog of a node as its other parts see it. A node that was evicted joins again with a new one (rejoin.go), under
// parts that stay. Until the new one knows the cluster's state, what this node knew last is shown, and calls that need the cluster wait.
type catalogs struct{ at atomic.Pointer[seat] }

// seat is what a catalogs has at some time. It is replaced, not changed.
type seat struct {
	cat      *catalog.Catalog
	joining  bool          // the node is joining again
	stopped  bool          // it will not join again
	replaced chan struct{} // closed when another seat is there
}

// start says that the node is a member, or is about to become one, with its first catalog.
func (c *catalogs) start(first *catalog.Catalog) {
	c.at.Store(&seat{cat: first, replaced: make(chan struct{})})
}

// last returns the catalog whose state is shown.
func (c *catalogs) last() *catalog.Catalog { return c.at.Load().cat }

// leave says that the node joins again: calls wait until enter.
func (c *catalogs) leave() { c.change(func(s *seat) { s.joining = true }) }

// show shows the state of the new catalog. Until enter the node still acts for nobody: its other parts have not taken that state.
func (c *catalogs) show(next *catalog.Catalog) { c.change(func(s *seat) { s.cat = next }) }

// enter lets the calls go on that wait.
func (c *catalogs) enter() { c.change(func(s *seat) { s.joining = false }) }

// stop says that the node ends, and does not join again.
func (c *catalogs) stop() { c.change(func(s *seat) { s.joining, s.stopped = false, true }) }

// change replaces the seat, unless the node ends.
func (c *catalogs) change(to func(*seat)) {
	for {
		was := c.at.Load()
		if was.stopped {
			return
		}
		is := *was
		is.replaced = make(chan struct{})
		to(&is)
		if c.at.CompareAndSwap(was, &is) {
			close(was.replaced)
			return
		}
	}
}

// get returns the catalog when the node is a member with another one than over, of which the caller knows that it is given up, or about to be;
// nil if it knows of none.
func (c *catalogs) get(ctx context.Context, over *catalog.Catalog) (*catalog.Catalog, error) {
	for {
		s := c.at.Load()
		if s.stopped || !s.joining && s.cat != over {
			return s.cat, nil
		}
		select {
		case <-s.replaced:
		case <-ctx.Done():
			return nil, errs.E(errs.Timeout, "", "this node was evicted from the cluster, and has not joined again in time: %w", context.Cause(ctx))
		}
	}
}

// over reports whether the call failed because its catalog was given up, so that the next one can be asked. That may be before the node knows
// that it was evicted: the cluster applies no more commands of it, and says so.
func (c *catalogs) over(asked *catalog.Catalog, err error) bool {
	switch {
	case c.at.Load().stopped:
		return false
	case errs.Is(err, errs.Evicted):
		return true
	case !errs.Is(err, errs.Closed):
		return false
	}
	select {
	case <-asked.Evicted():
		return true
	default:
		return false
	}
}

// ask makes a call that may be made again: one that changes nothing, or nothing more the second time.
func ask[T any](ctx context.Context, c *catalogs, call func(*catalog.Catalog) (T, error)) (T, error) {
	var over *catalog.Catalog
	for {
		now, err := c.get(ctx, over)
		if err != nil {
			var none T
			return none, err
		}
		r, err := call(now)
		if !c.over(now, err) {
			return r, err
		}
		over = now
	}
}

// once makes a call of which nobody knows, if the node is evicted, whether it happened.
func once[T any](ctx context.Context, c *catalogs, call func(*catalog.Catalog) (T, error)) (T, error) {
	now, err := c.get(ctx, nil)
	if err != nil {
		var none T
		return none, err
	}
	r, err := call(now)
	if c.over(now, err) {
		err = errs.E(errs.Unavailable, "", "this node was evicted from the cluster meanwhile: it is unknown whether this happened")
	}
	return r, err
}

// only drops the result of a call that has none.
func only(call func(*catalog.Catalog) error) func(*catalog.Catalog) (struct{}, error) {
	return func(now *catalog.Catalog) (struct{}, error) { return struct{}{}, call(now) }
}

// Lookup implements fs.Names.
func (c *catalogs) Lookup(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error) {
	return ask(ctx, c, func(now *catalog.Catalog) (dsm.Inode, error) { return now.Lookup(ctx, dir, name) })
}

// Getattr implements fs.Names.
func (c *catalogs) Getattr(ctx context.Context, ino dsm.Ino) (dsm.Inode, error) {
	return ask(ctx, c, func(now *catalog.Catalog) (dsm.Inode, error) { return now.Getattr(ctx, ino) })
}

// LookupKnown implements fs.Names.
func (c *catalogs) LookupKnown(dir dsm.Ino, name string) (dsm.Inode, error) {
	return c.last().LookupKnown(dir, name)
}

// GetattrKnown implements fs.Names.
func (c *catalogs) GetattrKnown(ino dsm.Ino) (dsm.Inode, error) { return c.last().GetattrKnown(ino) }

// ReadDir implements fs.Names.
func (c *catalogs) ReadDir(ctx context.Context, dir dsm.Ino) ([]dsm.DirEntry, error) {
	return ask(ctx, c, func(now *catalog.Catalog) ([]dsm.DirEntry, error) { return now.ReadDir(ctx, dir) })
}

// Stat implements fs.Names.
func (c *catalogs) Stat(ctx context.Context, dir dsm.Ino, entries []dsm.DirEntry) ([]dsm.Inode, error) {
	return ask(ctx, c, func(now *catalog.Catalog) ([]dsm.Inode, error) { return now.Stat(ctx, dir, entries) })
}

// Create implements fs.Names.
func (c *catalogs) Create(ctx context.Context, dir dsm.Ino, name string, n dsm.Inode, claim bool, settings ...dsm.Setting) (dsm.Inode, error) {
	return once(ctx, c, func(now *catalog.Catalog) (dsm.Inode, error) {
		return now.Create(ctx, dir, name, n, claim, settings...)
	})
}

// CreateTemp implements fs.Names.
func (c *catalogs) CreateTemp(ctx context.Context, dir dsm.Ino, n dsm.Inode, settings ...dsm.Setting) (dsm.Inode, error) {
	return once(ctx, c, func(now *catalog.Catalog) (dsm.Inode, error) { return now.CreateTemp(ctx, dir, n, settings...) })
}

// Link implements fs.Names.
func (c *catalogs) Link(ctx context.Context, ino, dir dsm.Ino, name string) (dsm.Inode, error) {
	return once(ctx, c, func(now *catalog.Catalog) (dsm.Inode, error) { return now.Link(ctx, ino, dir, name) })
}

// Unlink implements fs.Names.
func (c *catalogs) Unlink(ctx context.Context, dir dsm.Ino, name string) error {
	_, err := once(ctx, c, only(func(now *catalog.Catalog) error { return now.Unlink(ctx, dir, name) }))
	return err
}

// Rmdir implements fs.Names.
func (c *catalogs) Rmdir(ctx context.Context, dir dsm.Ino, name string, is dsm.Ino) error {
	_, err := once(ctx, c, only(func(now *catalog.Catalog) error { return now.Rmdir(ctx, dir, name, is) }))
	return err
}

// Rename implements fs.Names.
func (c *catalogs) Rename(ctx context.Context, dir dsm.Ino, name string, newDir dsm.Ino, newName string, how dsm.RenameHow, over dsm.Ino) error {
	_, err := once(ctx, c, only(func(now *catalog.Catalog) error { return now.Rename(ctx, dir, name, newDir, newName, how, over) }))
	return err
}

// SetAttr implements fs.Names.
func (c *catalogs) SetAttr(ctx context.Context, ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error) {
	call := func(now *catalog.Catalog) (dsm.Inode, error) { return now.SetAttr(ctx, ino, ch) }
	if ch.Repeatable() {
		return ask(ctx, c, call)
	}
	return once(ctx, c, call)
}

// SetSpec implements fs.Names.
func (c *catalogs) SetSpec(ctx context.Context, ino dsm.Ino, key, value string) (dsm.Inode, error) {
	return ask(ctx, c, func(now *catalog.Catalog) (dsm.Inode, error) { return now.SetSpec(ctx, ino, key, value) })
}

// GetXattr implements fs.Names.
func (c *catalogs) GetXattr(ctx context.Context, ino dsm.Ino, name string) ([]byte, error) {
	return ask(ctx, c, func(now *catalog.Catalog) ([]byte, error) { return now.GetXattr(ctx, ino, name) })
}

// SetXattr implements fs.Names.
func (c *catalogs) SetXattr(ctx context.Context, ino dsm.Ino, name string, value []byte, how dsm.XattrHow) error {
	_, err := once(ctx, c, only(func(now *catalog.Catalog) error { return now.SetXattr(ctx, ino, name, value, how) }))
	return err
}

// RemoveXattr implements fs.Names.
func (c *catalogs) RemoveXattr(ctx context.Context, ino dsm.Ino, name string) error {
	_, err := once(ctx, c, only(func(now *catalog.Catalog) error { return now.RemoveXattr(ctx, ino, name) }))
	return err
}

// ListXattr implements fs.Names.
func (c *catalogs) ListXattr(ctx context.Context, ino dsm.Ino) ([]string, error) {
	return ask(ctx, c, func(now *catalog.Catalog) ([]string, error) { return now.ListXattr(ctx, ino) })
}

// Claim implements fs.Names.
func (c *catalogs) Claim(ctx context.Context, ino dsm.Ino, write bool) (dsm.Inode, error) {
	return ask(ctx, c, func(now *catalog.Catalog) (dsm.Inode, error) { return now.Claim(ctx, ino, write) })
}

// Unclaim implements fs.Names.
func (c *catalogs) Unclaim(ctx context.Context, inos ...dsm.Ino) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.Unclaim(ctx, inos...) }))
	return err
}

// CountPages implements fs.Names.
func (c *catalogs) CountPages(ctx context.Context, counts ...dsm.PageCount) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.CountPages(ctx, counts...) }))
	return err
}

// WaitApplied implements coherence.View.
func (c *catalogs) WaitApplied(ctx context.Context, rev dsm.Generation, e dsm.Epoch) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.WaitApplied(ctx, rev, e) }))
	return err
}

// SlotsReady implements coherence.View.
func (c *catalogs) SlotsReady(ctx context.Context, slots []dsm.Slot, e dsm.Epoch) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.SlotsReady(ctx, slots, e) }))
	return err
}

// HandoverFailed implements coherence.View.
func (c *catalogs) HandoverFailed(ctx context.Context, back, lost []dsm.Slot, e dsm.Epoch) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.HandoverFailed(ctx, back, lost, e) }))
	return err
}

// BackupInSync implements coherence.View.
func (c *catalogs) BackupInSync(ctx context.Context, node dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.BackupInSync(ctx, node, slots, e) }))
	return err
}

// BackupLags implements coherence.View.
func (c *catalogs) BackupLags(ctx context.Context, node dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.BackupLags(ctx, node, slots, e) }))
	return err
}

// MayServe implements coherence.View.
func (c *catalogs) MayServe() bool { return c.MayGrant() }

// Promised implements coherence.View.
func (c *catalogs) Promised() int64 { return c.last().Promised() }

// MoveArea implements coherence.View.
func (c *catalogs) MoveArea(ctx context.Context, id dsm.AreaID, to dsm.NodeID, patience uint8, e dsm.Epoch) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.MoveArea(ctx, id, to, patience, e) }))
	return err
}

// OwnArea implements coherence.View.
func (c *catalogs) OwnArea(ctx context.Context, id dsm.AreaID, to dsm.NodeID) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.OwnArea(ctx, id, to) }))
	return err
}

// SetLayout implements coherence.View.
func (c *catalogs) SetLayout(ctx context.Context, id dsm.AreaID, l dsm.Layout) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.SetLayout(ctx, id, l) }))
	return err
}

// AskLock implements locks.Cluster.
func (c *catalogs) AskLock(ctx context.Context, ino dsm.Ino, r locks.Request) error {
	_, err := once(ctx, c, only(func(now *catalog.Catalog) error { return now.AskLock(ctx, ino, r) }))
	return err
}

// SurrenderLocks implements locks.Cluster.
func (c *catalogs) SurrenderLocks(ctx context.Context, ino dsm.Ino, term uint64, granted []locks.Lock, waiting []locks.Request) error {
	_, err := once(ctx, c, only(func(now *catalog.Catalog) error { return now.SurrenderLocks(ctx, ino, term, granted, waiting) }))
	return err
}

// CancelLock implements locks.Cluster.
func (c *catalogs) CancelLock(ctx context.Context, ino dsm.Ino, ticket uint64) error {
	_, err := once(ctx, c, only(func(now *catalog.Catalog) error { return now.CancelLock(ctx, ino, ticket) }))
	return err
}

// ShowLife implements locks.Cluster.
func (c *catalogs) ShowLife(ctx context.Context) error {
	_, err := ask(ctx, c, only(func(now *catalog.Catalog) error { return now.ShowLife(ctx) }))
	return err
}

// Trust returns the keys and tokens of the cluster, nil if it does not encrypt.
func (c *catalogs) Trust(ctx context.Context) (*dsm.Trust, error) {
	return ask(ctx, c, func(now *catalog.Catalog) (*dsm.Trust, error) { return now.Trust(ctx) })
}

// ChangeTrust replaces them by what change makes of them, which may be called again.
func (c *catalogs) ChangeTrust(ctx context.Context, change func(*dsm.Trust) (*dsm.Trust, error)) (*dsm.Trust, error) {
	return once(ctx, c, func(now *catalog.Catalog) (*dsm.Trust, error) { return now.ChangeTrust(ctx, change) })
}

// usage is what Usage returns.
type usage struct {
	reserved, budget int64
	inodes           uint64
}

// Usage implements fs.Names.
func (c *catalogs) Usage(ctx context.Context) (reserved, budget int64, inodes uint64, err error) {
	of := func(now *catalog.Catalog) (u usage, err error) {
		u.reserved, u.budget, u.inodes, err = now.Usage(ctx)
		return u, err
	}
	if c.CutOff() { // then it says what was so last
		u, err := of(c.last())
		return u.reserved, u.budget, u.inodes, err
	}
	u, err := ask(ctx, c, of)
	return u.reserved, u.budget, u.inodes, err
}

// Keep implements fs.Names.
func (c *catalogs) Keep() time.Duration { return c.last().Keep() }

// CutOff implements fs.Names.
func (c *catalogs) CutOff() bool { return !c.MayGrant() }

// Current implements coherence.View.
func (c *catalogs) Current() *dsm.View { return c.last().Current() }

// Area implements coherence.View.
func (c *catalogs) Area(id dsm.AreaID) (dsm.Inode, bool) { return c.last().Area(id) }

// AreaSince implements coherence.View.
func (c *catalogs) AreaSince(id dsm.AreaID, rev dsm.Generation) (now dsm.Inode, least int64, gen dsm.Generation, ok bool) {
	return c.last().AreaSince(id, rev)
}

// LockStanding implements locks.Cluster.
func (c *catalogs) LockStanding(ino dsm.Ino) locks.Standing { return c.last().LockStanding(ino) }

// GrantedLocks implements locks.Cluster.
func (c *catalogs) GrantedLocks(ino dsm.Ino) []locks.Lock { return c.last().GrantedLocks(ino) }

// LockedFiles implements locks.Cluster.
func (c *catalogs) LockedFiles() []dsm.Ino { return c.last().LockedFiles() }

// DelegatedLocks implements locks.Cluster.
func (c *catalogs) DelegatedLocks() []dsm.Ino { return c.last().DelegatedLocks() }

// MayGrant implements locks.Cluster.
func (c *catalogs) MayGrant() bool {
	s := c.at.Load()
	return !s.joining && s.cat.MayGrant()
}
