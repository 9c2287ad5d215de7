package fs

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// A file of which bytes are lost with their home can be opened for writing all the same. The kernel sends an open with O_TRUNC in two requests, an OPEN and then a SETATTR, and neither says
// that the other one belongs to it; a program that calls ftruncate(2) needs an open file as well. So such a handle is a lateHandle, of which the data plane knows nothing. The SETATTR that
// truncates the file opens it there, before it is answered. Reads and writes by such a handle fail as the open would have. A WRITE could not open the file: that waits for notices, and these wait for the page that is
// being written.
//
// The kernel has no page of the file then: it drops all at the answer to the OPEN, and reads none.
type lateHandle struct {
	ino        dsm.Ino
	flags, tid uint32
}

func (*lateHandle) isHandle() {}

// lateLimit is how long a SETATTR waits at most until a file is open: if a program stores to a mapping of the file, notices wait for the SETATTR.
const lateLimit = 2 * time.Second

// plain reports whether the kernel is told nothing special when files with the spec are opened.
func plain(s dsm.Spec) bool {
	return s.Mode == dsm.ModeRelaxed && s.Access == dsm.AccessCached && s.Staleness == 0
}

// opensLate reports whether a file that cannot be opened because of err gets a lateHandle. Who appends does not truncate.
func (b *bridge) opensLate(r *request, ino dsm.Ino, flags uint32, err error) bool {
	if !errors.Is(err, errs.ErrLost) || wanted(flags)&dsm.MayWrite == 0 || flags&syscall.O_APPEND != 0 {
		return false
	}
	i, err := b.cfg.Names.Getattr(r, ino)
	return err == nil && plain(i.Spec)
}

// openLate opens a file with a lateHandle.
func (b *bridge) openLate(r *request, ino dsm.Ino, flags uint32, out *fuse.OpenOut) fuse.Status {
	b.retries.drop(r.tid)
	out.Fh = b.handles.add(&lateHandle{ino: ino, flags: flags, tid: r.tid})
	if err := b.held.opened(r, heldHandle{fh: out.Fh, ino: ino, flags: flags, tid: r.tid, late: true}); err != nil {
		b.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
		return status(err)
	}
	return fuse.OK
}

// unopened returns how a request ends by a handle that is not one of an open file: like the open, if it is a lateHandle.
func (b *bridge) unopened(h handle, otherwise fuse.Status) fuse.Status {
	late, ok := h.(*lateHandle)
	if !ok {
		return otherwise
	}
	b.log.Warn("some of the bytes are lost, with the node that was their home; remove the file, or truncate it to 0", "area", dsm.AreaID(late.ino))
	return fuse.EIO
}

// enterLate opens a file that was truncated for those that have a lateHandle of it.
func (b *bridge) enterLate(r *request, ino dsm.Ino) {
	for fh, h := range b.handles.late(ino) {
		ctx, cancel := context.WithTimeout(r, lateLimit)
		err := b.enterOneLate(ctx, r, fh, h)
		cancel()
		if err != nil {
			b.log.Warn("open a file again that was truncated", "area", dsm.AreaID(ino), "err", err)
		}
	}
}

func (b *bridge) enterOneLate(ctx context.Context, r *request, fh uint64, h *lateHandle) error {
	a, _, err := b.opens.open(ctx, h.ino, true, nil)
	if err != nil {
		return err
	}
	if !plain(a.spec()) || a.direct.on.Load() {
		b.opens.release(a, true)
		return errs.E(errs.Busy, "open", "its settings have changed")
	}
	a.kernelSize.Store(0)
	var out fuse.OpenOut
	st := b.enterHandle(r, a, h.ino, h.flags, h.tid, &out, func(f *fileHandle, held heldHandle) (uint64, error) {
		held.fh = fh
		err := b.held.entered(held) // first: who stores by it from then on has it open when another daemon follows
		if b.handles.replace(fh, h, f) {
			return fh, err
		}
		return b.handles.add(f), nil // it was closed, or opened by another SETATTR
	})
	switch {
	case !st.Ok():
		return syscall.Errno(st)
	case out.Fh != fh:
		b.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
	default:
		b.notify.attrChanged(a)
	}
	return nil
}

// replace puts a handle in place of another one, if that is there.
func (t *handleTable) replace(fh uint64, was *lateHandle, now handle) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.open[fh] != handle(was) {
		return false
	}
	t.setLocked(fh, now)
	return true
}

// late returns the late handles of a file. As a rule there are none, of any file.
func (t *handleTable) late(ino dsm.Ino) map[uint64]*lateHandle {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.mu.late == 0 {
		return nil
	}
	found := make(map[uint64]*lateHandle)
	for fh, h := range t.mu.open {
		if l, ok := h.(*lateHandle); ok && l.ino == ino {
			found[fh] = l
		}
	}
	return found
}
