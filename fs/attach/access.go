package attach

import (
	"context"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"golang.org/x/sys/unix"
)

// program is the program at the other end of a connection. The kernel says who it is.
type program struct {
	dsm.Credentials
	pid   int
	start uint64 // when the process began, 0 if that is not known: another one may get its number
}

// walk resolves a path from the root of the filesystem, with the permissions of the program. It returns
// the directory of the last name, and that name. It does not follow symlinks: the program resolves
// them before it asks.
func (s *Server) walk(ctx context.Context, c *program, path string) (dir dsm.Inode, name string, err error) {
	const op = "attach"
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return dir, "", errs.E(errs.Invalid, op, "path %q: want one from the root of the filesystem, as /dir/file", path)
	}
	names := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	if len(names) == 0 {
		return dir, "", errs.E(errs.IsDir, op, "")
	}
	dir, err = s.cfg.Mount.Getattr(ctx, dsm.RootIno)
	for i, name := range names {
		switch {
		case err != nil:
			return dir, "", err
		case name == "." || name == ".." || len(name) > dsm.MaxName:
			return dir, "", errs.E(errs.Invalid, op, "path %q: it must have no . and .. and no name longer than %d bytes", path, dsm.MaxName)
		case dir.Kind == dsm.KindSymlink:
			return dir, "", &errs.Error{Op: op, Path: path, Err: unix.ELOOP}
		case dir.Kind != dsm.KindDir:
			return dir, "", &errs.Error{Op: op, Path: path, Kind: errs.NotDir}
		case !c.May(dir, dsm.MaySearch):
			return dir, "", errs.E(errs.Access, op, "no search permission above %q", name)
		}
		if i == len(names)-1 {
			return dir, name, nil
		}
		dir, err = s.cfg.Mount.Lookup(ctx, dir.Ino, name)
	}
	return dir, "", err
}

// file resolves a path to a regular file, and checks that the program may use it as wanted.
func (s *Server) file(ctx context.Context, c *program, path string, want uint32) (dsm.Inode, error) {
	const op = "attach"
	dir, name, err := s.walk(ctx, c, path)
	if err != nil {
		return dsm.Inode{}, err
	}
	i, err := s.cfg.Mount.Lookup(ctx, dir.Ino, name)
	switch {
	case err != nil:
		return i, err
	case i.Kind == dsm.KindSymlink:
		return i, &errs.Error{Op: op, Path: path, Err: unix.ELOOP}
	case i.Kind != dsm.KindFile:
		return i, &errs.Error{Op: op, Path: path, Kind: errs.IsDir}
	case !c.May(i, want):
		return i, errs.E(errs.Access, op, "%s: mode %04o, owner %d, group %d does not let user %d", path, i.Perm, i.UID, i.GID, c.UID)
	}
	return i, nil
}

// openFile returns a file by its number, for a program that has the file open although its name
// does not lead to it any more. No directory's permissions protect the file here, so it must belong
// to the program's owner, or be open in the program.
func (s *Server) openFile(ctx context.Context, c *program, ino dsm.Ino, want uint32) (dsm.Inode, error) {
	const op = "attach"
	if !s.cfg.Mount.IsOpen(ino) {
		return dsm.Inode{}, errs.E(errs.NotExist, op, "the path leads to another file, and file %d is not open on this node", ino)
	}
	i, err := s.cfg.Mount.Getattr(ctx, ino)
	switch {
	case err != nil:
		return i, err
	case i.Kind != dsm.KindFile:
		return i, errs.E(errs.IsDir, op, "")
	case !c.May(i, want) || c.UID != 0 && c.UID != i.UID && !hasOpen(c.pid, ino):
		return i, errs.E(errs.Access, op, "file %d: mode %04o, owner %d, group %d does not let user %d, or it is not open there", ino, i.Perm, i.UID, i.GID, c.UID)
	}
	return i, nil
}
