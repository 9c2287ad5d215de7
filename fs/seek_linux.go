package fs

import (
	"syscall"

	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Lseek is SEEK_DATA and SEEK_HOLE; the rest the kernel does by itself. Stores to mappings are harvested before. The
// program has a lock of the file in the kernel, which neither the harvest nor a WRITE needs.
func (b *bridge) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	of := b.handles.get(in.Fh)
	h, ok := of.(*fileHandle)
	if !ok || in.Whence != unix.SEEK_DATA && in.Whence != unix.SEEK_HOLE {
		return b.unopened(of, fuse.EINVAL)
	}
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	if int64(in.Offset) < 0 {
		return fuse.Status(syscall.ENXIO)
	}
	b.grown(r, h.area)
	if h.area.live.Load() > 0 {
		if err := b.harvest.Sync(r, []harvest.Target{{Area: h.area}})[0]; err != nil {
			return status(err)
		}
	}
	at, ok, err := h.area.current().Seek(r, int64(in.Offset), in.Whence == unix.SEEK_HOLE)
	if err != nil {
		b.log.Warn("seek", "area", h.area.id, "err", err)
		return status(err)
	}
	if !ok {
		return fuse.Status(syscall.ENXIO)
	}
	out.Offset = uint64(at)
	return fuse.OK
}
