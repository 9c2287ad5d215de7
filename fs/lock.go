package fs

import (
	"context"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/locks"
)

// Package locks decides on locks. This file finds out who owns them, and makes them points at which
// nodes meet: before a lock is released what was stored is published, and before a lock that other
// nodes may have had is granted the area is acquired.
//
// The kernel keeps no locks of its own here, and does not say when they end (K48):
//
//	fcntl of a process     FLUSH, at each close(2), has the owner: its locks of the file end
//	flock                  RELEASE, after the last close(2) has returned
//	fcntl of an open file  the same, but nothing says that there were any, nor whose
//
// So each handle remembers which owners requested locks through it. Those for whom no FLUSH came
// are open files.

// lockOwners are the owners that requested locks through a handle.
type lockOwners struct {
	mu struct {
		lockrank.Mutex
		set map[locks.Owner]struct{}
	}
}

func (l *lockOwners) add(o locks.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.set == nil {
		l.mu.set = make(map[locks.Owner]struct{})
	}
	l.mu.set[o] = struct{}{}
}

func (l *lockOwners) remove(o locks.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.set, o)
}

func (l *lockOwners) all() (owners []locks.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for o := range l.mu.set {
		owners = append(owners, o)
	}
	return owners
}

// locks records that an owner asks for locks through the handle.
func (h *fileHandle) locks(o locks.Owner) {
	h.owners.add(o)
	h.area.lockers.Store(o, h)
}

var lockTypes = map[uint32]locks.Type{syscall.F_RDLCK: locks.Read, syscall.F_WRLCK: locks.Write, syscall.F_UNLCK: locks.Unlock}

// lockOf returns the lock that the kernel requests, and the handle.
func (b *bridge) lockOf(in *fuse.LkIn) (h *fileHandle, l locks.Lock, st fuse.Status) {
	of := b.handles.get(in.Fh)
	h, ok := of.(*fileHandle)
	t, known := lockTypes[in.Lk.Typ]
	switch {
	case b.cfg.Locks == nil || !ok:
		return nil, l, b.unopened(of, fuse.Status(syscall.ENOLCK)) // the files of /.dsm have no locks
	case !known:
		return nil, l, fuse.EINVAL
	}
	l = locks.Lock{
		Owner: b.cfg.Locks.Owner(in.Owner, in.LkFlags&fuse.FUSE_LK_FLOCK != 0), Type: t,
		First: in.Lk.Start, Last: min(in.Lk.End, locks.End), PID: in.Lk.Pid,
	}
	if l.Owner.Flock {
		l.First, l.Last = 0, locks.End
	}
	if l.First > l.Last {
		return nil, l, fuse.EINVAL
	}
	return h, l, fuse.OK
}

// GetLk returns a lock that conflicts. If it is another node's, it names no process.
func (b *bridge) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	h, l, st := b.lockOf(in)
	if !st.Ok() {
		return st
	}
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	found, blocked, err := b.cfg.Locks.Test(r, dsm.Ino(h.area.id), l)
	out.Lk = fuse.FileLock{Typ: syscall.F_UNLCK}
	if blocked {
		out.Lk = fuse.FileLock{Start: found.First, End: found.Last, Typ: syscall.F_RDLCK, Pid: found.PID}
		if found.Type == locks.Write {
			out.Lk.Typ = syscall.F_WRLCK
		}
	}
	return status(err)
}

// SetLk handles requests that do not wait, and unlocks.
func (b *bridge) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	return b.setLock(r, in, false)
}

// SetLkw waits for the lock, however long. Any signal ends the wait; if the signal's handler
// restarts system calls, the kernel asks again. flock(2) unlocks this way, too. That waits for no lock, and a signal does not end it.
func (b *bridge) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	r := b.begin(cancel, &in.InHeader)
	if in.Lk.Typ != syscall.F_UNLCK {
		r.deadline, r.interruptible = time.Now().Add(forever), true
	}
	defer r.end()
	return b.setLock(r, in, true)
}

// forever is the time limit of waits without a limit.
const forever = 100 * 365 * 24 * time.Hour

