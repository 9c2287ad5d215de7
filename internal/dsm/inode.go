package dsm

import "time"

// FileKind is the kind of an inode.
type FileKind uint8

const (
	// KindFile is a regular file: an area.
	KindFile FileKind = iota + 1
	// KindDir is a directory.
	KindDir
	// KindSymlink is a symbolic link.
	KindSymlink
)

// Inode is what the catalog knows about a file: a value, safe to keep.
type Inode struct {
	Ino    Ino
	Kind   FileKind
	Perm   uint32 // permission bits with setuid, setgid and sticky: 07777
	UID    uint32
	GID    uint32
	Nlink  uint32 // 0 once unlinked; the inode lives on while a node claims it
	Size   int64  // bytes; for symlinks the length of the target
	Pages  int64  // of a file, with bytes other than zero, when a node last counted
	Atime  time.Time
	Mtime  time.Time
	Ctime  time.Time
	Target string // of a symlink
	Spec   Spec
	Layout Layout
	Gen    Generation // index of the last shrink or change of Spec or Layout
	Rev    Generation // index of the last change of Size, Spec or Layout
}

// Area returns the identifier of a regular file's memory.
func (i Inode) Area() AreaID { return AreaID(i.Ino) }

// MaxName is the length of the longest name, in bytes.
const MaxName = 255

// DirEntry is one name in a directory.
type DirEntry struct {
	Name string
	Ino  Ino
	Kind FileKind
}

// Member is a node of the cluster as the catalog knows it.
type Member struct {
	ID      NodeID
	Inc     uint64  // its incarnation: a node that was evicted, and joins again, has a larger one
	Name    string  // for people: the host name unless --name says otherwise
	Addr    string  // host:port of its one TCP and UDP port
	Budget  int64   // bytes of areas it has memory for
	Voter   bool    // votes in the consensus of the catalog
	Leaving bool    // it is handing its slots over
	Key     NodeKey // by which the others know it
	Since   Epoch   // of the view in which it became a member, as this incarnation, or its last daemon followed another
	Held    bool    // it has a holder: if its daemon is killed another one follows
	Gone    bool    // its process has ended without leaving, or its lease: it grants and acknowledges nothing any more
}
