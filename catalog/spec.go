package catalog

import (
	"strconv"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func (o setSpecOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(o.Ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	if in.Kind == dsm.KindSymlink {
		return dsm.Inode{}, fail(errs.Unsupported, "%s of a symbolic link", o.Key)
	}
	spec, err := respec(in.Spec, o.Key, o.Value)
	if err != nil {
		return dsm.Inode{}, err
	}
	if spec == in.Spec {
		return in.Inode, nil
	}
	before := in.Inode
	if in.Kind == dsm.KindFile {
		fixed := spec.Mode != in.Spec.Mode || spec.Residency != in.Spec.Residency || spec.Access != in.Spec.Access
		if fixed && in.Size > 0 {
			return dsm.Inode{}, fail(errs.Busy, "the %s of a file of %d bytes: truncate it to 0 first", o.Key, in.Size)
		}
		if spec.DType != in.Spec.DType {
			if err := checkElements(spec.DType, in.Size); err != nil {
				return dsm.Inode{}, err
			}
			in.Layout = explicitLayout(spec)
		}
	}
	in.Spec = spec
	in.changed(st)
	s.revised(st, in, before, true)
	return in.Inode, nil
}

// respecAll is respec for several fields, in order.
func respecAll(spec dsm.Spec, settings []dsm.Setting) (_ dsm.Spec, err error) {
	for _, x := range settings {
		if spec, err = respec(spec, x.Key, x.Value); err != nil {
			return spec, err
		}
	}
	return spec, nil
}

// respec returns spec with the field that key names set to what value says.
func respec(spec dsm.Spec, key, value string) (dsm.Spec, error) {
	var err error
	switch key {
	case "mode":
		spec.Mode, err = dsm.ParseMode(value)
	case "merge":
		spec.Merge, err = dsm.ParseMerge(value)
	case "dtype":
		spec.DType, err = dsm.ParseDType(value)
	case "apply":
		spec.Apply, err = dsm.ParseApply(value)
	case "interval":
		return respecInterval(spec, value)
	case "residency":
		spec.Residency, err = dsm.ParseResidency(value)
	case "access":
		spec.Access, err = dsm.ParseAccess(value)
	default:
		return spec, fail(errs.Invalid, "unknown attribute %q: want one of mode merge dtype apply interval residency access", key)
	}
	switch {
	case err != nil:
		return spec, fail(errs.Invalid, "%w", err)
	case !spec.Valid():
		return spec, fail(errs.Invalid, "access direct is for areas of residency full: a program that has the memory itself, with nobody to fetch what is missing, would read zeroes")
	}
	return spec, nil
}

// respecInterval reads a Go duration or a number of milliseconds.
func respecInterval(spec dsm.Spec, value string) (dsm.Spec, error) {
	d, err := time.ParseDuration(value)
	if ms, numErr := strconv.ParseInt(value, 10, 64); numErr == nil {
		d, err = time.Duration(max(-1, min(ms, dsm.MaxInterval.Milliseconds()+1)))*time.Millisecond, nil
	}
	if err != nil || d < 0 || d > dsm.MaxInterval {
		return spec, fail(errs.Invalid, "interval %q: want milliseconds or a duration such as 250ms, from 0 (on request only) to %v", value, dsm.MaxInterval)
	}
	spec.Interval = d
	return spec, nil
}

// explicitLayout returns the layout that the spec alone gives a file.
func explicitLayout(spec dsm.Spec) dsm.Layout { return dsm.Layout{DType: spec.DType} }

func (o setLayoutOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(dsm.Ino(o.Area))
	if err != nil {
		return dsm.Inode{}, err
	}
	l := o.Layout
	if in.Kind != dsm.KindFile || l.DType > dsm.DTypeU64 || l.DataOffset < 0 {
		return dsm.Inode{}, fail(errs.Invalid, "layout %v of inode %d", l, in.Ino)
	}
	// The data plane read the header some time ago; meanwhile the user may
	// have named the type himself or cut the header off.
	if in.Spec.DType != dsm.DTypeAuto || l == in.Layout || l.DataOffset > in.Size {
		return in.Inode, nil
	}
	before := in.Inode
	in.Layout = l
	s.revised(st, in, before, true)
	return in.Inode, nil
}
