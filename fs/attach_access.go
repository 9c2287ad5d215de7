package fs

import (
	"context"
	"slices"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"golang.org/x/sys/unix"
)

// credentials say on whose behalf a program asks, as the kernel tells by its socket.
type credentials struct {
	pid      int
	uid, gid uint32
	groups   []uint32
}

// Bits of what is asked for, as in a mode.
const (
	mayRead   = 4
	mayWrite  = 2
	maySearch = 1
)

// may reports whether owner, group and mode of the inode allow all of want.
func (c *credentials) may(i dsm.Inode, want uint32) bool {
	perm := i.Perm
	switch {
	case c.uid == 0:
		return true
	case c.uid == i.UID:
		perm >>= 6
	case c.in(i.GID):
		perm >>= 3
	}
	return perm&want == want
}

// in reports whether the group is one of the program's.
func (c *credentials) in(group uint32) bool {
	return c.gid == group || slices.Contains(c.groups, group)
}

// walk resolves a path from the root of the filesystem to the directory of its last
// name, on behalf of the program. Symlinks are the program's own business: it resolves them
// before it asks.
func (b *bridge) walk(ctx context.Context, c *credentials, path string) (dir dsm.Inode, name string, err error) {
	const op = "attach"
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return dir, "", errs.E(errs.Invalid, op, "path %q: want one from the root of the filesystem, as /dir/file", path)
	}
	names := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	if len(names) == 0 {
		return dir, "", errs.E(errs.IsDir, op, "")
	}
	dir, err = b.cfg.Names.Getattr(ctx, dsm.RootIno)
	for i, name := range names {
		switch {
		case err != nil:
			return dir, "", err
		case name == "." || name == ".." || len(name) > maxName:
			return dir, "", errs.E(errs.Invalid, op, "path %q: it must have no . and .. and no name longer than %d bytes", path, maxName)
		case dir.Kind == dsm.KindSymlink:
			return dir, "", &errs.Error{Op: op, Path: path, Err: unix.ELOOP}
		case dir.Kind != dsm.KindDir:
			return dir, "", &errs.Error{Op: op, Path: path, Kind: errs.NotDir}
		case !c.may(dir, maySearch):
			return dir, "", errs.E(errs.Access, op, "no search permission above %q", name)
		}
		if i == len(names)-1 {
			return dir, name, nil
		}
		dir, err = b.cfg.Names.Lookup(ctx, dir.Ino, name)
	}
	return dir, "", err
}

// file resolves a path to a regular file which the program may use as it wants.
func (b *bridge) file(ctx context.Context, c *credentials, path string, want uint32) (dsm.Inode, error) {
	const op = "attach"
	dir, name, err := b.walk(ctx, c, path)
	if err != nil {
		return dsm.Inode{}, err
	}
	i, err := b.cfg.Names.Lookup(ctx, dir.Ino, name)
	switch {
	case err != nil:
		return i, err
	case i.Kind == dsm.KindSymlink:
		return i, &errs.Error{Op: op, Path: path, Err: unix.ELOOP}
	case i.Kind != dsm.KindFile:
		return i, &errs.Error{Op: op, Path: path, Kind: errs.IsDir}
	case !c.may(i, want):
		return i, errs.E(errs.Access, op, "%s: mode %04o, owner %d, group %d does not let user %d", path, i.Perm, i.UID, i.GID, c.uid)
	}
	return i, nil
}

// openFile returns a file by its number: one that the program has open, but that its
// name does not lead to any more. The directories above it are not there to let
// somebody in, so it must be the program's owner's, or open in the program.
func (b *bridge) openFile(ctx context.Context, c *credentials, ino dsm.Ino, want uint32) (dsm.Inode, error) {
	const op = "attach"
	a := b.opens.find(dsm.AreaID(ino))
	if a == nil || a.handles() == 0 {
		return dsm.Inode{}, errs.E(errs.NotExist, op, "the path leads to another file, and file %d is not open on this node", ino)
	}
	i, err := b.cfg.Names.Getattr(ctx, ino)
	switch {
	case err != nil:
		return i, err
	case i.Kind != dsm.KindFile:
		return i, errs.E(errs.IsDir, op, "")
	case !c.may(i, want) || c.uid != 0 && c.uid != i.UID && !hasOpen(c.pid, ino):
		return i, errs.E(errs.Access, op, "file %d: mode %04o, owner %d, group %d does not let user %d, or it is not open there", ino, i.Perm, i.UID, i.GID, c.uid)
	}
	return i, nil
}
