// Package control implements /.dsm, the tree of control files: what is in it, who may use it, and
// what its files say. It does not know FUSE; package fs translates between the kernel and this
// package.
//
// The files have the formats of cgroup v2: one value, one value a line, one line "key value" for
// each (flat keyed), or one line "key name=value ..." for each (nested keyed). What can be written
// is written in the format in which it is read.
//
//	/.dsm/version             of the program
//	      config              flat keyed
//	      members             nested keyed, by node id
//	      stats               flat keyed
//	      log_level           debug, info, warn or error
//	      attach              path of the socket of the memory plane
//	      groups              those that have members, nested keyed
//	      cluster             flat keyed; who writes recover makes this node a cluster of its own
//	      scrub               what the last comparison of copies has found, flat keyed; who writes now has them compared
//	      token               with which nodes join, nested keyed; for the owner of the mount alone. Who has had one made reads that one
//	      areas/PATH/mode merge dtype apply interval residency access locks placement retain replicas on_nonfinite   as user.dsm.*
//	                 version home subscribers              read-only
//	                 publish acquire                       write 1
//	                 stats                                 of this node, flat keyed
//	                 group                                 opened for writing, it is a membership
//	                 owner                                 of a versioned area; who writes a node's name, or here, moves it
//	                 history                               versions that this node can read, nested keyed
//	                 conflicts                             nested keyed; who writes clear drops them
//	                 versions/NUMBER                       a version, which does not change
//	      ino/NUMBER          the inode itself, for the harvester's child only
//
// areas mirrors the tree of the filesystem; each file is a directory there. Whoever may read or
// write a file, by its owner and mode, may read or write its control files.
package control

