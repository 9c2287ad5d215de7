package fs

import (
	"context"
	"syscall"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Lookup resolves a name, anew each time but for the moment that the kernel may keep a directory, or what a listing brought.
func (b *bridge) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	r := b.begin(cancel, in)
	defer r.end()
	if c, ok := control.Of(in.NodeId); ok {
		return status(b.controlLookup(r, c, name, in.Pid, out))
	}
	if in.NodeId == uint64(dsm.RootIno) && name == control.Name {
		err := b.controlEntry(r, control.Root, out)
		out.SetEntryTimeout(nameTimeout)
		return status(err)
	}
	if len(name) > maxName {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	at := place{nodeID(in.NodeId), name}
	if b.unfoundBefore(r.tid, at) {
		return fuse.EIO
	}
	wasDir := b.aliases.has(at)
	if wasDir || b.retries.has(r.tid) { // what a path leads through, as a rule, or what was moved
		b.walks.wait(r, r.tid)
	}
	k := b.keep()
	find := b.cfg.Names.Lookup
	if b.retries.has(r.tid) {
		find = b.findClaimed
	}
	i, err := find(r, inoOf(in.NodeId), name)
	if wasDir && (errs.Is(err, errs.NotExist) || err == nil && i.Kind != dsm.KindDir) {
		b.aliases.vacate(at)
	}
	if err != nil {
		b.lookups.put(r.tid, at, dsm.Inode{})
		b.unfoundNow(r.tid, at, err)
		return status(err)
	}
	node, ok := b.toldOf(r, i, at, b.tellerOf)
	if !ok {
		return fuse.Status(syscall.ESTALE)
	}
	b.lookups.put(r.tid, at, i)
	b.beforeTold(r, i)
	if i.Kind == dsm.KindDir {
		b.keptEntry(i, k, out)
	} else {
		b.entry(i, out)
	}
	out.NodeId = uint64(node)
	return fuse.OK
}

// writable refuses changes in /.dsm, and of its name.
func writable(dir uint64, name string) fuse.Status {
	if _, ok := control.Of(dir); ok || dir == uint64(dsm.RootIno) && name == control.Name {
		return fuse.EPERM
	}
	if len(name) > maxName {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	return fuse.OK
}

// owned makes the inode, which is to be in dir, the caller's. In a directory with the
// set-group-ID bit it belongs to the directory's group, as POSIX has it.
func owned(n dsm.Inode, dir dsm.Inode, uid, gid uint32) dsm.Inode {
	n.UID, n.GID = uid, gid
	if dir.Perm&syscall.S_ISGID != 0 {
		n.GID = dir.GID
		if n.Kind == dsm.KindDir {
			n.Perm |= syscall.S_ISGID
		}
	}
	return n
}

// create makes an inode for the caller.
func (b *bridge) create(ctx context.Context, in *fuse.InHeader, name string, n dsm.Inode, claim bool) (dsm.Inode, error) {
	dir, err := b.cfg.Names.Getattr(ctx, inoOf(in.NodeId))
	if err != nil {
		return dsm.Inode{}, err
	}
	return b.withRoom(ctx, func() (dsm.Inode, error) {
		return b.cfg.Names.Create(ctx, dir.Ino, name, owned(n, dir, in.Uid, in.Gid), claim)
	})
}

// make is create without an open handle.
func (b *bridge) make(cancel <-chan struct{}, in *fuse.InHeader, name string, n dsm.Inode, out *fuse.EntryOut) fuse.Status {
	if st := writable(in.NodeId, name); !st.Ok() {
		return st
	}
	r := b.begin(cancel, in)
	defer r.end()
	i, err := b.create(r, in, name, n, false)
	if err != nil {
		return status(err)
	}
	node, _ := b.toldOf(r, i, place{nodeID(in.NodeId), name}, makerOf)
	b.entry(i, out)
	out.NodeId = uint64(node)
	return fuse.OK
}

func (b *bridge) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return b.make(cancel, &in.InHeader, name, dsm.Inode{Kind: dsm.KindDir, Perm: in.Mode & 07777}, out)
}

// Mknod makes regular files only. A device, fifo or socket means something on
// one node only: EPERM, as mknod(2) says of a filesystem that does not support the type.
func (b *bridge) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if in.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return fuse.EPERM
	}
	return b.make(cancel, &in.InHeader, name, dsm.Inode{Kind: dsm.KindFile, Perm: in.Mode & 07777}, out)
}

func (b *bridge) Symlink(cancel <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return b.make(cancel, in, name, dsm.Inode{Kind: dsm.KindSymlink, Perm: 0o777, Target: target, Size: int64(len(target))}, out)
}

func (b *bridge) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if st := writable(in.NodeId, name); !st.Ok() {
		return st
	}
	if _, ok := control.Of(in.Oldnodeid); ok {
		return fuse.EPERM
	}
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	i, err := b.cfg.Names.Link(r, inoOf(in.Oldnodeid), inoOf(in.NodeId), name)
	if err != nil {
		return status(err)
	}
	b.entry(i, out)
	return fuse.OK
}

func (b *bridge) Readlink(cancel <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	r := b.begin(cancel, in)
	defer r.end()
	i, err := b.cfg.Names.Getattr(r, inoOf(in.NodeId))
	if err != nil {
		return nil, b.walkStatus(r.tid, err)
	}
	if i.Kind != dsm.KindSymlink {
		return nil, fuse.EINVAL
	}
	return []byte(i.Target), fuse.OK
}

func (b *bridge) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	if st := writable(in.NodeId, name); !st.Ok() {
		return st
	}
	r := b.begin(cancel, in)
	defer r.end()
	return status(b.cfg.Names.Unlink(r, inoOf(in.NodeId), name))
}

func (b *bridge) Rmdir(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	if st := writable(in.NodeId, name); !st.Ok() {
		return st
	}
	r := b.begin(cancel, in)
	defer r.end()
	p := place{nodeID(in.NodeId), name}
	st := b.remove(r, p, func(victim dsm.Ino) error { return b.cfg.Names.Rmdir(r, inoOf(in.NodeId), name, victim) })
	if st.Ok() {
		b.aliases.removed(p)
	}
	return st
}

func (b *bridge) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	if st := writable(in.NodeId, oldName); !st.Ok() {
		return st
	}
	if st := writable(in.Newdir, newName); !st.Ok() {
		return st
	}
	how, ok := map[uint32]dsm.RenameHow{
		0: dsm.RenameReplace, unix.RENAME_NOREPLACE: dsm.RenameNoReplace, unix.RENAME_EXCHANGE: dsm.RenameExchange,
	}[in.Flags]
	if !ok {
		return fuse.EINVAL
	}
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	from, to := place{nodeID(in.NodeId), oldName}, place{nodeID(in.Newdir), newName}
	st := b.remove(r, to, func(victim dsm.Ino) error {
		if how != dsm.RenameReplace {
			victim = 0 // nothing is removed
		}
		return b.cfg.Names.Rename(r, inoOf(in.NodeId), oldName, inoOf(in.Newdir), newName, how, victim)
	})
	if st.Ok() {
		b.aliases.renamed(from, to, how == dsm.RenameExchange)
	}
	return st
}

var errNotHere = errs.E(errs.NotExist, "look up", "")
