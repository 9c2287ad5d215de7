package catalog

import (
	"errors"

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
	if spec.Placement != in.Spec.Placement {
		if err := s.checkPlacement(spec.Placement); err != nil {
			return dsm.Inode{}, err
		}
	}
	before := in.Inode
	if in.Kind == dsm.KindFile {
		switch err := in.Spec.CheckChange(spec, in.Size); {
		case errors.Is(err, dsm.ErrFixed):
			return dsm.Inode{}, fail(errs.Busy, "%w", err)
		case err != nil:
			return dsm.Inode{}, fail(errs.Invalid, "%w", err)
		}
		if err := s.checkPlaceable(in, spec.Placement); err != nil {
			return dsm.Inode{}, err
		}
		if err := s.checkRoomFor(takes(in.Spec, in.Size), takes(spec, in.Size), "copies of a file with one home"); err != nil {
			return dsm.Inode{}, err
		}
		if spec.DType != in.Spec.DType {
			in.Layout = explicitLayout(spec)
		}
		if err := in.Layout.CheckRule(spec.Merge); err != nil && spec.Merge != before.Spec.Merge {
			return dsm.Inode{}, fail(errs.Invalid, "%w", err)
		}
	}
	in.Spec = spec
	if in.Kind == dsm.KindFile {
		s.reserve(takes(before.Spec, in.Size), takes(spec, in.Size))
	}
	in.changed(st)
	s.revised(st, in, before, true)
	if spec.Placement != before.Spec.Placement {
		s.placing(in)
	}
	if spec.Copies() != before.Spec.Copies() && s.view.Placed(in.Area()) != 0 {
		s.reviewed(func(*dsm.View) {})
	}
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

// respec returns spec with the field named by key set to value.
func respec(spec dsm.Spec, key, value string) (dsm.Spec, error) {
	spec, err := spec.With(key, value)
	if err != nil {
		return spec, fail(errs.Invalid, "%w", err)
	}
	return spec, nil
}

// explicitLayout returns the layout that the spec alone gives a file.
func explicitLayout(spec dsm.Spec) dsm.Layout { return dsm.Layout{DType: spec.DType} }

// firstLayout returns the layout of a new file of the size. found is what its header will say, if that is known.
func firstLayout(spec dsm.Spec, found dsm.Layout, size int64) (dsm.Layout, error) {
	if spec.DType != dsm.DTypeAuto || found == (dsm.Layout{}) {
		return explicitLayout(spec), nil
	}
	if found.Check() != nil || found.DataOffset > size {
		return found, fail(errs.Invalid, "layout %v of a new file of %d bytes", found, size)
	}
	return found, nil
}

func (o setLayoutOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(dsm.Ino(o.Area))
	if err != nil {
		return dsm.Inode{}, err
	}
	l := o.Layout
	if in.Kind != dsm.KindFile || l.Check() != nil {
		return dsm.Inode{}, fail(errs.Invalid, "layout %v of inode %d", l, in.Ino)
	}
	// The data plane read the header some time ago. Meanwhile the user may have set the type
	// himself, or a truncate may have removed the header.
	if in.Spec.DType != dsm.DTypeAuto || l == in.Layout || l.DataOffset > in.Size {
		return in.Inode, nil
	}
	before := in.Inode
	in.Layout = l
	s.revised(st, in, before, true)
	return in.Inode, nil
}
