package fs

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Fallocate grows a file, which reserves its memory, and punches holes by storing zeroes. With
// KEEP_SIZE there is nothing to reserve, because memory is counted by size.
func (b *bridge) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	of := b.handles.get(in.Fh)
	h, ok := of.(*fileHandle)
	if !ok {
		return b.unopened(of, fuse.EBADF)
	}
	off, end := int64(in.Offset), int64(in.Offset+in.Length)
	if off < 0 || end < off || end > dsm.MaxAreaSize {
		return fuse.Status(unix.EFBIG)
	}
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	h.area.current().KernelLocks()
	switch in.Mode {
	case 0:
		_, err := b.ensureSize(r, h.area, end)
		if err == nil {
			err = b.longer(r, h.area, end)
		}
		return status(err)
	case unix.FALLOC_FL_KEEP_SIZE:
		return fuse.OK
	case unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE:
		b.grown(r, h.area) // or what programs have written past the end of a direct file would stay
		i, err := b.cfg.Names.Getattr(r, inoOf(in.NodeId))
		if end = min(end, i.Size); err == nil && off < end {
			// Zeroes where memory has zeroes are no store: what another node has published there would come later, and stay. Where updates
			// enter memory in sync calls only nothing is acquired, for a punch is none.
			if err = h.area.current().Acquire(r, false); err == nil {
				p := &punch{tid: r.tid}
				p.over, err = h.area.current().Punch(r, off, end-off)
				b.punched.Store(p)
			}
			h.area.stored.Add(1)
			b.intervals.stored(h.area, atInterval)
		}
		return status(err)
	}
	return fuse.Status(unix.EOPNOTSUPP)
}
