package catalog

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

const (
	maxXattrValue = 64 << 10
	maxXattrTotal = 256 << 10 // names and values of one inode
)

// checkXattr refuses names that are not stored.
func checkXattr(name string) error {
	if len(name) > maxName {
		return fail(errs.NameTooLong, "an attribute name of %d bytes: the most is %d", len(name), maxName)
	}
	if strings.HasPrefix(name, "user.dsm.") {
		return fail(errs.Invalid, "%q is not stored with the file", name)
	}
	for _, space := range []string{"user.", "trusted.", "security."} {
		if strings.HasPrefix(name, space) && len(name) > len(space) && !strings.Contains(name, "\x00") {
			return nil
		}
	}
	return fail(errs.Unsupported, "attribute %q: want user.*, trusted.* or security.*", name)
}

func (o setXattrOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(o.Ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	if err := checkXattr(o.Name); err != nil {
		return dsm.Inode{}, err
	}
	if len(o.Value) > maxXattrValue {
		return dsm.Inode{}, fail(errs.TooLarge, "an attribute of %d bytes: the most is %d", len(o.Value), maxXattrValue)
	}
	old, ok := in.xattrs[o.Name]
	switch {
	case o.How > dsm.XattrReplace:
		return dsm.Inode{}, fail(errs.Invalid, "setxattr flag %d", o.How)
	case ok && o.How == dsm.XattrCreate:
		return dsm.Inode{}, fail(errs.Exist, "attribute %q", o.Name)
	case !ok && o.How == dsm.XattrReplace:
		return dsm.Inode{}, fail(errs.NoAttr, "%q", o.Name)
	}
	total := len(o.Value) - len(old)
	if !ok {
		total += len(o.Name)
	}
	for name, value := range in.xattrs {
		total += len(name) + len(value)
	}
	if total > maxXattrTotal {
		return dsm.Inode{}, fail(errs.NoSpace, "%d bytes of attributes of one inode: the most is %d", total, maxXattrTotal)
	}
	was, now := reservation{}, reservation{kept: attrBytes(o.Name, o.Value)}
	if ok {
		was.kept = attrBytes(o.Name, old)
	}
	if now.kept > was.kept {
		if err := s.checkRoomFor(was, now, fmt.Sprintf("an attribute of %d bytes", len(o.Value))); err != nil {
			return dsm.Inode{}, err
		}
	}
	s.reserve(was, now)
	if in.xattrs == nil {
		in.xattrs = make(map[string][]byte)
	}
	in.xattrs[o.Name] = bytes.Clone(o.Value)
	in.changed(st)
	return dsm.Inode{}, nil
}

func (o removeXattrOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(o.Ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	old, ok := in.xattrs[o.Name]
	if !ok {
		return dsm.Inode{}, fail(errs.NoAttr, "%q", o.Name)
	}
	s.reserve(reservation{kept: attrBytes(o.Name, old)}, reservation{})
	delete(in.xattrs, o.Name)
	in.changed(st)
	return dsm.Inode{}, nil
}
