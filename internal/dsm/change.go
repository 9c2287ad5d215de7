package dsm

import "time"

// RenameHow are the flags of renameat2(2).
type RenameHow uint8

const (
	// RenameReplace replaces an existing target.
	RenameReplace RenameHow = iota
	// RenameNoReplace fails with kind Exist if the target exists.
	RenameNoReplace
	// RenameExchange swaps the two names; both must exist.
	RenameExchange
)

// XattrHow are the flags of setxattr(2).
type XattrHow uint8

const (
	// XattrSet creates or replaces.
	XattrSet XattrHow = iota
	// XattrCreate fails with kind Exist if the attribute exists.
	XattrCreate
	// XattrReplace fails with kind NoAttr if it does not.
	XattrReplace
)

// SetAttr is a change of attributes; nil fields stay as they are.
type SetAttr struct {
	Perm         *uint32
	UID, GID     *uint32
	Size         *int64 // bytes: an exact size, for truncate
	GrowTo       *int64 // bytes: at least this size, for writes past the end and fallocate
	GrowBy       *int64 // bytes: grow by this much, for appends, which get the last GrowBy bytes of the resulting size
	Atime, Mtime *time.Time
}

// Repeatable reports whether the change may be made once more if it is not known whether it was. A second shrink would truncate what others have
// stored since, and an append would leave a gap.
func (s SetAttr) Repeatable() bool { return s.Size == nil && s.GrowBy == nil }

// PageCount is Inode.Pages of a file, as it was counted.
type PageCount struct {
	Ino   Ino
	Pages int64
}
