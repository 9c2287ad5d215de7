package fs

import (
	"context"
	"strconv"
	"strings"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// The control files, in the formats of cgroup v2: one value, a line per value, a
// line "key value" (flat keyed) or "key name=value ..." (nested keyed). What can be
// written is written in the format in which it is read.
//
//	/.dsm/version             of the program
//	      config              flat keyed
//	      members             nested keyed, by node id
//	      stats               flat keyed
//	      log_level           debug, info, warn or error
//	      attach              path of the socket of the memory plane
//	      areas/PATH/mode merge dtype apply interval       as user.dsm.*
//	                 version home subscribers              read-only
//	                 publish acquire                       write 1
//	                 stats                                 of this node, flat keyed
//	      ino/NUMBER          the inode itself, for the harvester's child only
//
// areas mirrors the tree; a file is a directory there. A control file may be
// used by whom the file's owner and mode let read or write the file.

const (
	controlName  = ".dsm"
	inoDirName   = "ino"
	areasDirName = "areas"

	maxControlWrite = 4096
)

// control is a node of /.dsm. It has no state of its own: its inode number says
// what it is (bit 63, and the kind from bit 56 on) and of which inode of the catalog.
type control struct {
	kind controlKind
	ino  dsm.Ino
}

type controlKind uint8

const (
	controlRoot controlKind = iota
	controlInoDir
	controlAreas    // a directory in areas/
	controlArea     // a file in areas/: the directory of its control files
	controlTopFile  // + index in topFiles
	controlAreaFile = controlTopFile + 32
	controlKindEnd  = controlAreaFile + 32
)

const (
	controlBit   = 1 << 63
	controlShift = 56
	controlMask  = 1<<controlShift - 1
)

func (c control) node() uint64 {
	return controlBit | uint64(c.kind)<<controlShift | uint64(c.ino)&controlMask
}

// controlOf returns what a node of /.dsm is; ok is false for any other node.
func controlOf(node uint64) (c control, ok bool) {
	if node&controlBit == 0 {
		return control{}, false
	}
	return control{kind: controlKind(node >> controlShift & 0x7f), ino: dsm.Ino(node & controlMask)}, true
}

// controlFile is a kind of control file.
type controlFile struct {
	name string
	perm uint32 // of an area's: as far as the area's own mode allows
	// read returns the text, with its newline; nil if the file is only written.
	read func(ctx context.Context, b *bridge, ino dsm.Ino) (string, error)
	// write takes a value, without its newline; nil if the file is only read.
	write func(ctx context.Context, b *bridge, ino dsm.Ino, value string) error
}

// file returns the kind of control file that c is, nil if c is a directory.
func (c control) file() *controlFile {
	switch {
	case c.kind >= controlTopFile && int(c.kind-controlTopFile) < len(topFiles):
		return &topFiles[c.kind-controlTopFile]
	case c.kind >= controlAreaFile && int(c.kind-controlAreaFile) < len(areaFiles):
		return &areaFiles[c.kind-controlAreaFile]
	}
	return nil
}

// controlAttr fills in what stat(2) shows of a control file.
func (b *bridge) controlAttr(ctx context.Context, c control, out *fuse.Attr) error {
	*out = fuse.Attr{Ino: c.node(), Nlink: 1, Owner: b.cfg.owner, Blksize: dsm.PageSize}
	out.SetTimes(&b.cfg.started, &b.cfg.started, &b.cfg.started)
	mask := uint32(0o7777)
	if c.kind == controlAreas || c.kind == controlArea || c.kind >= controlAreaFile {
		i, err := b.cfg.Names.Getattr(ctx, c.ino)
		if err != nil {
			return err
		}
		out.Owner = fuse.Owner{Uid: i.UID, Gid: i.GID}
		mask = i.Perm
	}
	switch f := c.file(); {
	case f != nil:
		out.Mode = syscall.S_IFREG | f.perm&mask
		return nil
	case c.kind == controlInoDir:
		out.Mode = 0o500
	case c.kind == controlArea: // whoever may read or write the file may come in
		out.Mode = mask&0o444 | mask&0o444>>2 | mask&0o222>>1
	default:
		out.Mode = 0o555 & mask
	}
	out.Mode |= syscall.S_IFDIR
	out.Nlink = 2
	return nil
}

func (b *bridge) controlEntry(ctx context.Context, c control, out *fuse.EntryOut) error {
	*out = fuse.EntryOut{NodeId: c.node(), Generation: generation}
	return b.controlAttr(ctx, c, &out.Attr)
}

// controlLookup resolves a name in a directory of /.dsm.
func (b *bridge) controlLookup(ctx context.Context, dir control, name string, tid uint32, out *fuse.EntryOut) error {
	switch dir.kind {
	case controlRoot:
		switch {
		case name == areasDirName:
			return b.controlEntry(ctx, control{controlAreas, dsm.RootIno}, out)
		case name == inoDirName && b.harvest.IsChild(tid):
			return b.controlEntry(ctx, control{kind: controlInoDir}, out)
		}
		for i, f := range topFiles {
			if f.name == name {
				return b.controlEntry(ctx, control{kind: controlTopFile + controlKind(i)}, out)
			}
		}
	case controlInoDir:
		ino, err := strconv.ParseUint(name, 10, 64)
		if err != nil || !b.harvest.IsChild(tid) {
			return errNotHere
		}
		i, err := b.cfg.Names.Getattr(ctx, dsm.Ino(ino))
		if err != nil {
			return err
		}
		b.entry(i, out) // the very inode, under a second name
		return nil
	case controlAreas:
		i, err := b.cfg.Names.Lookup(ctx, dir.ino, name)
		if err != nil {
			return err
		}
		if kind, ok := mirrored[i.Kind]; ok {
			return b.controlEntry(ctx, control{kind, i.Ino}, out)
		}
	case controlArea:
		for i, f := range areaFiles {
			if f.name == name {
				return b.controlEntry(ctx, control{controlAreaFile + controlKind(i), dir.ino}, out)
			}
		}
	}
	return errNotHere
}

// mirrored says what an inode is in areas/. Symlinks are not there.
var mirrored = map[dsm.FileKind]controlKind{dsm.KindDir: controlAreas, dsm.KindFile: controlArea}

// controlList lists a directory of /.dsm.
func (b *bridge) controlList(ctx context.Context, dir control) ([]dsm.DirEntry, error) {
	var out []dsm.DirEntry
	add := func(name string, c control, kind dsm.FileKind) {
		out = append(out, dsm.DirEntry{Name: name, Ino: dsm.Ino(c.node()), Kind: kind})
	}
	switch dir.kind {
	case controlRoot:
		add(areasDirName, control{controlAreas, dsm.RootIno}, dsm.KindDir)
		for i, f := range topFiles {
			add(f.name, control{kind: controlTopFile + controlKind(i)}, dsm.KindFile)
		}
	case controlAreas:
		entries, err := b.cfg.Names.ReadDir(ctx, dir.ino)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if kind, ok := mirrored[e.Kind]; ok {
				add(e.Name, control{kind, e.Ino}, dsm.KindDir)
			}
		}
	case controlArea:
		for i, f := range areaFiles {
			add(f.name, control{controlAreaFile + controlKind(i), dir.ino}, dsm.KindFile)
		}
	}
	return out, nil
}

