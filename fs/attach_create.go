package fs

import (
	"context"
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
	i, err := a.b.cfg.Names.Create(ctx, dir.Ino, name, n, false)
	if errs.Is(err, errs.Exist) && q.arg[2] == 0 {
		i, err = a.b.file(ctx, &a.cred, path, mayRead|mayWrite)
		return attachReply{arg: [4]uint64{uint64(i.Size), uint64(i.Ino)}}, err
	}
	if err != nil {
		return attachReply{}, err
	}
	for _, s := range settings {
		if err = a.b.setSpec(ctx, i.Ino, s.Name, s.Value); err != nil {
			break
		}
	}
	if size := int64(q.arg[0]); err == nil && size > 0 {
		i, err = a.b.resize(ctx, i.Ino, dsm.SetAttr{Size: &size})
	}
	if err != nil { // nobody is to find it half made
		if uerr := a.b.cfg.Names.Unlink(ctx, dir.Ino, name); uerr != nil {
			a.b.log.Warn("create: a file that could not be made as asked stays", "path", path, "err", uerr)
		}
		return attachReply{}, err
	}
	return attachReply{arg: [4]uint64{uint64(i.Size), uint64(i.Ino)}}, nil
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
