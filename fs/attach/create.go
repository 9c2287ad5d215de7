package attach

import (
	"context"
	"os"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// create makes a file for the program, as creat(2) on a mount would.
func (a *conn) create(ctx context.Context, q *request) (reply, error) {
	path, n, settings, err := a.s.wanted(q)
	if err != nil {
		return reply{}, err
	}
	i, err := a.createOrFind(ctx, path, n, settings, q.arg[2] != 0)
	if err != nil {
		return reply{}, err
	}
	return reply{arg: [4]uint64{uint64(i.Size), uint64(i.Ino)}}, nil
}

// createOrFind makes the file, or returns the one that is there unless it must be new. If that is removed before it is found, the file is made
// after all.
func (a *conn) createOrFind(ctx context.Context, path string, n dsm.Inode, settings []dsm.Setting, anew bool) (i dsm.Inode, err error) {
	for {
		dir, name, err := a.directory(ctx, path)
		if err == nil {
			i, err = a.s.cfg.Mount.Create(ctx, &a.who.Credentials, dir, name, n, settings)
		}
		switch {
		case !errs.Is(err, errs.Exist):
			return i, err
		case anew:
			return i, taken(path)
		}
		if i, err = a.s.file(ctx, &a.who, path, dsm.MayRead|dsm.MayWrite); !errs.Is(err, errs.NotExist) || ctx.Err() != nil {
			return i, err
		}
	}
}

// prepare makes a file that has no name yet, for the program to fill, and attaches it. A file that
// is not named before the program ends, or the node, is gone with it.
func (a *conn) prepare(ctx context.Context, q *request) (reply, error) {
	path, n, settings, err := a.s.wanted(q)
	if err != nil {
		return reply{}, err
	}
	if n.Layout, err = takeLayout(&settings, q.arg[2]); err != nil {
		return reply{}, err
	}
	dir, name, err := a.directory(ctx, path)
	if err != nil {
		return reply{}, err
	}
	switch _, err := a.s.cfg.Mount.Lookup(ctx, dir.Ino, name); { // the program learns it before it has done its work
	case err == nil:
		return reply{}, taken(path)
	case !errs.Is(err, errs.NotExist):
		return reply{}, err
	}
	if err := a.s.attached(a.user); err != nil {
		return reply{}, err
	}
	area, i, err := a.s.cfg.Mount.CreateUnnamed(ctx, &a.who.Credentials, dir, n, settings)
	if err != nil {
		a.s.endAttachment(a.user)
		return reply{}, err
	}
	x, f, err := a.attachTo(i, path, true, area, func() (Attachment, *os.File, error) { return area.Attach(ctx, a.who.pid, true) })
	if err != nil {
		return reply{}, err
	}
	x.mu.Lock()
	x.mu.unnamed = true
	x.mu.Unlock()
	if err := x.note(); err != nil {
		_ = f.Close()   // nothing was written to it
		_ = a.detach(x) // cannot fail: the attachment is there
		return reply{}, err
	}
	return x.told(i, f), nil
}

// takeLayout returns what the header of a .npy file will say, for which the program has set the type of the
// elements, and said in offset where they begin. Otherwise the first publish would find the header, and
// enter what it says, which is one more change of the catalog. The type itself is auto then.
func takeLayout(settings *[]dsm.Setting, offset uint64) (dsm.Layout, error) {
	if offset == 0 {
		return dsm.Layout{}, nil
	}
	for i, x := range *settings {
		if x.Key != "dtype" {
			continue
		}
		spec, err := dsm.Spec{}.With(x.Key, x.Value)
		if err != nil {
			return dsm.Layout{}, errs.E(errs.Invalid, "create", "%w", err)
		}
		(*settings)[i].Value = dsm.DTypeAuto.String()
		return dsm.Layout{DType: spec.DType, DataOffset: int64(offset)}, nil
	}
	return dsm.Layout{}, errs.E(errs.Invalid, "create", "elements begin at %d, but their type, dtype, is not set", offset)
}

// giveName publishes what the program has stored, and then gives the file its name. So nobody finds it
// without its content.
func (x *attachment) giveName(ctx context.Context, path string) error {
	x.mu.Lock()
	unnamed, tried := x.mu.unnamed, x.mu.tried
	if unnamed = unnamed && (tried == "" || tried == path); unnamed {
		x.mu.unnamed = false // the file gets one name, whatever else the program asks for meanwhile
	}
	x.mu.Unlock()
	switch {
	case !unnamed && tried != "":
		return errs.E(errs.Invalid, "name", "the file may have the name %s: ask for that one again", tried)
	case !unnamed:
		return errs.E(errs.Invalid, "name", "only a file that PREPARE made, and that has no name yet, can be given one")
	}
	asked, err := x.link(ctx, path)
	if err != nil {
		x.mu.Lock()
		x.mu.unnamed = true
		if asked {
			x.mu.tried = ""
			if undecided(err) {
				x.mu.tried = path
			}
		}
		x.mu.Unlock()
		return err
	}
	return x.note()
}

// undecided reports whether a change that failed may still happen.
func undecided(err error) bool {
	switch errs.KindOf(err) {
	case errs.Timeout, errs.Interrupted, errs.Unavailable, errs.NotLeader, errs.Closed:
		return true
	}
	return false
}

// link does what NAME does, for the only NAME under way. asked says that the catalog was asked for the name.
func (x *attachment) link(ctx context.Context, path string) (asked bool, err error) {
	dir, name, err := x.conn.directory(ctx, path)
	if err != nil {
		return false, err
	}
	if err := x.area.Publish(ctx); err != nil {
		return false, err
	}
	m := x.conn.s.cfg.Mount
	_, err = m.Link(ctx, x.file, dir.Ino, name)
	if errs.Is(err, errs.Exist) { // perhaps an earlier NAME, which was not answered in time
		i, e := m.Lookup(ctx, dir.Ino, name)
		switch {
		case e == nil && i.Ino == x.file:
			return true, nil
		case undecided(e):
			return true, e
		}
		err = taken(path)
	}
	return true, err
}

// taken is the error of a name that something has already.
func taken(path string) error {
	return errs.E(errs.Exist, "create", "%s is there already: attach it, or choose another name", path)
}

// directory returns the directory in which the program wants to make a file, and the file's name. As in
// open(2), a file that exists needs no write permission for its directory: the error is errs.Exist then.
func (a *conn) directory(ctx context.Context, path string) (dsm.Inode, string, error) {
	dir, name, err := a.s.walk(ctx, &a.who, path)
	if err == nil && !a.who.May(dir, dsm.MayWrite|dsm.MaySearch) {
		switch _, err = a.s.cfg.Mount.Lookup(ctx, dir.Ino, name); {
		case err == nil:
			err = taken(path)
		case errs.Is(err, errs.NotExist):
			err = errs.E(errs.Access, "create", "%s: no write permission for its directory", path)
		}
	}
	return dir, name, err
}

// wanted returns the path of the file that CREATE or PREPARE asks for, what it is to be, and its settings.
func (s *Server) wanted(q *request) (path string, n dsm.Inode, settings []dsm.Setting, err error) {
	if q.arg[0] > dsm.MaxAreaSize {
		return "", n, nil, errs.E(errs.TooLarge, "create", "")
	}
	path, settings, err = s.parseCreate(q.payload)
	return path, dsm.Inode{Kind: dsm.KindFile, Perm: uint32(q.arg[1]) & 0o7777, Size: int64(q.arg[0])}, settings, err
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