// controlHandle is an open control file.
type controlHandle struct {
	c    control
	file *controlFile

	mu   lockrank.Mutex
	text string // as of the last read from the start
}

func (b *bridge) controlOpen(_ context.Context, c control, flags uint32, out *fuse.OpenOut) error {
	f := c.file()
	if f == nil {
		return errs.E(errs.IsDir, "open", "")
	}
	access := flags & syscall.O_ACCMODE
	if f.read == nil && access != syscall.O_WRONLY || f.write == nil && access != syscall.O_RDONLY {
		return errs.E(errs.Access, "open", "") // root is not stopped by the mode
	}
	h := &controlHandle{c: c, file: f}
	h.mu.Init("fs.controlHandle")
	out.Fh, out.OpenFlags = b.handles.add(h), fuse.FOPEN_DIRECT_IO
	return nil
}

func (h *controlHandle) read(ctx context.Context, b *bridge, off uint64) (string, error) {
	var text string
	if off == 0 {
		var err error
		if text, err = h.file.read(ctx, b, h.c.ino); err != nil {
			return "", err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if off == 0 {
		h.text = text
	}
	return h.text[min(off, uint64(len(h.text))):], nil
}

// write takes one write(2) as one value, whatever the offset, as the kernel's
// own control files do.
func (h *controlHandle) write(ctx context.Context, b *bridge, data []byte) error {
	value := strings.TrimSuffix(string(data), "\n")
	err := error(errs.E(errs.Invalid, "write", "%d bytes: want one short value", len(data)))
	if len(data) <= maxControlWrite {
		err = h.file.write(ctx, b, h.c.ino, value)
	}
	if err != nil {
		b.log.Warn("write to control file", "file", h.file.name, "area", uint64(h.c.ino), "value", value[:min(len(value), 64)], "err", err)
	}
	return err
}
