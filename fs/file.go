package fs

import (
	"context"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Open opens an area for another handle. The first one makes the kernel drop the pages that it
// still has from before, because they have not been kept up to date. Every further one keeps them, once the kernel has certainly done that.
func (b *bridge) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	if c, ok := control.Of(in.NodeId); ok {
		return status(b.controlOpen(r, c, in, out))
	}
	if b.harvest.IsChild(in.Pid) {
		out.Fh, out.OpenFlags = b.handles.add(childHandle{}), fuse.FOPEN_KEEP_CACHE|fuse.FOPEN_NOFLUSH
		return fuse.OK
	}
	return b.open(r, inoOf(in.NodeId), in.Flags, nil, out)
}

func (b *bridge) open(r *request, ino dsm.Ino, flags uint32, claimed *dsm.Inode, out *fuse.OpenOut) fuse.Status {
	write := flags&syscall.O_ACCMODE != syscall.O_RDONLY
	a, drops, err := b.opens.open(r, ino, write, claimed)
	if claimed == nil && b.opensLate(r, ino, flags, err) {
		return b.openLate(r, ino, flags, out)
	}
	if err != nil {
		if k := errs.KindOf(err); k == errs.Unavailable || k == errs.Timeout || k == errs.NoSpace || k == errs.Busy {
			b.log.Warn("open", "area", dsm.AreaID(ino), "err", err) // what it says is more than the error number
		}
		return b.walkStatus(r.tid, err)
	}
	b.retries.drop(r.tid)
	direct := a.direct.on.Load()
	if st := b.enterHandle(r, a, ino, flags, r.tid, out, func(f *fileHandle, h heldHandle) (uint64, error) {
		h.fh = b.handles.add(f)
		return h.fh, b.held.opened(r, h)
	}); !st.Ok() {
		return st
	}
	switch {
	case direct:
		out.OpenFlags |= fuse.FOPEN_PASSTHROUGH // the kernel refuses KEEP_CACHE together with it
		out.BackingID = a.direct.backing.Load()
	case !drops:
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	}
	return fuse.OK
}

// enterHandle makes the handle of an area that a thread has opened. enter gives the handle its number, and records it. If enterHandle fails the area is not open.
func (b *bridge) enterHandle(r *request, a *openArea, ino dsm.Ino, flags, tid uint32, out *fuse.OpenOut, enter func(*fileHandle, heldHandle) (fh uint64, err error)) fuse.Status {
	write := wanted(flags)&dsm.MayWrite != 0
	b.awaitForfeited(r, a)
	leave, err := b.walIndexes.enter(r, tid, write, a)
	if err != nil {
		b.opens.release(a, write)
		return status(err)
	}
	h := b.newHandle(a, tid, flags, out)
	h.leave = leave
	if h.write {
		tid = uint32(h.program) // the process goes on when its thread has ended
	}
	if out.Fh, err = enter(h, heldHandle{ino: ino, flags: flags, tid: tid}); err != nil {
		b.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
		return status(err)
	}
	return fuse.OK
}

// newHandle returns a handle of an area that a thread has opened.
func (b *bridge) newHandle(a *openArea, tid, flags uint32, out *fuse.OpenOut) *fileHandle {
	h := newFileHandle(a, flags&syscall.O_ACCMODE != syscall.O_RDONLY)
	if h.write {
		if h.program = int(tid); a.spec().AppliesInSync() || a.spec().Mode == dsm.ModeVersioned {
			h.program = processOf(h.program) // now, because the thread may end
		}
		if a.spec().Mode == dsm.ModeVersioned {
			h.opener.is(h.program)
		}
		a.programs.enter(h.program, false)
		b.warnOfSums(a)
	}
	h.appending(flags, out)
	h.bounded(out)
	h.wholly(out)
	return h
}

