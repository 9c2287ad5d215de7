package catalog

import (
	"context"
	"sync"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Each of the methods below makes one change. When they return without an error, the change has
// been made and applied on this node. With errs.Timeout or errs.Closed it may still happen.

// Create makes a file, directory or symbolic link with n's Kind, Perm, UID, GID and Target. With
// claim, this node claims it afterwards. A file also gets n's Size and the settings, as SetSpec would
// set them.
func (c *Catalog) Create(ctx context.Context, dir dsm.Ino, name string, n dsm.Inode, claim bool, settings ...dsm.Setting) (dsm.Inode, error) {
	return c.create(ctx, createOp{
		Dir: dir, Name: name, Kind: n.Kind, Perm: n.Perm, UID: n.UID, GID: n.GID, Target: n.Target, Claim: claim,
		Size: n.Size, Settings: settings,
	})
}

// CreateTemp makes a file without a name, as Create would make one in dir, and claims it. n's Layout is
// what the header that it will get says. Link may give it a name.
func (c *Catalog) CreateTemp(ctx context.Context, dir dsm.Ino, n dsm.Inode, settings ...dsm.Setting) (dsm.Inode, error) {
	return c.create(ctx, createOp{
		Dir: dir, Temp: true, Kind: dsm.KindFile, Perm: n.Perm, UID: n.UID, GID: n.GID, Claim: true,
		Size: n.Size, Layout: n.Layout, Settings: settings,
	})
}

// create makes an inode. What an earlier daemon has made for the same request of the kernel is claimed once more: the claims of a node end when the cluster evicts it. If it has
// gone since, another one is made.
func (c *Catalog) create(ctx context.Context, o createOp) (dsm.Inode, error) {
	a, err := c.commit(ctx, o)
	if err == nil {
		err = a.result.err("")
	}
	in := a.result.Inode
	if err == nil && a.again && o.Claim {
		if in, err = c.Claim(ctx, in.Ino, true); errs.Is(err, errs.NotExist) {
			return c.propose(ctx, o)
		}
	}
	return in, named(ops[kindCreate].name, err)
}

// Link gives another name to a file or symbolic link.
func (c *Catalog) Link(ctx context.Context, ino, dir dsm.Ino, name string) (dsm.Inode, error) {
	return c.propose(ctx, linkOp{ino, dir, name})
}

// Unlink removes a name of a file or symbolic link.
func (c *Catalog) Unlink(ctx context.Context, dir dsm.Ino, name string) error {
	_, err := c.propose(ctx, unlinkOp{dir, name})
	return err
}

// Rmdir removes an empty directory. If the name is not that of the directory is, which may be 0, the error is errs.Replaced.
func (c *Catalog) Rmdir(ctx context.Context, dir dsm.Ino, name string, is dsm.Ino) error {
	_, err := c.propose(ctx, rmdirOp{dir, name, is})
	return err
}

// Rename moves an entry. It replaces an existing one unless how forbids it. If what it would replace is not the directory over, which may be
// 0, or there is nothing, the error is errs.Replaced.
func (c *Catalog) Rename(ctx context.Context, dir dsm.Ino, name string, newDir dsm.Ino, newName string, how dsm.RenameHow, over dsm.Ino) error {
	_, err := c.propose(ctx, renameOp{dir, name, newDir, newName, how, over})
	return err
}

// SetAttr changes attributes and returns the changed inode. A file that it has made shorter is so on all nodes that have it open, and
// answer in time: see awaitShrink.
func (c *Catalog) SetAttr(ctx context.Context, ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error) {
	before, known := c.GetattrKnown(ino)
	in, err := c.propose(ctx, setAttrOp{ino, ch})
	if err == nil && ch.Size != nil && in.Gen == in.Rev && (known != nil || before.Gen != in.Gen) { // else it was as short before
		c.awaitShrink(ctx, in)
	}
	return in, err
}

// awaitShrink returns when the other nodes that claim a file have heard that it is shorter. What one of them took before that would be truncated, also if the
// program has written it after somebody told it of the shrink. So would be what it stores to a mapping, until the kernel of its node has dropped what was truncated:
// Config.Shrunk. Nobody waits longer than shrinkLimit: what a node takes that does not answer, it may not be able to publish either.
func (c *Catalog) awaitShrink(ctx context.Context, shrunk dsm.Inode) {
	var others []dsm.Member
	c.mu.RLock()
	if in := c.mu.state.inodes[shrunk.Ino]; in != nil {
		for _, m := range present(c.mu.state.view) {
			if _, claims := in.claims[m.ID]; claims && m.ID != c.self.ID {
				others = append(others, m)
			}
		}
	}
	c.mu.RUnlock()
	if len(others) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, shrinkLimit)
	defer cancel()
	var waits sync.WaitGroup
	for _, m := range others {
		waits.Go(func() {
			if _, err := c.probeAt(ctx, m.ID, m.Addr, wire.Probe{Until: uint64(shrunk.Rev), Shrunk: shrunk.Ino}); err != nil {
				c.log.Debug("a node may not know yet that a file is shorter", "node", m.ID, "inode", shrunk.Ino, "err", err)
			}
		})
	}
	waits.Wait()
}

