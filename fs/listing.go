package fs

import (
	"context"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func (b *bridge) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if _, ok := control.Of(in.NodeId); !ok {
		r := b.begin(cancel, &in.InHeader)
		defer r.end()
		i, err := b.cfg.Names.Getattr(r, inoOf(in.NodeId))
		if err != nil {
			return b.walkStatus(r.tid, err)
		}
		b.retries.drop(r.tid)
		b.dirs.opened(i)
	}
	out.Fh = b.handles.add(newDirHandle())
	if _, ok := control.Of(in.NodeId); !ok {
		r := b.begin(cancel, &in.InHeader)
		defer r.end()
		if err := b.held.opened(r, heldHandle{fh: out.Fh, ino: inoOf(in.NodeId), dir: true}); err != nil {
			b.ReleaseDir(&fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
			return status(err)
		}
	}
	return fuse.OK
}

func (b *bridge) ReleaseDir(in *fuse.ReleaseIn) {
	b.held.closed(in.Fh)
	b.handles.remove(in.Fh)
	if _, ok := control.Of(in.NodeId); !ok { // the number of one in areas has that of the directory in it
		b.dirs.released(inoOf(in.NodeId))
	}
}

// FsyncDir has nothing to do: a change of names is in the catalog when it returns.
func (b *bridge) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status { return fuse.OK }

// ReadDir lists a directory.
func (b *bridge) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	entries, st := b.rest(r, in)
	for i, e := range entries {
		at := in.Offset + uint64(i)
		if !out.AddDirEntry(fuse.DirEntry{Name: e.Name, Ino: uint64(e.Ino), Mode: modeOf[e.Kind], Off: at + 1}) {
			break
		}
	}
	return st
}

// statBatch is how many entries READDIRPLUS requests at once: about as many as the kernel has room
// for.
const statBatch = 256

// ReadDirPlus lists a directory with the attributes of its entries, if the kernel may keep these
// until the program asks for them.
func (b *bridge) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	entries, st := b.rest(r, in)
	if !st.Ok() {
		return st
	}
	entries = entries[:min(len(entries), statBatch)]
	inodes := make([]dsm.Inode, len(entries))
	k := b.keep()
	if _, ok := control.Of(in.NodeId); !ok && len(entries) > 0 && k.left() > 0 {
		var err error
		if inodes, err = b.cfg.Names.Stat(r, inoOf(in.NodeId), entries); err != nil {
			return status(err)
		}
	}
	for i, e := range entries {
		at := in.Offset + uint64(i)
		entry := out.AddDirLookupEntry(fuse.DirEntry{Name: e.Name, Ino: uint64(e.Ino), Mode: modeOf[e.Kind], Off: at + 1})
		if entry == nil {
			break
		}
		// A directory that was moved, and an open file that was shrunk, are left to a LOOKUP, which
		// handles the old name, and the old pages.
		if b.unheard(r, inodes[i]) {
			continue
		}
		if inodes[i].Ino == 0 {
			continue
		}
		p, node := place{nodeID(in.NodeId), e.Name}, nodeID(e.Ino)
		if inodes[i].Kind == dsm.KindDir {
			var ok bool
			if node, ok = b.aliases.known(e.Ino, p); !ok {
				continue
			}
		}
		b.walIndexes.told(inodes[i], p)
		b.keptEntry(inodes[i], k, entry)
		entry.NodeId = uint64(node)
	}
	return fuse.OK
}

// rest returns the entries from the offset of the request on.
func (b *bridge) rest(ctx context.Context, in *fuse.ReadIn) ([]dsm.DirEntry, fuse.Status) {
	h, ok := b.handles.get(in.Fh).(*dirHandle)
	if !ok {
		return nil, fuse.EBADF
	}
	entries, ok := h.listed()
	if !ok || in.Offset == 0 {
		var err error
		if entries, err = b.list(ctx, in.NodeId); err != nil {
			return nil, status(err) // ENOENT: removed, as on a local filesystem
		}
		h.list(entries)
	}
	return entries[min(in.Offset, uint64(len(entries))):], fuse.OK
}

// list returns the entries of a directory. The root's do not include /.dsm, so that programs which
// walk the tree do not enter it.
func (b *bridge) list(ctx context.Context, node uint64) ([]dsm.DirEntry, error) {
	dir := dsm.Ino(node)
	var entries []dsm.DirEntry
	var err error
	if c, ok := control.Of(node); ok {
		entries, err = b.control.List(ctx, c)
	} else {
		dir = inoOf(node)
		entries, err = b.cfg.Names.ReadDir(ctx, dir)
	}
	if err != nil {
		return nil, err
	}
	dots := []dsm.DirEntry{{Name: ".", Ino: dir, Kind: dsm.KindDir}, {Name: "..", Ino: dir, Kind: dsm.KindDir}}
	return append(dots, entries...), nil
}