// Create makes a file and opens it in one step, so that nobody can unlink it in between. If the
// name is taken it returns errs.Exist with O_EXCL, and otherwise opens the file that is there.
func (b *bridge) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if st := writable(in.NodeId, name); !st.Ok() {
		return st
	}
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	i, made, err := b.createOrFind(r, in, name)
	if err != nil {
		return status(err)
	}
	var claimed *dsm.Inode
	switch {
	case made:
		claimed = &i
	case i.Kind == dsm.KindDir:
		return fuse.Status(syscall.EISDIR)
	case i.Kind != dsm.KindFile: // a symlink: ESTALE makes the kernel walk the path again
		return b.walkStatus(r.tid, errNotHere)
	}
	b.walIndexes.told(i, place{nodeID(in.NodeId), name})
	if st := b.open(r, i.Ino, in.Flags, claimed, &out.OpenOut); !st.Ok() {
		return st
	}
	b.entry(i, &out.EntryOut)
	return fuse.OK
}

// createOrFind makes the file of a Create. Without O_EXCL it returns what another node has made after this kernel looked, and makes the file
// all the same if that was unlinked meanwhile.
func (b *bridge) createOrFind(r *request, in *fuse.CreateIn, name string) (i dsm.Inode, made bool, err error) {
	for {
		i, err = b.create(r, &in.InHeader, name, dsm.Inode{Kind: dsm.KindFile, Perm: in.Mode & 07777}, true)
		if err == nil && in.Unique&resent != 0 { // the result may be that of before
			if now, nerr := b.cfg.Names.Getattr(r, i.Ino); nerr == nil {
				i = now
			}
		}
		if !errs.Is(err, errs.Exist) || in.Flags&syscall.O_EXCL != 0 {
			return i, err == nil, err
		}
		if i, err = b.find(r, in, name); !errs.Is(err, errs.NotExist) || r.Err() != nil {
			return i, false, err
		}
	}
}

// find returns what has the name of a Create. A file is ready to be opened.
func (b *bridge) find(r *request, in *fuse.CreateIn, name string) (dsm.Inode, error) {
	i, err := b.cfg.Names.Lookup(r, inoOf(in.NodeId), name)
	if err != nil || i.Kind != dsm.KindFile {
		return i, err
	}
	// The kernel left this check out because it believed that the file was new. Supplementary
	// groups do not count here, because the kernel does not tell them.
	if c := (dsm.Credentials{UID: in.Uid, GID: in.Gid}); !c.May(i, wanted(in.Flags)) {
		return i, errs.E(errs.Access, "create", "")
	}
	if in.Flags&syscall.O_TRUNC != 0 && i.Size > 0 { // nor did the kernel truncate it
		return b.setAttr(r, i.Ino, dsm.SetAttr{Size: new(int64)})
	}
	return i, nil
}

// Tmpfile makes a file without a name (O_TMPFILE), which linkat(2) may give it.
func (b *bridge) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	if _, ok := control.Of(in.NodeId); ok {
		return fuse.EPERM
	}
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	dir, err := b.cfg.Names.Getattr(r, inoOf(in.NodeId))
	if err != nil {
		return b.walkStatus(r.tid, err)
	}
	n := owned(dsm.Inode{Kind: dsm.KindFile, Perm: in.Mode & 07777}, dir, in.Uid, in.Gid)
	i, err := b.withRoom(r, func() (dsm.Inode, error) { return b.cfg.Names.CreateTemp(r, dir.Ino, n) })
	if err != nil {
		return status(err)
	}
	if st := b.open(r, i.Ino, in.Flags, &i, &out.OpenOut); !st.Ok() {
		return st
	}
	b.entry(i, &out.EntryOut)
	return fuse.OK
}

// wanted returns which bits of the mode an open with the flags needs.
func wanted(flags uint32) uint32 {
	switch flags & syscall.O_ACCMODE {
	case syscall.O_RDONLY:
		return dsm.MayRead
	case syscall.O_WRONLY:
		return dsm.MayWrite
	}
	return dsm.MayRead | dsm.MayWrite
}