// shrinkLimit bounds the wait for nodes that do not answer. It is as long as any change of names may take when a node dies.
const shrinkLimit = 2 * time.Second

// kernelLimit bounds the wait for a node's kernel. That may wait for a page which is being read from a node that does not answer, or, if programs of two nodes
// make the file shorter at once, for the other one.
const kernelLimit = 100 * time.Millisecond

// SetSpec sets one of dsm.SettingKeys.
func (c *Catalog) SetSpec(ctx context.Context, ino dsm.Ino, key, value string) (dsm.Inode, error) {
	return c.propose(ctx, setSpecOp{ino, key, value})
}

// SetXattr sets an extended attribute.
func (c *Catalog) SetXattr(ctx context.Context, ino dsm.Ino, name string, value []byte, how dsm.XattrHow) error {
	_, err := c.propose(ctx, setXattrOp{ino, name, value, how})
	return err
}

// RemoveXattr removes an extended attribute.
func (c *Catalog) RemoveXattr(ctx context.Context, ino dsm.Ino, name string) error {
	_, err := c.propose(ctx, removeXattrOp{ino, name})
	return err
}

// Claim keeps the inode until this node's Unclaim, even when it has no name any more.
func (c *Catalog) Claim(ctx context.Context, ino dsm.Ino, write bool) (dsm.Inode, error) {
	return c.propose(ctx, claimOp{ino, write})
}

// Unclaim ends claims, including those on inodes that do not exist any more.
func (c *Catalog) Unclaim(ctx context.Context, inos ...dsm.Ino) error {
	_, err := c.propose(ctx, unclaimOp{inos})
	return err
}

// CountPages enters how many pages of files have data. It passes over files that do not exist any more.
func (c *Catalog) CountPages(ctx context.Context, counts ...dsm.PageCount) error {
	_, err := c.propose(ctx, countOp{counts})
	return err
}

// SlotsReady says that this node, the primary of the slots in the view of epoch e, has received
// their state.
func (c *Catalog) SlotsReady(ctx context.Context, slots []dsm.Slot, e dsm.Epoch) error {
	_, err := c.propose(ctx, slotsReadyOp{slots, e})
	return err
}

// HandoverFailed says that the nodes to which this one was to hand the slots over are gone in the view of epoch e. Those in back come
// back to it, and go to others if it leaves. Those in lost stay with the dead.
func (c *Catalog) HandoverFailed(ctx context.Context, back, lost []dsm.Slot, e dsm.Epoch) error {
	_, err := c.propose(ctx, handoverFailedOp{back, lost, e})
	return err
}

// BackupInSync says that a backup has all that this node, the home of the slots in the view of epoch e, has let anybody see of them, and that from
// now on this node lets nobody see what the backup lacks.
func (c *Catalog) BackupInSync(ctx context.Context, node dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error {
	_, err := c.propose(ctx, backupsOp{node, slots, true, e})
	return err
}

// BackupLags says that a backup of this node does not answer in time: when it returns the backup cannot take over any more.
func (c *Catalog) BackupLags(ctx context.Context, node dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error {
	_, err := c.propose(ctx, backupsOp{node, slots, false, e})
	return err
}

// MoveArea moves an area of this node, its home in the view of epoch e, to another one. The area does not move by itself again before a
// node has been the only one to publish to it for as many windows as patience says.
func (c *Catalog) MoveArea(ctx context.Context, id dsm.AreaID, to dsm.NodeID, patience uint8, e dsm.Epoch) error {
	_, err := c.propose(ctx, moveOp{dsm.Ino(id), to, patience, e})
	return err
}

// OwnArea makes a node the owner of a versioned area: this node, of one that has no owner, or another one, of an area that this node owns.
func (c *Catalog) OwnArea(ctx context.Context, id dsm.AreaID, to dsm.NodeID) error {
	_, err := c.propose(ctx, ownOp{dsm.Ino(id), to})
	return err
}

// SetLayout records the layout that the header of a file without an explicit type gives.
func (c *Catalog) SetLayout(ctx context.Context, id dsm.AreaID, l dsm.Layout) error {
	_, err := c.propose(ctx, setLayoutOp{id, l})
	return err
}