func (b *bridge) setLock(r *request, in *fuse.LkIn, wait bool) fuse.Status {
	h, l, st := b.lockOf(in)
	if !st.Ok() {
		return st
	}
	a, ino := h.area, dsm.Ino(h.area.id)
	// Anything but a lock for writing may reduce what the owner has, and so may any change of a
	// flock.
	if (l.Type != locks.Write || l.Owner.Flock) && b.cfg.Locks.HasLocks(ino, l.Owner) {
		if err := b.publishForLocks(r, a, h.write || b.storesWhole(r, a)); err != nil {
			if r.interruptible && r.Err() != nil {
				return fuse.EINTR
			}
			b.log.Warn("publish before unlock; the lock stays", "area", a.id, "err", err)
			return status(err)
		}
	}
	if l.Type != locks.Unlock {
		h.locks(l.Owner)
	}
	acquire := func() error {
		ctx, cancel := b.lasting() // a wait for the lock may last for ever, this may not
		defer cancel()
		defer context.AfterFunc(r, cancel)()
		return a.current().Acquire(ctx, h.write)
	}
	if a.spec().Locks == dsm.LocksPlain {
		acquire = nil
	}
	b.held.locking(ino, l)
	err := b.cfg.Locks.Set(r, ino, l, wait, acquire)
	b.held.locked(in.Fh, ino, l.Owner)
	if l.Type == locks.Unlock && errs.Is(err, errs.Unavailable) {
		a.forfeited.Store(false) // this has said so
	}
	switch {
	case err != nil && r.interruptible && r.Err() != nil:
		return fuse.EINTR
	case err == nil && l.Type == locks.Write:
		a.writeLocked.Store(true)
		b.expectHarvest(a)
	case err != nil && !errs.Is(err, errs.WouldBlock) && !errs.Is(err, errs.Deadlock) && !errs.Is(err, errs.Interrupted):
		b.log.Warn("lock", "area", a.id, "err", err)
	}
	return status(err)
}

// publishForLocks publishes what was stored under a lock, unless the file's locks are plain. If the area was ever locked for writing on
// this node, this includes stores to mappings, for which the kernel must be asked. Of a versioned area a program publishes only if it is storing: else half of what
// another one is storing would be a version.
func (b *bridge) publishForLocks(ctx context.Context, a *openArea, storing bool) error {
	if a.spec().Locks == dsm.LocksPlain {
		return nil
	}
	if a.spec().Mode == dsm.ModeVersioned && !storing {
		return b.publishReleased(ctx, a)
	}
	if size, _ := a.noted(); a.writeLocked.Load() && size > 0 {
		return b.harvestAndPublish(ctx, a)
	}
	return b.publish(ctx, a)
}

// hasLocks reports whether a process has locks of the file.
func (b *bridge) hasLocks(a *openArea, owner uint64) bool {
	return b.cfg.Locks != nil && b.cfg.Locks.HasLocks(dsm.Ino(a.id), b.cfg.Locks.Owner(owner, false))
}

// unlockFlushed releases the locks of a process that has closed a descriptor of the file. If what
// it stored is not published yet, it tries once more after the close has returned.
func (b *bridge) unlockFlushed(h *fileHandle, owner uint64, published bool) {
	if b.cfg.Locks == nil {
		return
	}
	o := b.cfg.Locks.Owner(owner, false)
	h.owners.remove(o)
	h.area.lockers.Delete(o)
	if !b.cfg.Locks.HasLocks(dsm.Ino(h.area.id), o) {
		return
	}
	if !published {
		b.releases.run(b.unlocking(h.area, []locks.Owner{o}))
		return
	}
	ctx, cancel := b.lasting() // the process may be ending
	defer cancel()
	b.unlock(ctx, h.area, o)
}

func (b *bridge) unlock(ctx context.Context, a *openArea, o locks.Owner) {
	if !b.cfg.Locks.HasLocks(dsm.Ino(a.id), o) {
		return
	}
	b.held.locking(dsm.Ino(a.id), locks.Lock{Owner: o, Last: locks.End})
	if b.forfeits(a) {
		a.current().Forfeit() // when the owner has released what it believes to have, its stores are like any others
	}
	if err := b.cfg.Locks.Release(ctx, dsm.Ino(a.id), o); err != nil {
		b.log.Warn("the locks of a closed file are given up later", "area", a.id, "err", err)
	}
	b.held.locked(0, dsm.Ino(a.id), o)
}

// unlockReleased announces that the locks of a handle that is gone are about to be released, and
// returns the function that does so.
func (b *bridge) unlockReleased(h *fileHandle) func() {
	// The kernel may give the number of an open file that is gone to the next one at once, which may have asked for locks before the RELEASE has its turn.
	owners := slices.DeleteFunc(h.owners.all(), func(o locks.Owner) bool { return !h.area.lockers.CompareAndDelete(o, h) })
	if len(owners) == 0 {
		return func() {}
	}
	return b.unlocking(h.area, owners)
}

// unlocking announces that the locks of these owners are about to be released, and returns the
// function that publishes and releases them.
func (b *bridge) unlocking(a *openArea, owners []locks.Owner) func() {
	done := b.cfg.Locks.Releasing(dsm.Ino(a.id))
	return func() {
		defer done()
		ctx, cancel := b.lasting()
		defer cancel()
		if err := b.publishForLocks(ctx, a, false); err != nil {
			b.log.Warn("publish before the locks of a closed file are given up", "area", a.id, "err", err)
		}
		for _, o := range owners {
			b.unlock(ctx, a, o)
		}
	}
}
