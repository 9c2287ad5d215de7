package fs

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Names is the linearizable catalog of names, sizes and attributes, as fs needs
// it. Every method sees the effect of every call that had returned, on any
// node, before it began. Errors carry an errs.Kind. A method whose ctx ends
// before the catalog answered returns errs.Timeout; the change may still happen.
type Names interface {
	Lookup(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error)
	Getattr(ctx context.Context, ino dsm.Ino) (dsm.Inode, error)
	ReadDir(ctx context.Context, dir dsm.Ino) ([]dsm.DirEntry, error)
	// Stat returns the inodes of entries of dir in one step, a zero one for a name that
	// is not of the entry's inode any more.
	Stat(ctx context.Context, dir dsm.Ino, entries []dsm.DirEntry) ([]dsm.Inode, error)
	// Keep returns for how long the kernel may keep what a read that begins now returns, 0
	// for not at all: no other node changes it before.
	Keep() time.Duration
	// CutOff reports whether the others have not answered this node for so long that a read would most likely wait
	// until its request ends.
	CutOff() bool
	// LookupKnown and GetattrKnown are Lookup and Getattr as this node knows. They ask nobody.
	LookupKnown(dir dsm.Ino, name string) (dsm.Inode, error)
	GetattrKnown(ino dsm.Ino) (dsm.Inode, error)
	// Create makes a file, directory or symlink (n.Kind); n's Perm, UID, GID and
	// Target, and the Size of a regular file, are taken. Its Spec is inherited from dir, and changed by
	// the settings of a regular file. errs.Exist if the name is taken; nobody finds it half made.
	// With claim, this node claims a regular file in the same step. If it is made after the call has failed, FS.Orphaned
	// is called; so with CreateTemp.
	Create(ctx context.Context, dir dsm.Ino, name string, n dsm.Inode, claim bool, settings ...dsm.Setting) (dsm.Inode, error)
	// CreateTemp makes a regular file as Create would, but without a name, and this node claims it. n's Layout
	// is what the header that the file will get says, if that is known.
	CreateTemp(ctx context.Context, dir dsm.Ino, n dsm.Inode, settings ...dsm.Setting) (dsm.Inode, error)
	// Link gives a file or symlink a further name: errs.Permission for a directory.
	Link(ctx context.Context, ino, dir dsm.Ino, name string) (dsm.Inode, error)
	Unlink(ctx context.Context, dir dsm.Ino, name string) error
	// Rmdir removes a directory. If is is not 0 and the name is not that directory's any more, it returns errs.Replaced.
	Rmdir(ctx context.Context, dir dsm.Ino, name string, is dsm.Ino) error
	// Rename moves a name over an existing one if there is one. If over is not 0 and newName is not that directory's any more,
	// it returns errs.Replaced.
	Rename(ctx context.Context, dir dsm.Ino, name string, newDir dsm.Ino, newName string, how dsm.RenameHow, over dsm.Ino) error
	SetAttr(ctx context.Context, ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error)
	SetSpec(ctx context.Context, ino dsm.Ino, key, value string) (dsm.Inode, error)
	GetXattr(ctx context.Context, ino dsm.Ino, name string) ([]byte, error)
	SetXattr(ctx context.Context, ino dsm.Ino, name string, value []byte, how dsm.XattrHow) error
	RemoveXattr(ctx context.Context, ino dsm.Ino, name string) error
	ListXattr(ctx context.Context, ino dsm.Ino) ([]string, error)
	// Claim keeps the inode alive, unlinked or not, until this node's Unclaim.
	// It returns errs.NotExist if the inode is gone already. Holds do not nest. With write, and
	// after Create and CreateTemp, the file's locks are delegated to this node if no other has it open.
	Claim(ctx context.Context, ino dsm.Ino, write bool) (dsm.Inode, error)
	Unclaim(ctx context.Context, inos ...dsm.Ino) error
	// CountPages enters Inode.Pages of files, those that still exist.
	CountPages(ctx context.Context, counts ...dsm.PageCount) error
	// Usage returns the bytes reserved by all areas and the most they may reserve,
	// the number of inodes.
	Usage(ctx context.Context) (reserved, budget int64, inodes uint64, err error)
}
