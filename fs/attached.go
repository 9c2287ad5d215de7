package fs

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// attachMount is the filesystem as package attach sees it.
type attachMount struct {
	Names
	b *bridge
}

var _ attach.Mount = attachMount{}

// newAttach makes the server for programs that attach. They wait until it serves.
func (b *bridge) newAttach() (*attach.Server, error) {
	cfg := attach.Config{
		Mount: attachMount{b.cfg.Names, b}, Groups: b.attachGroups(), Log: b.log, Socket: b.cfg.AttachSocket, GuardArgv: b.cfg.GuardArgv,
		Tracking: b.cfg.Tracking, Timeout: b.cfg.FaultTimeout, Life: b.life,
	}
	if b.cfg.Held != nil {
		var err error
		if cfg.Listener, err = b.heldListener(); err != nil {
			return nil, errs.E(errs.Other, "listen for programs that attach", "%w", err)
		}
		cfg.Journal = &b.held
	}
	return attach.New(cfg)
}

func (m attachMount) Create(ctx context.Context, who *dsm.Credentials, dir dsm.Inode, name string, n dsm.Inode, settings []dsm.Setting) (dsm.Inode, error) {
	if err := free(dir.Ino, name); err != nil {
		return dsm.Inode{}, err
	}
	n = ownedBy(who, n, dir)
	i, err := m.b.withRoom(ctx, func() (dsm.Inode, error) {
		return m.Names.Create(ctx, dir.Ino, name, n, true, settings...)
	})
	if err == nil {
		m.b.claims.made(i.Ino) // as a rule the program attaches next
	}
	return i, err
}

// free refuses the name of the control files.
func free(dir dsm.Ino, name string) error {
	if dir == dsm.RootIno && name == control.Name {
		return errs.E(errs.Permission, "create", "/%s is where the control files are", name)
	}
	return nil
}

// ownedBy is owned for a program that does not come through a mount, whose kernel would look after the
// set-group-ID bit.
func ownedBy(who *dsm.Credentials, n, dir dsm.Inode) dsm.Inode {
	n = owned(n, dir, who.UID, who.GID)
	if who.UID != 0 && !who.In(n.GID) {
		n.Perm &^= syscall.S_ISGID
	}
	return n
}

func (m attachMount) CreateUnnamed(ctx context.Context, who *dsm.Credentials, dir, n dsm.Inode, settings []dsm.Setting) (attach.Area, dsm.Inode, error) {
	n = ownedBy(who, n, dir)
	i, err := m.b.withRoom(ctx, func() (dsm.Inode, error) {
		return m.Names.CreateTemp(ctx, dir.Ino, n, settings...)
	})
	if err != nil {
		return nil, i, err
	}
	a, err := m.b.opens.attach(ctx, i.Ino, true, &i)
	if err != nil {
		return nil, i, err
	}
	return attachedArea{a.current(), m.b, a}, i, nil
}

func (m attachMount) Link(ctx context.Context, ino, dir dsm.Ino, name string) (dsm.Inode, error) {
	if err := free(dir, name); err != nil {
		return dsm.Inode{}, err
	}
	return m.Names.Link(ctx, ino, dir, name)
}

func (attachMount) CheckSetting(key string) error { return checkSetting(key) }

func (m attachMount) IsOpen(ino dsm.Ino) bool {
	a := m.b.opens.find(dsm.AreaID(ino))
	return a != nil && a.handles() > 0
}

func (m attachMount) Open(ctx context.Context, ino dsm.Ino, write bool) (attach.Area, error) {
	a, err := m.b.opens.attach(ctx, ino, write, nil)
	if err != nil {
		return nil, err
	}
	return attachedArea{a.current(), m.b, a}, nil
}

func (m attachMount) Release(f func())    { m.b.releases.run(f) }
func (m attachMount) Background(f func()) { m.b.background.run(f) }

func (m attachMount) Rounds(ino dsm.Ino) groups.Area { return mountedArea{m.b, dsm.AreaID(ino)} }

func (m attachMount) Lasting() (context.Context, context.CancelFunc) { return m.b.lasting() }

// attachedArea is an area that a program has attached.
type attachedArea struct {
	Area // stays the same while the program has it open
	b    *bridge
	a    *openArea
}

func (x attachedArea) Close(write bool) { x.b.opens.detach(x.a, write) }

func (x attachedArea) Size() int64 {
	size, _ := x.a.noted()
	return size
}

func (x attachedArea) Resize(ctx context.Context, size int64) (dsm.Inode, error) {
	i, err := x.b.resize(ctx, dsm.Ino(x.a.id), dsm.SetAttr{Size: &size})
	if err == nil {
		x.b.notify.attrChanged(x.a) // the kernel of the mount does not know yet
		err = x.Grown(ctx, 0, size)
	}
	return i, err
}

func (x attachedArea) Publish(ctx context.Context) error { return x.b.publish(ctx, x.a) }

func (x attachedArea) PublishNow(limit time.Duration, done func(error)) bool {
	a := x.a
	if a.direct.writing.Load() != 0 {
		return false // the catalog may have to be asked
	}
	stored := a.stored.Load()
	a.publishing.Add(1)
	taken := a.current().PublishNow(limit, func(err error) {
		if err == nil {
			x.b.countSoon(a) // first, so that a store is published only when it is known to be counted or not
			a.reached(stored)
		}
		a.publishing.Add(-1)
		done(err)
	})
	if !taken {
		a.publishing.Add(-1)
	}
	return taken
}

func (x attachedArea) Contribute(ctx context.Context, id dsm.RoundID) error {
	return x.b.contribute(ctx, x.a, id)
}
func (x attachedArea) Stats() string { return control.FlatKeyed(x.b.areaStats(x.a)) }

func (x attachedArea) Direct() bool { return x.a.direct.on.Load() }

func (x attachedArea) Attach(ctx context.Context, program int, write bool) (attach.Attachment, *os.File, error) {
	t, f, err := x.Area.Attach(ctx, program, write)
	if err != nil {
		return nil, nil, err
	}
	return x.entered(t, program, write), f, nil
}

func (x attachedArea) Reattach(program int, write bool, memory uint64) (attach.Attachment, *os.File, error) {
	t, f, err := x.Area.Reattach(program, write, memory)
	if err != nil {
		return nil, nil, err
	}
	return x.entered(t, program, write), f, nil
}

// entered counts the program of an attachment.
func (x attachedArea) entered(t Attachment, program int, write bool) attach.Attachment {
	if !write {
		program = 0
	}
	if program != 0 {
		x.a.programs.enter(program, t.Own())
		x.b.warnOfSums(x.a)
	}
	return attachment{t, x, program}
}

// attachment is an area that a program has attached.
type attachment struct {
	Attachment
	area    attachedArea
	program int // the program if it may store, otherwise 0
}

func (t attachment) Detach() {
	own := t.Own()
	t.Attachment.Detach()
	if t.program != 0 {
		t.area.a.programs.leave(t.program, own)
	}
}

func (t attachment) PublishReleased(ctx context.Context) error {
	return t.area.b.publishReleasedBy(ctx, t.area.a, func(_ Area, ctx context.Context) (bool, error) { return t.Attachment.PublishReleased(ctx) })
}

func (t attachment) Track(source attach.Source, off, n int64) (stop func()) {
	return t.Attachment.Track(source, off, n)
}

func (t attachment) Acquire(ctx context.Context) error {
	return t.area.b.acquire(ctx, t.area.a, t.Attachment.Acquire)
}

func (t attachment) Sync(ctx context.Context) error {
	return t.area.b.sync(ctx, t.area.a, t.Attachment.Sync)
}