// Read fills pages, or with O_DIRECT the program's buffer. It may wait for another node; the
// handler itself never notifies.
func (b *bridge) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	of := b.handles.get(in.Fh)
	switch h := of.(type) {
	case controlHandle:
		if h.Talks() {
			r.deadline, r.interruptible = time.Now().Add(forever), true
			text, err := h.Hear(r, len(buf))
			return fuse.ReadResultData([]byte(text)), status(err)
		}
		text, err := h.Read(r, in.Offset)
		if err != nil {
			return nil, status(err)
		}
		return fuse.ReadResultData(buf[:copy(buf, text)]), fuse.OK
	case *versionHandle:
		n, err := h.area.current().ReadVersion(h.version, buf, int64(in.Offset))
		return fuse.ReadResultData(buf[:n]), status(err)
	case *fileHandle:
		b.count.reads.Add(1)
		b.givesPages(h.area)
		past := in.ReadFlags&fuse.READ_LOCKOWNER != 0 && h.goesPast(in.Flags) // READs of a mapping have none
		if !past && b.failedBefore(in) {
			return nil, fuse.EIO
		}
		read := h.area.current().ReadAt
		switch {
		case !past:
		case h.streams != nil && h.area.spec().Mode == dsm.ModeVersioned: // the mode of a file can change while it is empty
			read = func(ctx context.Context, p []byte, off int64) (int, error) { return h.readWhole(ctx, in.Pid, p, off) }
		default:
			read = func(ctx context.Context, p []byte, off int64) (int, error) {
				return h.area.current().ReadBy(ctx, h.area.programs.owner(in.Pid), p, off)
			}
		}
		n, err := read(r, buf, int64(in.Offset))
		if err != nil {
			b.log.Warn("read", "area", h.area.id, "offset", in.Offset, "err", err)
			if !past { // the kernel does not try it again
				b.failedNow(in)
			}
			return nil, status(err)
		}
		return fuse.ReadResultData(buf[:n]), fuse.OK
	}
	return nil, b.unopened(of, fuse.EBADF)
}

// Write handles stores. A write(2) past the end first makes the file grow, in the catalog. Pages of
// a mapping (WRITE_CACHE) never do: if they are past the end, another node has just truncated the
// file and this kernel does not know yet.
func (b *bridge) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	of := b.handles.get(in.Fh)
	switch h := of.(type) {
	case controlHandle:
		return uint32(len(data)), status(h.Write(r, data))
	case *fileHandle:
		b.count.writes.Add(1)
		b.givesPages(h.area) // a write(2) leaves them in the page cache
		w, timed := soon, false
		var err error
		if in.WriteFlags&fuse.WRITE_CACHE != 0 {
			err = h.area.current().WriteBack(r, data, int64(in.Offset))
		} else {
			w = atInterval
			timed, err = b.write(r, h, in, data)
		}
		if err != nil {
			return 0, status(err)
		}
		h.area.tookStore(timed)
		b.intervals.stored(h.area, w)
		return uint32(len(data)), fuse.OK
	}
	return 0, b.unopened(of, fuse.EBADF)
}

// ensureSize makes the area at least end bytes long. Inside of it, which is nearly
// always, the catalog is not asked. timed says that the catalog's time of modification is that of now.
func (b *bridge) ensureSize(r *request, a *openArea, end int64) (timed bool, err error) {
	if end < 0 || end > dsm.MaxAreaSize {
		return false, errs.E(errs.TooLarge, "write", "")
	}
	stale := a.sizeStale() // first: a change that is heard of from here on has not been answered to whom made it
	size, _ := a.noted()
	if end <= size && stale { // what is noted may not count any more
		i, err := b.cfg.Names.Getattr(r, dsm.Ino(a.id))
		if err != nil {
			return false, err
		}
		a.note(i)
		size = i.Size
	}
	if end <= size {
		return false, nil
	}
	began := time.Now()
	i, err := b.resize(r, dsm.Ino(a.id), dsm.SetAttr{GrowTo: &end})
	if err != nil {
		return false, err
	}
	a.note(i)
	a.kernelSize.Store(i.Size) // the reply to the WRITE tells it
	return !i.Mtime.Before(began), nil
}

