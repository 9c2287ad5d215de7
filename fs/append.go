package fs

import (
	"context"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// The place of an append is decided where the size is decided: in the catalog, by the command that
// makes the file longer. The kernel's own idea of the size may be out of date. So a file opened
// with O_APPEND is written and read past the page cache (FOPEN_DIRECT_IO), where the kernel's idea
// does no harm.
//
// If O_APPEND was set later, with fcntl, the kernel has put the bytes into its page cache at the
// place that it believes is right. If it is not, the kernel is told to drop them.

// appending opens the file for appending if the flags ask for it. A direct file is still mapped as
// the memory itself.
func (h *fileHandle) appending(flags uint32, out *fuse.OpenOut) {
	if h.write && flags&syscall.O_APPEND != 0 {
		h.goPast(out)
	}
}

// bounded opens the file so that each read(2) asks for it, if there is a bound on how old what it returns may be: the page cache would
// answer by itself, however long the homes have not. The bound of a file that is open already is that of its next open.
func (h *fileHandle) bounded(out *fuse.OpenOut) {
	if h.area.spec().Staleness > 0 && !h.area.direct.on.Load() {
		h.goPast(out)
	}
}

func (h *fileHandle) goPast(out *fuse.OpenOut) {
	h.past = true
	out.OpenFlags |= fuse.FOPEN_DIRECT_IO
}

// goesPast reports whether the kernel, given these flags, reads and writes past its page cache
// through the handle.
func (h *fileHandle) goesPast(flags uint32) bool { return h.past || flags&syscall.O_DIRECT != 0 }

// write handles the stores of a write(2): at the offset that the kernel gives or, for an append,
// that the catalog gives.
// timed is that of ensureSize.
func (b *bridge) write(r *request, h *fileHandle, in *fuse.WriteIn, data []byte) (timed bool, err error) {
	a, area, n := h.area, h.area.current(), int64(len(data))
	off := int64(in.Offset)
	if err := area.CheckWrite(data, off, !h.goesPast(in.Flags)); err != nil {
		return false, err
	}
	if in.Flags&syscall.O_APPEND != 0 {
		off, timed, err = b.grow(r, a, n)
	} else {
		timed, err = b.ensureSize(r, a, off+n)
	}
	switch stray := int64(in.Offset); {
	case err != nil:
		return false, err
	case h.goesPast(in.Flags):
		return timed, area.WriteBy(r, a.programs.owner(in.Pid), data, off)
	case off == stray:
		return timed, area.WriteAt(r, data, off)
	default:
		// The kernel may keep a page locked until the reply. The notice for that page waits for the
		// reply, and WriteBy would wait for the notice.
		ended, end := context.WithCancel(r)
		end()
		b.background.run(func() { b.notify.log(a, "invalidate", b.notify.server.InodeNotify(uint64(a.id), stray, n)) })
		return timed, area.WriteBy(ended, a.programs.owner(in.Pid), data, off)
	}
}

// grow makes the area longer by n bytes and returns where these are.
func (b *bridge) grow(ctx context.Context, a *openArea, n int64) (off int64, timed bool, err error) {
	b.grown(ctx, a) // what programs have written past the end of a direct file comes first
	began := time.Now()
	i, err := b.resize(ctx, dsm.Ino(a.id), dsm.SetAttr{GrowBy: &n})
	if err != nil {
		return 0, false, err
	}
	a.note(i)
	return i.Size - n, !i.Mtime.Before(began), nil
}
