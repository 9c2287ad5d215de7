package catalog

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func (o setAttrOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(o.Ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	size := in.Size
	if o.Size != nil {
		if err := s.checkTruncate(in, *o.Size); err != nil {
			return dsm.Inode{}, err
		}
		size = *o.Size
	}
	if o.GrowTo != nil {
		if err := s.checkSize(in, *o.GrowTo); err != nil {
			return dsm.Inode{}, err
		}
		size = max(size, *o.GrowTo)
	}
	if o.GrowBy != nil {
		if *o.GrowBy < 0 || *o.GrowBy > dsm.MaxAreaSize {
			return dsm.Inode{}, fail(errs.Invalid, "growth by %d bytes", *o.GrowBy)
		}
		size += *o.GrowBy
		if err := s.checkSize(in, size); err != nil {
			return dsm.Inode{}, err
		}
	}
	if size != in.Size || o.Size != nil {
		if err := s.checkOwner(in, st.node); err != nil {
			return dsm.Inode{}, err
		}
	}
	if err := s.checkGrowth(in, size); err != nil {
		return dsm.Inode{}, err
	}

	if size == in.Size && o.without(o.GrowTo) {
		return in.Inode, nil // it is large enough
	}
	in.changed(st)
	if size != in.Size || o.Size != nil {
		s.resize(st, in, size)
	}
	if o.UID != nil || o.GID != nil {
		in.chown(o.UID, o.GID)
	}
	if o.Perm != nil {
		in.Perm = *o.Perm & permMask
	}
	setTime(&in.Atime, o.Atime)
	setTime(&in.Mtime, o.Mtime)
	return in.Inode, nil
}

// A file that does not exist any more needs no count, and one may have become shorter since it was counted. Neither is a change of the file.
func (o countOp) apply(s *state, _ step) (dsm.Inode, error) {
	for _, n := range o.Counts {
		if in := s.inodes[n.Ino]; in != nil && in.Kind == dsm.KindFile {
			in.Pages = min(max(n.Pages, 0), pagesOf(in.Size))
		}
	}
	return dsm.Inode{}, nil
}

// without reports whether the operation does nothing but grow the file.
func (o setAttrOp) without(grow *int64) bool { return o.SetAttr == dsm.SetAttr{GrowTo: grow} }

func setTime(t *time.Time, to *time.Time) {
	if to != nil {
		*t = to.UTC()
	}
}

// chown changes the owner of the inode. As on other filesystems, a program with a new owner loses
// its setuid bit, and its setgid bit too if that gives rights (it does not without group
// execution).
func (in *inode) chown(uid, gid *uint32) {
	if uid != nil {
		in.UID = *uid
	}
	if gid != nil {
		in.GID = *gid
	}
	if in.Kind == dsm.KindFile {
		in.Perm &^= setuid
		if in.Perm&0o010 != 0 {
			in.Perm &^= setgid
		}
	}
}

// checkSize refuses sizes that the inode can never have.
func (s *state) checkSize(in *inode, size int64) error {
	switch {
	case in.Kind == dsm.KindDir:
		return fail(errs.IsDir, "the size of a directory")
	case in.Kind != dsm.KindFile:
		return fail(errs.Invalid, "the size of a symbolic link")
	case size < 0:
		return fail(errs.Invalid, "a size of %d", size)
	case size > dsm.MaxAreaSize:
		return fail(errs.TooLarge, "a size of %d: the most is %d", size, int64(dsm.MaxAreaSize))
	}
	return nil
}

// checkTruncate refuses sizes to which the inode cannot be truncated.
func (s *state) checkTruncate(in *inode, size int64) error {
	if err := s.checkSize(in, size); err != nil {
		return err
	}
	return checkElements(in.Spec.DType, size)
}

// checkElements refuses a size that is not a whole number of elements.
func checkElements(t dsm.DType, size int64) error {
	if err := t.CheckSize(size); err != nil {
		return fail(errs.Invalid, "%w", err)
	}
	return nil
}

// pagesOf returns how many pages a file of so many bytes has.
func pagesOf(size int64) int64 { return (size + dsm.PageSize - 1) / dsm.PageSize }

// resize sets the size of the file.
func (s *state) resize(st step, in *inode, size int64) {
	in.modified(st)
	if size == in.Size {
		return
	}
	before := in.Inode
	if size > in.Size {
		s.detour(st, in, size)
	}
	s.reserve(takes(before.Spec, in.Size), takes(in.Spec, size))
	in.Size = size
	in.Pages = min(in.Pages, pagesOf(size))
	shrunk := size < before.Size
	if shrunk && in.Spec.DType == dsm.DTypeAuto && (size == 0 || size < in.Layout.DataOffset) {
		in.Layout = dsm.Layout{} // the truncate removed the header
	}
	if shrunk && in.Kind == dsm.KindFile {
		in.addShrink(shrink{dsm.Generation(st.index), size})
	}
	s.revised(st, in, before, shrunk)
}
