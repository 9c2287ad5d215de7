package pages

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// evictor is what it takes to evict: a pipe that pages are spliced into, and a window that
// a part of the file is mapped into. It is used by one call at a time.
type evictor struct {
	r, w    int // the pipe
	room    int // pages that it takes
	buf     []byte
	pagemap int
	mapping unsafe.Pointer // 2*blockBytes of addresses, with the window somewhere in it
}

// blockBytes is the size of a huge page.
const blockBytes = 2 << 20

// evictBuffer is how much is read from the pipe at once: it is compared while it is in
// the first-level cache.
const evictBuffer = 4 * dsm.PageSize

// idleEvictors are kept for the next call.
var idleEvictors = make(chan *evictor, 4)

func takeEvictor() (*evictor, error) {
	select {
	case v := <-idleEvictors:
		return v, nil
	default:
		return newEvictor()
	}
}

// put keeps an evictor, whose pipe is empty, for later.
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
	// fs.pipe-user-pages-soft): then a run goes in several pieces.
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

// splice puts pages of the file from p on into the pipe, which is empty, and returns how
// many: at least one, at most n.
func (v *evictor) splice(fd int, p dsm.PageIndex, n int) (int, error) {
	off := int64(p) * dsm.PageSize
	for {
		got, err := unix.Splice(fd, &off, v.w, nil, min(n, v.room)*dsm.PageSize, unix.SPLICE_F_NONBLOCK)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("splice", err)
		case got < dsm.PageSize || got%dsm.PageSize != 0:
			return 0, os.NewSyscallError("splice", io.ErrUnexpectedEOF) // the file was cut
		default:
			return int(got / dsm.PageSize), nil
		}
	}
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

// large reports whether one of the n pages from p on, which are here, is part of a large page: of
// 2 MiB, or what is left of one after a part was split off.
//
// It maps the block anew and has the kernel map some of the pages, as if to store to them; for a load it
// might map neighbours. A large page is mapped as a whole: one of 2 MiB by all kernels, others by those
// that leave such (6.15 does not split into small pages only; from 6.12 on all of it is mapped). Large pages are
// aligned to their size, so it has two pages of the same pair: of each pair
// one page is asked for, and looked whether the other came with it.
func (v *evictor) large(fd int, p dsm.PageIndex, n int) (bool, error) {
	const fixed, blockPages = unix.MAP_FIXED, blockBytes / dsm.PageSize
	window := unsafe.Add(v.mapping, -uintptr(v.mapping)%blockBytes)
	off := int64(p) * dsm.PageSize &^ (blockBytes - 1)
	if _, err := unix.MmapPtr(fd, off, window, blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|fixed); err != nil {
		return false, os.NewSyscallError("mmap", err)
	}
	var err error
	from := int(p % blockPages)
	for i := from; i < from+n && err == nil; i = (i + 2) &^ 1 {
		err = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(window, i*dsm.PageSize)), dsm.PageSize), unix.MADV_POPULATE_WRITE)
	}
	err = os.NewSyscallError("madvise", err)
	var entries [dsm.ExtentPages * 8]byte
	first := from &^ 1
	part := entries[:(from+n+1-first)&^1*8]
	if err == nil {
		_, err = unix.Pread(v.pagemap, part, int64(uintptr(window)/dsm.PageSize+uintptr(first))*8)
		err = os.NewSyscallError("pread", err)
	}
	_, unmapErr := unix.MmapPtr(-1, 0, window, blockBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|fixed)
	const present = 1 << 63
	for ; len(part) > 0; part = part[16:] {
		if binary.LittleEndian.Uint64(part)&binary.LittleEndian.Uint64(part[8:])&present != 0 {
			return true, nil
		}
	}
	return false, errors.Join(err, os.NewSyscallError("mmap", unmapErr))
}
