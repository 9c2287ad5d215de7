package catalog

import (
	"fmt"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

const (
	maxName   = 255  // bytes
	maxTarget = 4095 // bytes, as in Linux
	setuid    = 0o4000
	setgid    = 0o2000
	permMask  = 0o7777
)

// checkName refuses names that no entry can have.
func checkName(name string) error {
	if len(name) > maxName {
		return fail(errs.NameTooLong, "a name of %d bytes: the most is %d", len(name), maxName)
	}
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fail(errs.Invalid, "%q is no name for a file", name)
	}
	return nil
}

func (o createOp) apply(s *state, st step) (dsm.Inode, error) {
	d, err := s.liveDir(o.Dir)
	if err != nil {
		return dsm.Inode{}, err
	}
	switch {
	case !o.Temp:
		if err := s.free(d, o.Name); err != nil {
			return dsm.Inode{}, err
		}
	case o.Kind != dsm.KindFile || !o.Claim || o.Name != "":
		return dsm.Inode{}, fail(errs.Invalid, "only a file that is claimed needs no name")
	}
	n := dsm.Inode{Kind: o.Kind, Perm: o.Perm & permMask, UID: o.UID, GID: o.GID, Spec: d.Spec}
	switch o.Kind {
	case dsm.KindFile:
		if n.Spec, err = respecAll(n.Spec, o.Settings); err != nil {
			return dsm.Inode{}, err
		}
		if n.Spec.Placement != d.Spec.Placement {
			if err := s.checkPlacement(n.Spec.Placement); err != nil {
				return dsm.Inode{}, err
			}
		}
		if n.Layout, err = firstLayout(n.Spec, o.Layout, o.Size); err != nil {
			return dsm.Inode{}, err
		}
		empty := &inode{Inode: n}
		if err := s.checkTruncate(empty, o.Size); err != nil {
			return dsm.Inode{}, err
		}
		if err := s.checkRoomFor(reservation{}, empty.keeps().plus(takes(n.Spec, o.Size)), fmt.Sprintf("another file of %d bytes", o.Size)); err != nil {
			return dsm.Inode{}, err
		}
	case dsm.KindDir:
		if err := s.checkRoomFor(reservation{}, (&inode{Inode: n}).keeps(), "another directory"); err != nil {
			return dsm.Inode{}, err
		}
		d.Nlink++
	case dsm.KindSymlink:
		if o.Target == "" {
			return dsm.Inode{}, fail(errs.NotExist, "a symbolic link to nothing")
		}
		if len(o.Target) > maxTarget {
			return dsm.Inode{}, fail(errs.NameTooLong, "a link target of %d bytes: the most is %d", len(o.Target), maxTarget)
		}
		n.Perm, n.Target, n.Size = 0o777, o.Target, int64(len(o.Target))
		if err := s.checkRoomFor(reservation{}, (&inode{Inode: n}).keeps(), "another symbolic link"); err != nil {
			return dsm.Inode{}, err
		}
	default:
		return dsm.Inode{}, fail(errs.Unsupported, "inodes of kind %d: dsmfs has files, directories and symbolic links", o.Kind)
	}
	if d.Perm&setgid != 0 {
		n.GID = d.GID
		if o.Kind == dsm.KindDir {
			n.Perm |= setgid
		}
	}
	in := s.add(st, n)
	if o.Temp {
		in.Nlink, in.temp = 0, true
	}
	if in.Kind == dsm.KindDir {
		in.parent = d.Ino
	}
	if in.Kind == dsm.KindFile {
		s.placing(in) // while there is nothing of it that could be elsewhere
		s.resize(st, in, o.Size)
	}
	if o.Claim {
		s.claim(in, st, true)
	}
	if !o.Temp {
		d.entries[o.Name] = in.Ino
		d.modified(st)
	}
	return in.Inode, nil
}

// free refuses a name that is taken in the directory, or that no entry can have.
func (s *state) free(d *inode, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if _, ok := d.entries[name]; ok {
		return fail(errs.Exist, "%q", name)
	}
	return nil
}

// maxLinks is how many names an inode can have.
const maxLinks = 65000

