package fs

import (
	"context"
	"strconv"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
)

// What the kernel asks of /.dsm, which package control answers.

// controlMount is what the control files see of the mount.
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

func (m controlMount) SetSpec(ctx context.Context, ino dsm.Ino, key, value string) error {
	return m.b.setSpec(ctx, ino, key, value)
}

func (m controlMount) Inspect(ctx context.Context, i dsm.Inode, key string) (string, error) {
	return m.b.liveValue(ctx, i, key)
}

func (m controlMount) Publish(ctx context.Context, id dsm.AreaID) error {
	if a := m.b.opens.find(id); a != nil && a.handles() > 0 {
		return m.b.harvestAndPublish(ctx, a)
	}
	return nil
}

func (m controlMount) Acquire(ctx context.Context, id dsm.AreaID) error {
	if a := m.b.opens.find(id); a != nil && a.handles() > 0 {
		return a.current().Acquire(ctx, false)
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

// controlHandle is an open control file.
type controlHandle struct{ *control.Handle }

func (b *bridge) controlAttr(ctx context.Context, c control.Node, out *fuse.Attr) error {
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

// controlLookup resolves a name in /.dsm. The directory of inodes by number is the harvest child's only.
func (b *bridge) controlLookup(ctx context.Context, dir control.Node, name string, tid uint32, out *fuse.EntryOut) error {
	if dir == control.InoDir {
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
	}
	c, err := b.control.Lookup(ctx, dir, name)
	if err != nil {
		return err
	}
	if c == control.InoDir && !b.harvest.IsChild(tid) {
		return errNotHere
	}
	return b.controlEntry(ctx, c, out)
}

func (b *bridge) controlOpen(c control.Node, flags uint32, out *fuse.OpenOut) error {
	h, err := b.control.Open(c, flags)
	if err != nil {
		return err
	}
	out.Fh, out.OpenFlags = b.handles.add(controlHandle{h}), fuse.FOPEN_DIRECT_IO
	return nil
}