import (
	"context"
	"log/slog"
	"strconv"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

const (
	// Name is the name of the tree in the root of the mount.
	Name = ".dsm"
	// InoDirName is the directory in which the harvester's child finds inodes by number.
	InoDirName   = "ino"
	areasDirName = "areas"
	// versionsDirName is the directory of an area's versions.
	versionsDirName = "versions"

	maxWrite = 4096
)

// Mount is what the control files need of the mount.
type Mount interface {
	Lookup(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error)
	Getattr(ctx context.Context, ino dsm.Ino) (dsm.Inode, error)
	ReadDir(ctx context.Context, dir dsm.Ino) ([]dsm.DirEntry, error)
	SetSpec(ctx context.Context, ino dsm.Ino, key, value string) error
	// Inspect returns a value that the homes of an area know: its version, home or subscribers,
	// without a newline.
	Inspect(ctx context.Context, i dsm.Inode, key string) (string, error)
	// Publish and Acquire do nothing to an area that is not open on this node: it has nothing to
	// publish, and will acquire when it is opened.
	Publish(ctx context.Context, id dsm.AreaID) error
	Acquire(ctx context.Context, id dsm.AreaID) error
	// Stats returns the figures of this node, AreaStats those of an area: none if no program of
	// this node has had it open lately.
	Stats() []Stat
	AreaStats(id dsm.AreaID) []Stat
	// Versions returns the versions of an area that this node can read, the oldest first.
	Versions(ctx context.Context, ino dsm.Ino) ([]Version, error)
	// Conflicts asks all nodes what was stored to an area on one side of a partition, and given up for what was stored on the other. ClearConflicts drops
	// what a node keeps of that, up to a number; without a name it is this node, and with number 0 it is all of every node.
	Conflicts(ctx context.Context, id dsm.AreaID) []KeptConflicts
	ClearConflicts(ctx context.Context, id dsm.AreaID, node string, upTo uint64) error
	// Transfer makes a node the owner of a versioned area: the one with this name or id.
	Transfer(ctx context.Context, ino dsm.Ino, to string) error
	// Groups describes the groups of the cluster, one on each line, which begins with the number of the
	// file that names it.
	Groups(ctx context.Context) []string
	// Talk begins to talk with a program of the user about the group that the file names.
	Talk(group dsm.Ino, who dsm.Credentials) (Talk, error)
}

// Version is a version of an area.
type Version struct {
	Number dsm.Version
	Size   int64
	Writer string // the name of a node, or its id if it has left
}

// Talk is a file to which a program writes lines and from which it reads one answer to each. It
// ends when the file is closed.
type Talk interface {
	// Say takes a line. It does not wait for the answer.
	Say(line string) error
	// Hear waits for an answer.
	Hear(ctx context.Context) (string, error)
	End()
}

// Config is what a Tree needs.
type Config struct {
	Mount Mount
	Info  Info
	Log   *slog.Logger
	// AttachSocket is the content of the file attach; empty if programs cannot attach.
	AttachSocket string
	// UID and GID own everything that does not belong to an area.
	UID, GID uint32
}

// Tree serves all of /.dsm.
type Tree struct{ cfg Config }

// New returns the tree.
func New(cfg Config) *Tree { return &Tree{cfg} }

// Node is a file or directory of /.dsm. It has no state of its own: its inode number says what it
// is (bit 63 is set, the kind is in the bits from 56 on) and which inode of the catalog it belongs
// to.
type Node struct {
	kind kind
	ino  dsm.Ino
}

type kind uint8

const (
	rootDir kind = iota
	inoDir
	areasDir // a directory in areas/
	areaDir  // a file in areas/: the directory of its control files
	versionsDir
	versionFile // package fs knows of which area and version
	topFile     // + index in topFiles
	areaFile    = topFile + 32
	kindEnd     = areaFile + 32
)

const (
	nodeBit   = 1 << 63
	kindShift = 56
	inoMask   = 1<<kindShift - 1
)

// Root is /.dsm itself, and InoDir the directory of inodes by number.
var (
	Root   = Node{kind: rootDir}
	InoDir = Node{kind: inoDir}
)

// VersionFile returns a file in the directory of versions of an area. Package fs looks after these, under numbers of its own.
func VersionFile(number uint64) Node { return Node{kind: versionFile, ino: dsm.Ino(number)} }

// Version returns the number that VersionFile was given; ok is false if c is something else.
func (c Node) Version() (number uint64, ok bool) { return uint64(c.ino), c.kind == versionFile }

// Versions returns the area of which c is the directory of versions; ok is false if c is something else.
func (c Node) Versions() (area dsm.Ino, ok bool) { return c.ino, c.kind == versionsDir }

// ID returns the node's number in the mount.
func (c Node) ID() uint64 {
	return nodeBit | uint64(c.kind)<<kindShift | uint64(c.ino)&inoMask
}

// Of returns the Node with an inode number; ok is false if the number is not one of /.dsm.
func Of(node uint64) (c Node, ok bool) {
	if node&nodeBit == 0 {
		return Node{}, false
	}
	return Node{kind: kind(node >> kindShift & 0x7f), ino: dsm.Ino(node & inoMask)}, true
}

// file is a kind of control file.
type file struct {
	name string
	perm uint32 // for an area's control file: as far as the area's own mode allows
	// read returns the text, with its newline; nil if the file is only written.
	read func(ctx context.Context, t *Tree, ino dsm.Ino) (string, error)
	// write takes a value, without its newline; nil if the file is only read.
	write func(ctx context.Context, t *Tree, ino dsm.Ino, value string) error
	// order is write, with an answer: it is what the same handle reads from then on.
	order func(ctx context.Context, t *Tree, ino dsm.Ino, value string) (answer string, err error)
	// talks: when the file is opened for writing it is a Talk.
	talks bool
}

// file returns the kind of control file that c is, nil for a directory.
func (c Node) file() *file {
	switch {
	case c.kind >= topFile && int(c.kind-topFile) < len(topFiles):
		return &topFiles[c.kind-topFile]
	case c.kind >= areaFile && int(c.kind-areaFile) < len(areaFiles):
		return &areaFiles[c.kind-areaFile]
	}
	return nil
}

// Attr is what stat(2) shows of a node.
type Attr struct{ Mode, Nlink, UID, GID uint32 }

// Attr returns the attributes of a node.
func (t *Tree) Attr(ctx context.Context, c Node) (Attr, error) {
	out := Attr{Nlink: 1, UID: t.cfg.UID, GID: t.cfg.GID}
	mask := uint32(0o7777)
	if c.kind == areasDir || c.kind == areaDir || c.kind == versionsDir || c.kind >= areaFile {
		i, err := t.cfg.Mount.Getattr(ctx, c.ino)
		if err != nil {
			return Attr{}, err
		}
		out.UID, out.GID = i.UID, i.GID
		mask = i.Perm
	}
	switch f := c.file(); {
	case f != nil:
		out.Mode = syscall.S_IFREG | f.perm&mask
		return out, nil
	case c.kind == inoDir:
		out.Mode = 0o500
	case c.kind == areaDir || c.kind == versionsDir: // whoever may read or write the file may come in
		out.Mode = mask&0o444 | mask&0o444>>2 | mask&0o222>>1
	default:
		out.Mode = 0o555 & mask
	}
	out.Mode |= syscall.S_IFDIR
	out.Nlink = 2
	return out, nil
}

var errNotHere = errs.E(errs.NotExist, "look up", "")

// Lookup resolves a name in a directory of /.dsm. It does not know the contents of InoDir, nor those of the directories of versions.
func (t *Tree) Lookup(ctx context.Context, dir Node, name string) (Node, error) {
	switch dir.kind {
	case rootDir:
		switch name {
		case areasDirName:
			return Node{areasDir, dsm.RootIno}, nil
		case InoDirName:
			return InoDir, nil
		}
		for i, f := range topFiles {
			if f.name == name {
				return Node{kind: topFile + kind(i)}, nil
			}
		}
	case areasDir:
		i, err := t.cfg.Mount.Lookup(ctx, dir.ino, name)
		if err != nil {
			return Node{}, err
		}
		if kind, ok := mirrored[i.Kind]; ok {
			return Node{kind, i.Ino}, nil
		}
	case areaDir:
		if name == versionsDirName {
			return Node{versionsDir, dir.ino}, nil
		}
		for i, f := range areaFiles {
			if f.name == name {
				return Node{areaFile + kind(i), dir.ino}, nil
			}
		}
	}
	return Node{}, errNotHere
}

// mirrored maps kinds of inodes to what they are in areas/. Symlinks do not appear there.
var mirrored = map[dsm.FileKind]kind{dsm.KindDir: areasDir, dsm.KindFile: areaDir}

// List lists a directory of /.dsm. InoDir is not shown.
func (t *Tree) List(ctx context.Context, dir Node) ([]dsm.DirEntry, error) {
	var out []dsm.DirEntry
	add := func(name string, c Node, kind dsm.FileKind) {
		out = append(out, dsm.DirEntry{Name: name, Ino: dsm.Ino(c.ID()), Kind: kind})
	}
	switch dir.kind {
	case rootDir:
		add(areasDirName, Node{areasDir, dsm.RootIno}, dsm.KindDir)
		for i, f := range topFiles {
			add(f.name, Node{kind: topFile + kind(i)}, dsm.KindFile)
		}
	case areasDir:
		entries, err := t.cfg.Mount.ReadDir(ctx, dir.ino)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if kind, ok := mirrored[e.Kind]; ok {
				add(e.Name, Node{kind, e.Ino}, dsm.KindDir)
			}
		}
	case areaDir:
		for i, f := range areaFiles {
			add(f.name, Node{areaFile + kind(i), dir.ino}, dsm.KindFile)
		}
		add(versionsDirName, Node{versionsDir, dir.ino}, dsm.KindDir)
	case versionsDir:
		versions, err := t.cfg.Mount.Versions(ctx, dir.ino)
		if err != nil {
			return nil, err
		}
		for _, v := range versions {
			add(strconv.FormatUint(uint64(v.Number), 10), VersionFile(uint64(v.Number)), dsm.KindFile)
		}
	}
	return out, nil
}
