package pages

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// evictor has what evicting needs: a pipe into which pages are spliced, and a window of addresses in
// which a part of the file is mapped for a moment. One call at a time uses it.
type evictor struct {
	r, w    int // the pipe
	room    int // how many pages fit
	buf     []byte
	pagemap int
	mapping unsafe.Pointer // 2*blockBytes of addresses; the window is somewhere in it
}

// blockBytes is the size of a huge page.
const blockBytes = 2 << 20

// evictBuffer is how much is read from the pipe at once, so that it is compared while it is in the
// first-level cache.
const evictBuffer = 4 * dsm.PageSize

// idleEvictors are kept for later calls.
var idleEvictors = make(chan *evictor, 4)

func takeEvictor() (*evictor, error) {
	select {
	case v := <-idleEvictors:
		return v, nil
	default:
		return newEvictor()
	}
}

// put keeps an evictor, whose pipe must be empty, for later.
func (v *evictor) put() error {
	select {
	case idleEvictors <- v:
		return nil
	default:
		return v.close()
	}
}

func newEvictor() (*evictor, error) {
	v := &evictor{r: -1, w: -1, pagemap: -1, buf: make([]byte, evictBuffer)}
	if err := v.open(); err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

func (v *evictor) open() (err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	v.r, v.w = fds[0], fds[1]
	// Room for an extent. Without CAP_SYS_RESOURCE there may be less (fs.pipe-max-size,
	// fs.pipe-user-pages-soft); then a run is taken in several pieces.
	size, err := unix.FcntlInt(uintptr(v.w), unix.F_SETPIPE_SZ, dsm.ExtentSize)
	if err != nil {
		size, err = unix.FcntlInt(uintptr(v.w), unix.F_GETPIPE_SZ, 0)
	}
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	v.room = size / dsm.PageSize
	if v.pagemap, err = unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("open pagemap", err)
	}
	v.mapping, err = unix.MmapPtr(-1, 0, nil, 2*blockBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	return os.NewSyscallError("mmap", err)
}

func (v *evictor) close() error {
	var err error
	for _, fd := range []int{v.r, v.w, v.pagemap} {
		if fd >= 0 {
			err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
		}
	}
	if v.mapping != nil {
		err = errors.Join(err, os.NewSyscallError("munmap", unix.MunmapPtr(v.mapping, 2*blockBytes)))
	}
	return err
}

// take splices pages of extent e into the pipe, which must be empty: the first ones of set, as many as
// fit. It returns which; unless there is an error, at least one.
func (v *evictor) take(fd int, e dsm.ExtentIndex, set dsm.PageSet) (taken dsm.PageSet, err error) {
	room := v.room
	for from, to := range set.Runs() {
		off := int64(pageOfExtent(e, from)) * dsm.PageSize
		want := min(to-from, room)
		got, err := unix.Splice(fd, &off, v.w, nil, want*dsm.PageSize, unix.SPLICE_F_NONBLOCK)
		for err == unix.EINTR {
			got, err = unix.Splice(fd, &off, v.w, nil, want*dsm.PageSize, unix.SPLICE_F_NONBLOCK)
		}
		switch {
		case err == nil && (got <= 0 || got%dsm.PageSize != 0):
			return taken, os.NewSyscallError("splice", io.ErrUnexpectedEOF) // the file has shrunk
		case err != nil && taken.Empty():
			return taken, os.NewSyscallError("splice", err)
		case err != nil:
			return taken, nil // the rest is for the next call
		}
		n := int(got / dsm.PageSize)
		taken = taken.Or(dsm.Range(from, from+n))
		if room -= n; room == 0 || n < to-from {
			break
		}
	}
	return taken, nil
}

// Read reads from the pipe.
func (v *evictor) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(v.r, b)
		if err == unix.EINTR {
			continue
		}
		return max(n, 0), os.NewSyscallError("read", err)
	}
}

// small returns an error if one of the pages of extent e in set, which must be here, is part of a
// large page: of 2 MiB, or of what is left of one after a part was split off.
//
// It maps the block again and makes the kernel map some of the pages, as if to store to them; for a
// load the kernel might map neighbours as well. A large page is mapped as a whole: pages of 2 MiB
// by all kernels, others by the kernels that leave such pages (6.15 splits into other sizes than
// small pages; from 6.12 on the whole page is mapped). Large pages are aligned to their size, so
// each contains both pages of some pair. Of each pair one page is touched, and then it is checked
// whether the other one was mapped too.
func (v *evictor) small(fd int, e dsm.ExtentIndex, set dsm.PageSet) error {
	const fixed = unix.MAP_FIXED
	window := unsafe.Add(v.mapping, -uintptr(v.mapping)%blockBytes)
	off := int64(e) * dsm.ExtentSize
	extent := unsafe.Add(window, off%blockBytes)
	if _, err := unix.MmapPtr(fd, off&^(blockBytes-1), window, blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|fixed); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	var err error
	first, next := -1, 0
	for i := range set.All() {
		if i < next || err != nil {
			continue
		}
		if first < 0 {
			first = i &^ 1
		}
		next = i&^1 + 2
		err = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(extent, i*dsm.PageSize)), dsm.PageSize), unix.MADV_POPULATE_WRITE)
	}
	err = os.NewSyscallError("madvise", err)
	var entries [dsm.ExtentPages * 8]byte
	pairs := entries[first*8 : next*8]
	if err == nil {
		_, err = unix.Pread(v.pagemap, pairs, int64(uintptr(extent)/dsm.PageSize+uintptr(first))*8)
		err = os.NewSyscallError("pread", err)
	}
	_, unmapErr := unix.MmapPtr(-1, 0, window, blockBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|fixed)
	const present = 1 << 63
	for ; len(pairs) > 0; pairs = pairs[16:] {
		if binary.LittleEndian.Uint64(pairs)&binary.LittleEndian.Uint64(pairs[8:])&present != 0 {
			err = errors.Join(err, errs.E(errs.Busy, "", "a program, or the kernel for it, has made a huge page of them (MADV_COLLAPSE, shmem_enabled)"))
			break
		}
	}
	return errors.Join(err, os.NewSyscallError("mmap", unmapErr))
}