func (o linkOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(o.Ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	d, err := s.liveDir(o.Dir)
	if err != nil {
		return dsm.Inode{}, err
	}
	if err := s.free(d, o.Name); err != nil {
		return dsm.Inode{}, err
	}
	switch {
	case in.Kind == dsm.KindDir:
		return dsm.Inode{}, fail(errs.Permission, "a second name for directory %d", o.Ino)
	case in.Nlink == 0 && !in.temp:
		return dsm.Inode{}, fail(errs.NotExist, "inode %d is removed", o.Ino)
	case in.Nlink >= maxLinks:
		return dsm.Inode{}, fail(errs.TooManyLinks, "%d names of inode %d", in.Nlink, o.Ino)
	}
	more := *in
	more.Nlink++
	was, now := in.keeps(), more.keeps()
	if err := s.checkRoomFor(was, now, "another name"); err != nil {
		return dsm.Inode{}, err
	}
	s.reserve(was, now)
	in.Nlink++
	in.temp = false
	in.changed(st)
	d.entries[o.Name] = in.Ino
	d.modified(st)
	return in.Inode, nil
}

func (o unlinkOp) apply(s *state, st step) (dsm.Inode, error) {
	d, err := s.dir(o.Dir)
	if err != nil {
		return dsm.Inode{}, err
	}
	in, err := s.child(d, o.Name)
	if err != nil {
		return dsm.Inode{}, err
	}
	if in.Kind == dsm.KindDir {
		return dsm.Inode{}, fail(errs.IsDir, "%q", o.Name)
	}
	s.unname(st, d, o.Name, in)
	return dsm.Inode{}, nil
}

func (o rmdirOp) apply(s *state, st step) (dsm.Inode, error) {
	d, err := s.dir(o.Dir)
	if err != nil {
		return dsm.Inode{}, err
	}
	in, err := s.child(d, o.Name)
	if err != nil {
		return dsm.Inode{}, err
	}
	if in.Kind != dsm.KindDir {
		return dsm.Inode{}, fail(errs.NotDir, "%q", o.Name)
	}
	if len(in.entries) > 0 {
		return dsm.Inode{}, fail(errs.NotEmpty, "%q", o.Name)
	}
	if o.Is != 0 && in.Ino != o.Is {
		return dsm.Inode{}, fail(errs.Replaced, "%q", o.Name)
	}
	s.unname(st, d, o.Name, in)
	return dsm.Inode{}, nil
}

// unname removes a name of in, which is a file or an empty directory.
func (s *state) unname(st step, d *inode, name string, in *inode) {
	delete(d.entries, name)
	if in.Kind == dsm.KindDir {
		d.Nlink--
		in.Nlink = 1 // only its own dot is left
	}
	d.modified(st)
	was := in.keeps()
	in.Nlink--
	s.reserve(was, in.keeps())
	in.changed(st)
	s.drop(in)
}

func (o renameOp) apply(s *state, st step) (dsm.Inode, error) {
	return dsm.Inode{}, s.rename(st, o)
}

func (s *state) rename(st step, o renameOp) error {
	from, err := s.dir(o.Dir)
	if err != nil {
		return err
	}
	to, err := s.liveDir(o.NewDir)
	if err != nil {
		return err
	}
	src, err := s.child(from, o.Name)
	if err != nil {
		return err
	}
	dst, err := s.child(to, o.NewName)
	if err != nil && (!errs.Is(err, errs.NotExist) || o.How == dsm.RenameExchange) {
		return err
	}
	if o.How > dsm.RenameExchange {
		return fail(errs.Invalid, "rename flag %d", o.How)
	}
	if dst != nil && o.How == dsm.RenameNoReplace {
		return fail(errs.Exist, "%q", o.NewName)
	}
	if src == dst { // POSIX wants this even if these are two names
		return nil
	}
	if s.within(to, src) || o.How == dsm.RenameExchange && s.within(from, dst) {
		return fail(errs.CrossesDir, "%q into itself", o.Name)
	}
	if o.How == dsm.RenameExchange {
		s.move(st, from, o.Name, to, o.NewName, src)
		s.move(st, to, o.NewName, from, o.Name, dst)
		to.entries[o.NewName], from.entries[o.Name] = src.Ino, dst.Ino
		return nil
	}
	if dst != nil {
		switch {
		case src.Kind == dsm.KindDir && dst.Kind != dsm.KindDir:
			return fail(errs.NotDir, "%q", o.NewName)
		case src.Kind != dsm.KindDir && dst.Kind == dsm.KindDir:
			return fail(errs.IsDir, "%q", o.NewName)
		case len(dst.entries) > 0:
			return fail(errs.NotEmpty, "%q", o.NewName)
		}
	}
	if o.Over != 0 && (dst == nil || dst.Ino != o.Over) {
		return fail(errs.Replaced, "%q", o.NewName)
	}
	if dst != nil {
		s.unname(st, to, o.NewName, dst)
	}
	s.move(st, from, o.Name, to, o.NewName, src)
	to.entries[o.NewName] = src.Ino
	return nil
}

// move updates the three inodes for moving in from one entry to another, except for entering the
// new name.
func (s *state) move(st step, from *inode, name string, to *inode, newName string, in *inode) {
	delete(from.entries, name)
	if in.Kind == dsm.KindDir {
		from.Nlink--
		to.Nlink++
		in.parent = to.Ino
	}
	from.modified(st)
	to.modified(st)
	in.changed(st)
}

// within reports whether d is in or a directory below it.
func (s *state) within(d, in *inode) bool {
	for in.Kind == dsm.KindDir {
		if d == in {
			return true
		}
		if d.Ino == d.parent {
			return false
		}
		if d = s.inodes[d.parent]; d == nil {
			return false // d was removed, and so was its parent
		}
	}
	return false
}
