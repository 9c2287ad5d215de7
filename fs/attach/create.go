package attach

import (
	"context"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// create makes a file for the program, as creat(2) on a mount would.
func (a *conn) create(ctx context.Context, q *request) (reply, error) {
	const op = "create"
	path, settings, err := a.s.parseCreate(q.payload)
	if err != nil {
		return reply{}, err
	}
	if q.arg[0] > dsm.MaxAreaSize {
		return reply{}, errs.E(errs.TooLarge, op, "")
	}
	dir, name, err := a.s.walk(ctx, &a.who, path)
	switch {
	case err != nil:
		return reply{}, err
	case !a.who.May(dir, dsm.MayWrite|dsm.MaySearch):
		return reply{}, errs.E(errs.Access, op, "%s: no write permission for its directory", path)
	}
	i, err := a.s.cfg.Mount.Create(ctx, &a.who.Credentials, dir, name,
		dsm.Inode{Kind: dsm.KindFile, Perm: uint32(q.arg[1]) & 0o7777, Size: int64(q.arg[0])}, settings)
	if errs.Is(err, errs.Exist) && q.arg[2] == 0 {
		i, err = a.s.file(ctx, &a.who, path, dsm.MayRead|dsm.MayWrite)
	}
	if err != nil {
		return reply{}, err
	}
	return reply{arg: [4]uint64{uint64(i.Size), uint64(i.Ino)}}, nil
}

// parseCreate splits the payload of CREATE: a path, then lines "key value", each ended by a
// newline.
func (s *Server) parseCreate(payload string) (path string, settings []dsm.Setting, err error) {
	path, rest, ok := strings.Cut(payload, "\n")
	if !ok {
		return "", nil, errs.E(errs.Invalid, "create", "want a path and a newline, then lines of a setting and its value")
	}
	for line := range strings.Lines(rest) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok {
			return "", nil, errs.E(errs.Invalid, "create", "line %q: want a setting and its value", line)
		}
		if err := s.cfg.Mount.CheckSetting(key); err != nil {
			return "", nil, err
		}
		settings = append(settings, dsm.Setting{Key: key, Value: value})
	}
	return path, settings, nil
}
