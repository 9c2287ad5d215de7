package catalog

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// The methods below make one change each. It is done, on this node too, when
// they return without an error; with errs.Timeout or errs.Closed it may still happen.

// Create makes a file, directory or symbolic link of n's Kind with n's Perm,
// UID, GID and Target, and with hold holds it. A file gets n's Size and the settings, as SetSpec would set them.
func (c *Catalog) Create(ctx context.Context, dir dsm.Ino, name string, n dsm.Inode, hold bool, settings ...dsm.Setting) (dsm.Inode, error) {
	return c.propose(ctx, createOp{
		Dir: dir, Name: name, Kind: n.Kind, Perm: n.Perm, UID: n.UID, GID: n.GID, Target: n.Target, Hold: hold,
		Size: n.Size, Settings: settings,
	})
}

// CreateTemp makes a file like those made in dir, without a name, and holds it. Link may give it one.
func (c *Catalog) CreateTemp(ctx context.Context, dir dsm.Ino, n dsm.Inode) (dsm.Inode, error) {
	return c.propose(ctx, createOp{Dir: dir, Temp: true, Kind: dsm.KindFile, Perm: n.Perm, UID: n.UID, GID: n.GID, Hold: true})
}

// Link gives a file or symbolic link a further name.
func (c *Catalog) Link(ctx context.Context, ino, dir dsm.Ino, name string) (dsm.Inode, error) {
	return c.propose(ctx, linkOp{ino, dir, name})
}

// Unlink removes a name of a file or symbolic link.
func (c *Catalog) Unlink(ctx context.Context, dir dsm.Ino, name string) error {
	_, err := c.propose(ctx, unlinkOp{dir, name})
	return err
}

// Rmdir removes an empty directory.
func (c *Catalog) Rmdir(ctx context.Context, dir dsm.Ino, name string) error {
	_, err := c.propose(ctx, rmdirOp{dir, name})
	return err
}

// Rename moves an entry, over an existing one unless how forbids it.
func (c *Catalog) Rename(ctx context.Context, dir dsm.Ino, name string, newDir dsm.Ino, newName string, how dsm.RenameHow) error {
	_, err := c.propose(ctx, renameOp{dir, name, newDir, newName, how})
	return err
}

// SetAttr changes attributes and returns the inode after it.
func (c *Catalog) SetAttr(ctx context.Context, ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error) {
	return c.propose(ctx, setAttrOp{ino, ch})
}

// SetSpec sets one of mode, merge, dtype, apply, interval, residency and access.
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

// Hold keeps the inode until this node's Unhold, even when it has lost its name.
func (c *Catalog) Hold(ctx context.Context, ino dsm.Ino) (dsm.Inode, error) {
	return c.propose(ctx, holdOp{ino})
}

// Unhold ends Hold, of inodes that are gone too.
func (c *Catalog) Unhold(ctx context.Context, inos ...dsm.Ino) error {
	_, err := c.propose(ctx, unholdOp{inos})
	return err
}

// SlotsReady says that this node, the primary of the slots in the view of
// epoch e, has received their state.
func (c *Catalog) SlotsReady(ctx context.Context, slots []dsm.Slot, e dsm.Epoch) error {
	_, err := c.propose(ctx, slotsReadyOp{slots, e})
	return err
}

// SetLayout records what the header of a file without an explicit type says.
func (c *Catalog) SetLayout(ctx context.Context, id dsm.AreaID, l dsm.Layout) error {
	_, err := c.propose(ctx, setLayoutOp{id, l})
	return err
}
