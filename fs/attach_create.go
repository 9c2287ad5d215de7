package fs

import (
	"context"
	"strings"

	"github.com/dsmfs/dsmfs/fs/control"
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
	case dir.Ino == dsm.RootIno && name == control.Name:
		return attachReply{}, errs.E(errs.Permission, op, "%s is where the control files are", path)
	case !a.cred.may(dir, mayWrite|maySearch):
		return attachReply{}, errs.E(errs.Access, op, "%s: no write permission for its directory", path)
	}
	n := owned(dsm.Inode{Kind: dsm.KindFile, Perm: uint32(q.arg[1]) & 0o7777, Size: int64(q.arg[0])}, dir, a.cred.uid, a.cred.gid)
	if a.cred.uid != 0 && !a.cred.in(n.GID) { // the kernel does this for a mount
		n.Perm &^= unix.S_ISGID
	}
	i, err := a.b.withRoom(ctx, func() (dsm.Inode, error) {
		return a.b.cfg.Names.Create(ctx, dir.Ino, name, n, false, settings...)
	})
	if errs.Is(err, errs.Exist) && q.arg[2] == 0 {
		i, err = a.b.file(ctx, &a.cred, path, mayRead|mayWrite)
	}
	if err != nil {
		return attachReply{}, err
	}
	return attachReply{arg: [4]uint64{uint64(i.Size), uint64(i.Ino)}}, nil
}

// parseCreate takes the payload of CREATE apart: a path, then lines "key value", each
// ended by a newline.
func parseCreate(payload string) (path string, settings []dsm.Setting, err error) {
	path, rest, ok := strings.Cut(payload, "\n")
	if !ok {
		return "", nil, errs.E(errs.Invalid, "create", "want a path and a newline, then lines of a setting and its value")
	}
	for line := range strings.Lines(rest) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok {
			return "", nil, errs.E(errs.Invalid, "create", "line %q: want a setting and its value", line)
		}
		if err := checkSetting(key); err != nil {
			return "", nil, err
		}
		settings = append(settings, dsm.Setting{Key: key, Value: value})
	}
	return path, settings, nil
}