// Flush is close(2): when it returns, what was stored is published. The kernel has delivered the
// stores to mappings before.
func (b *bridge) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h, ok := b.handles.get(in.Fh).(*fileHandle)
	if !ok {
		return fuse.OK
	}
	defer func() { h.flushed.Store(time.Now().UnixNano()) }()
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	r.breakable, r.flush = true, true
	var err, kept error
	switch {
	case b.closedByChild(h, int(in.Pid)): // Release publishes if nothing else does
	case h.opener.killed() && processOf(int(in.Pid)) == h.program: // in the midst of a version, perhaps: Release has it taken back
	case h.write:
		err = b.publishBy(r, h.area, Area.PublishLast) // after an fsync that timed out it does not wait again
		kept = err
	case b.hasLocks(h.area, in.LockOwner): // close(2) of any descriptor releases the locks of the process, under which it may have stored by another
		kept = b.publishForLocks(r, h.area, h.write)
	}
	if err == nil && h.write && h.area.forfeited.Swap(false) {
		err = errForfeited
	}
	b.unlockFlushed(h, in.LockOwner, kept == nil)
	if err == nil && h.write {
		err = h.area.direct.takeNoRoom()
	}
	if err != nil && r.broken() {
		return fuse.EINTR // nobody waits for it any more; Release publishes
	}
	if err != nil {
		b.log.Warn("publish at close", "area", h.area.id, "err", err)
	}
	return status(err)
}

// Fsync is fsync(2) and msync(2). The kernel has delivered the stores before.
func (b *bridge) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h, ok := b.handles.get(in.Fh).(*fileHandle)
	if !ok {
		return fuse.OK
	}
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	r.breakable = true
	h.area.current().KernelLocks()
	storing := h.write || b.storesWhole(r, h.area)
	err := b.sync(r, h.area, func(ctx context.Context) error { return h.area.current().Sync(ctx, storing) })
	if err == nil && h.write {
		err = h.area.direct.takeNoRoom()
	}
	if err != nil && r.broken() {
		return fuse.EINTR
	}
	if err != nil {
		b.log.Warn("sync", "area", h.area.id, "err", err)
	}
	return status(err)
}

// Release comes when the last descriptor and the last mapping of a handle are gone. Nobody waits
// for it.
func (b *bridge) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	defer b.handles.remove(in.Fh) // last: whoever waits for that waits for what is begun here next
	switch h := b.handles.get(in.Fh).(type) {
	case controlHandle:
		h.Close()
	case *versionHandle:
		b.versions.release(h)
	case *lateHandle:
		if b.handles.replace(in.Fh, h, nil) { // else a SETATTR has just made it that of an open file
			b.held.closed(in.Fh)
		}
	}
	h, ok := b.handles.get(in.Fh).(*fileHandle)
	if !ok {
		return
	}
	held := in.Fh
	if h.write || len(h.owners.all()) > 0 { // it is not over: if the daemon is killed now the next one publishes, and gives the locks up
		held = b.held.closes(in.Fh)
	} else {
		b.held.closed(in.Fh)
	}
	if h.write {
		h.area.programs.leave(h.program, false)
	}
	b.opens.releasing(h.area, h.write, h.opener.killed())
	h.opener.forget()
	h.endStreams()
	unlock := b.unlockReleased(h)
	b.releases.run(func() {
		unlock()
		if h.leave != nil {
			h.leave()
		}
		b.opens.releaseThen(h.area, h.write, func() { b.held.closed(held) })
	})
}
