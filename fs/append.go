package fs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Where an append goes is decided where the size is: in the catalog, by the command that makes the file longer. The
// kernel has an opinion, too, which is of the last time it was told. So what is opened with O_APPEND is
// written and read past the page cache (FOPEN_DIRECT_IO), where that opinion does no harm.
//
// Where O_APPEND was set later, with fcntl, the kernel has put the bytes into its page cache at the place that it thinks of. If
// that is not the right one it drops them again.

// appending makes an open one for appending, if it is. A direct file is still mapped as the memory that it is.
func (h *fileHandle) appending(flags uint32, out *fuse.OpenOut) {
	if h.write && flags&syscall.O_APPEND != 0 {
		h.past = true
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	}
}

// goesPast reports whether the kernel reads and writes by the handle, now that it has these flags, past its page cache.
func (h *fileHandle) goesPast(flags uint32) bool { return h.past || flags&syscall.O_DIRECT != 0 }

// write takes the stores of a write(2): to the place that the kernel says, or, if they are appended, that the catalog says.
func (b *bridge) write(r *request, h *fileHandle, in *fuse.WriteIn, data []byte) error {
	a, area, n := h.area, h.area.current(), int64(len(data))
	off := int64(in.Offset)
	var err error
	if in.Flags&syscall.O_APPEND != 0 {
		off, err = b.grow(r, a, n)
	} else {
		err = b.ensureSize(r, a, off+n)
	}
	switch stray := int64(in.Offset); {
	case err != nil:
		return err
	case h.goesPast(in.Flags):
		return area.WriteBy(r, a.programs.owner(in.Pid), data, off)
	case off == stray:
		return area.WriteAt(r, data, off)
	default:
		// The kernel may hold a page until the reply, for which the notice waits, and what WriteBy waits for would.
		ended, end := context.WithCancel(r)
		end()
		b.background.run(func() { b.notify.log(a, "invalidate", b.notify.server.InodeNotify(uint64(a.id), stray, n)) })
		return area.WriteBy(ended, a.programs.owner(in.Pid), data, off)
	}
}

// grow makes the area longer by n bytes and returns where they are.
func (b *bridge) grow(ctx context.Context, a *openArea, n int64) (off int64, err error) {
	b.grown(ctx, a) // what programs have written past the end of a direct file is before them
	i, err := b.resize(ctx, dsm.Ino(a.id), dsm.SetAttr{GrowBy: &n})
	if err != nil {
		return 0, err
	}
	a.note(i)
	return i.Size - n, nil
}
