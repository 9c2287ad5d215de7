package fs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"golang.org/x/sys/unix"
)

// create makes a file for the program, as its creat(2) on a mount would.
func (a *attachConn) create(ctx context.Context, q *attachRequest) (attachReply, error) {
	const op = "create"
	path, settings, err := parseCreate(q.payload)
	if err != nil {
		return attachReply{}, err
	}
	if q.arg[0] > dsm.MaxAreaSize {
		return attachReply{}, errs.E(errs.TooLarge, op, "")
	}
	dir, name, err := a.b.walk(ctx, &a.cred, path)
	switch {
	case err != nil:
		return attachReply{}, err
	case dir.Ino == dsm.RootIno && name == controlName:
		return attachReply{}, errs.E(errs.Permission, op, "%s is where the control files are", path)
	case !a.cred.may(dir, mayWrite|maySearch):
		return attachReply{}, errs.E(errs.Access, op, "%s: no write permission for its directory", path)
	}
	n := owned(dsm.Inode{Kind: dsm.KindFile, Perm: uint32(q.arg[1]) & 0o7777}, dir, a.cred.uid, a.cred.gid)
	if a.cred.uid != 0 && !a.cred.in(n.GID) { // the kernel does this for a mount
		n.Perm &^= unix.S_ISGID
	}
	i, err := a.b.createWhole(ctx, dir, name, n, int64(q.arg[0]), settings)
	if errs.Is(err, errs.Exist) && q.arg[2] == 0 {
		i, err = a.b.file(ctx, &a.cred, path, mayRead|mayWrite)
	}
	if err != nil {
		return attachReply{}, err
	}
	return attachReply{arg: [4]uint64{uint64(i.Size), uint64(i.Ino)}}, nil
}

// createWhole makes a file with a size and settings. Nobody finds it half made: it has a name of its
// own until it is as asked.
func (b *bridge) createWhole(ctx context.Context, dir dsm.Inode, name string, n dsm.Inode, size int64, settings []Stat) (dsm.Inode, error) {
	if size == 0 && len(settings) == 0 {
		return b.cfg.Names.Create(ctx, dir.Ino, name, n, false)
	}
	if _, err := b.cfg.Names.Lookup(ctx, dir.Ino, name); err == nil {
		return dsm.Inode{}, errs.E(errs.Exist, "create", "")
	} else if !errs.Is(err, errs.NotExist) {
		return dsm.Inode{}, err
	}
	making := fmt.Sprintf(".dsmfs-%016x", rand.Uint64())
	i, err := b.cfg.Names.Create(ctx, dir.Ino, making, n, false)
	if err != nil {
		return i, err
	}
	for _, s := range settings {
		if err == nil {
			err = b.setSpec(ctx, i.Ino, s.Name, s.Value)
		}
	}
	if err == nil && size > 0 {
		i, err = b.resize(ctx, i.Ino, dsm.SetAttr{Size: &size})
	}
	if err == nil {
		err = b.cfg.Names.Rename(ctx, dir.Ino, making, dir.Ino, name, dsm.RenameNoReplace)
	}
	if err == nil {
		return i, nil
	}
	if uerr := b.cfg.Names.Unlink(ctx, dir.Ino, making); uerr != nil {
		b.log.Warn("create: a file that could not be made as asked stays", "name", making, "err", uerr)
	}
	return dsm.Inode{}, err
}

// parseCreate takes the payload of CREATE apart: a path, then lines "key value", each
// ended by a newline.
func parseCreate(payload string) (path string, settings []Stat, err error) {
	path, rest, ok := strings.Cut(payload, "\n")
	if !ok {
		return "", nil, errs.E(errs.Invalid, "create", "want a path and a newline, then lines of a setting and its value")
	}
	for line := range strings.Lines(rest) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok {
			return "", nil, errs.E(errs.Invalid, "create", "line %q: want a setting and its value", line)
		}
		settings = append(settings, Stat{key, value})
	}
	return path, settings, nil
}
