package fs

import (
	"cmp"
	"context"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// This file translates between the kernel's requests about /.dsm and package control.

// controlMount is the mount as the control files see it.
type controlMount struct {
	Names
	b *bridge
}

var _ control.Mount = controlMount{}

func (b *bridge) newControl() *control.Tree {
	return control.New(control.Config{
		Mount: controlMount{b.cfg.Names, b}, Info: b.cfg.Info, Log: b.log, AttachSocket: b.cfg.AttachSocket,
		UID: b.cfg.owner.Uid, GID: b.cfg.owner.Gid,
	})
}

// Lookup finds the control files of an area on a node that is cut off too: they say how old its memory is.
func (m controlMount) Lookup(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error) {
	if m.CutOff() {
		return m.LookupKnown(dir, name)
	}
	return m.Names.Lookup(ctx, dir, name)
}

func (m controlMount) Getattr(ctx context.Context, ino dsm.Ino) (dsm.Inode, error) {
	if m.CutOff() {
		return m.GetattrKnown(ino)
	}
	return m.Names.Getattr(ctx, ino)
}

func (m controlMount) SetSpec(ctx context.Context, ino dsm.Ino, key, value string) error {
	return m.b.setSpec(ctx, ino, key, value)
}

func (m controlMount) Inspect(ctx context.Context, i dsm.Inode, key string) (string, error) {
	v, err := m.b.liveValue(ctx, i, key)
	if errs.Is(err, errs.NoAttr) {
		return "", nil // a control file says nothing then
	}
	return v, err
}

func (m controlMount) Publish(ctx context.Context, id dsm.AreaID) error {
	if a := m.b.opens.find(id); a != nil && a.handles() > 0 {
		return m.b.harvestAndPublish(ctx, a)
	}
	return nil
}

func (m controlMount) Acquire(ctx context.Context, id dsm.AreaID) error {
	if a := m.b.opens.find(id); a != nil && a.handles() > 0 {
		r, ok := ctx.(*request)
		stores := ok && a.programs.has(processOf(int(r.tid)))
		return m.b.acquire(ctx, a, func(ctx context.Context) error { return a.current().Acquire(ctx, stores) })
	}
	return nil
}

func (m controlMount) Stats() []control.Stat {
	return append(m.b.stats(), m.b.cfg.Areas.Stats()...)
}

func (m controlMount) AreaStats(id dsm.AreaID) []control.Stat {
	if a := m.b.opens.find(id); a != nil && a.current() != nil {
		return m.b.areaStats(a)
	}
	return nil
}

func (m controlMount) Versions(ctx context.Context, ino dsm.Ino) ([]control.Version, error) {
	list, err := m.b.versions.list(ctx, ino)
	out := make([]control.Version, len(list))
	for i, v := range list {
		out[i] = control.Version{Number: v.Version, Size: v.Size, Writer: m.b.nodeName(v.Writer)}
	}
	return out, err
}

func (m controlMount) Conflicts(ctx context.Context, id dsm.AreaID) []control.KeptConflicts {
	return m.b.cfg.Areas.Conflicts(ctx, id)
}

func (m controlMount) ClearConflicts(ctx context.Context, id dsm.AreaID, node string, upTo uint64) error {
	var of dsm.NodeID
	if upTo > 0 {
		var err error
		if of, err = m.b.nodeNamed("clear conflicts", cmp.Or(node, nodeHere)); err != nil {
			return err
		}
	}
	return m.b.cfg.Areas.ClearConflicts(ctx, id, of, upTo)
}

func (m controlMount) Transfer(ctx context.Context, ino dsm.Ino, to string) error {
	return m.b.transfer(ctx, ino, to)
}

func (m controlMount) Groups(ctx context.Context) []string {
	if m.b.cfg.Groups == nil {
		return nil
	}
	return m.b.cfg.Groups.List(ctx)
}

func (m controlMount) Talk(group dsm.Ino, who dsm.Credentials) (control.Talk, error) {
	if m.b.cfg.Groups == nil {
		return nil, errs.E(errs.Unsupported, "open", "this node has no groups")
	}
	if first, err := m.b.talks.begin(who.UID); err != nil {
		if first {
			m.b.log.Warn("open: a user wants more than programs may have", "uid", who.UID, "err", err)
		}
		return nil, err
	}
	return newGroupTalk(m, dsm.AreaID(group), who), nil
}

// controlHandle is an open control file.
type controlHandle struct{ *control.Handle }

func (b *bridge) controlAttr(ctx context.Context, c control.Node, out *fuse.Attr) error {
	if _, ok := c.Version(); ok {
		return b.versions.attr(c.ID(), out)
	}
	a, err := b.control.Attr(ctx, c)
	if err != nil {
		return err
	}
	*out = fuse.Attr{
		Ino: c.ID(), Mode: a.Mode, Nlink: a.Nlink, Owner: fuse.Owner{Uid: a.UID, Gid: a.GID}, Blksize: dsm.PageSize,
	}
	out.SetTimes(&b.cfg.started, &b.cfg.started, &b.cfg.started)
	return nil
}

func (b *bridge) controlEntry(ctx context.Context, c control.Node, out *fuse.EntryOut) error {
	*out = fuse.EntryOut{NodeId: c.ID(), Generation: generation}
	return b.controlAttr(ctx, c, &out.Attr)
}

// controlLookup resolves a name in /.dsm. Only the harvest child may use the directory of inodes by
// number.
func (b *bridge) controlLookup(ctx context.Context, dir control.Node, name string, tid uint32, out *fuse.EntryOut) error {
	if dir == control.InoDir {
		ino, err := strconv.ParseUint(name, 10, 64)
		if err != nil || !b.harvest.IsChild(tid) {
			return errNotHere
		}
		i, ok := b.known(dsm.Ino(ino))
		if !ok {
			return errNotHere // the child needs only what is open on this node
		}
		b.entry(i, out) // the inode itself, under a second name
		return nil
	}
	if ino, ok := dir.Versions(); ok {
		return b.versions.lookup(ctx, ino, name, out)
	}
	c, err := b.control.Lookup(ctx, dir, name)
	if err != nil {
		return err
	}
	if c == control.InoDir && !b.harvest.IsChild(tid) {
		return errNotHere
	}
	err = b.controlEntry(ctx, c, out)
	if c == control.InoDir {
		out.SetEntryTimeout(nameTimeout)
	}
	return err
}

// nameTimeout is how long the kernel keeps the names on the child's way to its files, which never
// change. To look one up the child would wait for any program that is creating something in the
// same directory, and that program may be waiting for the catalog.
const nameTimeout = time.Hour

// known returns what the kernel was last told about an inode, for the harvest child: it knows the
// root, and what is open on this node. With these answers the child can harvest even when the
// catalog does not answer. And the child has one thread: if it waited for one area's inode, it
// would stop the intervals of all areas.
func (b *bridge) known(ino dsm.Ino) (i dsm.Inode, ok bool) {
	if ino == dsm.RootIno {
		if i := b.root.Load(); i != nil {
			return *i, true
		}
		return i, false
	}
	if a := b.opens.find(dsm.AreaID(ino)); a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.mu.inode, a.mu.inode.Ino != 0
	}
	return i, false
}

func (b *bridge) controlOpen(ctx context.Context, c control.Node, in *fuse.OpenIn, out *fuse.OpenOut) error {
	if _, ok := c.Version(); ok {
		return b.versions.open(ctx, in, out)
	}
	who := dsm.Credentials{UID: in.Uid, GID: in.Gid}
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY { // it may be a talk, which uses files for the program
		who.Groups = groupsOf(int(in.Pid))
	}
	h, err := b.control.Open(c, in.Flags, who)
	if err != nil {
		return err
	}
	out.Fh, out.OpenFlags = b.handles.add(controlHandle{h}), fuse.FOPEN_DIRECT_IO
	if h.Talks() { // a read that waits must not delay a write
		out.OpenFlags |= fuse.FOPEN_STREAM | fuse.FOPEN_NONSEEKABLE
	}
	return nil
}
