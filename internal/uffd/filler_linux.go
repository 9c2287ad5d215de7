package uffd

import (
	"errors"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Filler puts pages into the holes of a memfd, each at once and whole: a process that
// has the page mapped sees nothing of it or all. It maps the memfd for itself alone, with
// no access, so that nobody touches that mapping by mistake, and uses UFFDIO_COPY
// (include/uapi/linux/userfaultfd.h). write(2) does not do: it shows a page while it copies,
// and one that was there is written over.
//
// All methods may be called by any goroutine at any time; Fill by several at once.
type Filler struct {
	memfd int
	uffd  int

	mu struct {
		lockrank.RWMutex // held for reading while the mapping is used
		start, length    uintptr
		closed           bool
	}
}

const opFill = "fill pages"

// NewFiller returns a Filler of the first length bytes of a memfd, a multiple of the page
// size, also past its end. The descriptor must be open for writing and stays the caller's.
// It needs no privilege. Errors: Invalid, Unsupported.
func NewFiller(memfd int, length int64) (_ *Filler, err error) {
	f := &Filler{memfd: -1, uffd: -1}
	f.mu.Init("uffd.Filler")
	defer func() {
		if err != nil {
			_ = f.Close() // nothing was filled
		}
	}()
	if f.memfd, err = unix.FcntlInt(uintptr(memfd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, errs.E(errs.Invalid, opFill, "the memfd: %w", err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|userModeOnly, 0, 0)
	if errno != 0 {
		return nil, errs.E(errs.Unsupported, opFill, "userfaultfd(2): %w", errno)
	}
	f.uffd = int(fd)
	if _, err := handshake(f.uffd, featureMissingShmem); err != nil {
		return nil, errs.E(errs.Unsupported, opFill, "UFFDIO_API: %w", err)
	}
	return f, f.Resize(length)
}

// Fill puts whole pages at an offset of the memfd that is a multiple of the page size; n is how many
// bytes were put. The error is of kind Exist if the page after those is there already,
// NoSpace if there is no memory, Invalid for offsets past the length of the Filler or the end
// of the memfd, Closed. src may be in any memory and is not kept.
func (f *Filler) Fill(off int64, src []byte) (n int, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case f.mu.closed:
		return 0, errs.E(errs.Closed, opFill, "")
	case (uint64(off)|uint64(len(src)))%pageSize != 0:
		return 0, errs.E(errs.Invalid, opFill, "offset %d and length %d must be multiples of %d", off, len(src), pageSize)
	case off < 0 || off > int64(f.mu.length)-int64(len(src)):
		return 0, errs.E(errs.Invalid, opFill, "%d bytes at offset %d do not lie in the first %d", len(src), off, f.mu.length)
	}
	for n < len(src) {
		a := copyArg{
			dst: uint64(f.mu.start) + uint64(off) + uint64(n), src: unsafe.Pointer(&src[n]),
			length: uint64(len(src) - n), mode: copyDontWake, // nobody waits in this mapping
		}
		_, err := ioctl(f.uffd, ioctlCopy, unsafe.Pointer(&a))
		n += int(max(a.copied, 0))
		if err != nil && a.copied <= 0 {
			return n, f.failed(off+int64(n), err)
		}
	}
	return n, nil
}

func (f *Filler) failed(off int64, err error) error {
	kind := errs.Other
	switch {
	case errors.Is(err, unix.EEXIST):
		kind = errs.Exist
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC):
		kind = errs.NoSpace
	case errors.Is(err, unix.EFAULT):
		return errs.E(errs.Invalid, opFill, "offset %d is past the end of the memfd: %w", off, err)
	}
	return errs.E(kind, opFill, "offset %d: UFFDIO_COPY: %w", off, err)
}

// Resize changes how much of the memfd can be filled to length bytes, a multiple of the page
// size. Pages that are there stay. It waits for calls of Fill. Errors: Invalid, Closed; the length
// is the old one then.
func (f *Filler) Resize(length int64) error {
	if length < 0 || length > math.MaxInt64-int64(pageSize) || uint64(length)%pageSize != 0 {
		return errs.E(errs.Invalid, opFill, "length %d must be a multiple of %d", length, pageSize)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return errs.E(errs.Closed, opFill, "")
	}
	start, err := f.mapping(uintptr(length))
	if err != nil {
		return err
	}
	f.unmapLocked()
	f.mu.start, f.mu.length = start, uintptr(length)
	return nil
}

// mapping maps the memfd and registers that.
func (f *Filler) mapping(length uintptr) (uintptr, error) {
	if length == 0 {
		return 0, nil
	}
	p, err := unix.MmapPtr(f.memfd, 0, nil, length, unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return 0, errs.E(errs.Invalid, opFill, "mmap of %d bytes: %w", length, err)
	}
	if err := register(f.uffd, uint64(uintptr(p)), uint64(length), registerMissing); err != nil {
		_ = unix.MunmapPtr(p, length) // it was mapped just now
		if errors.Is(err, unix.EPERM) {
			err = errors.New("it is not open for writing")
		}
		return 0, errs.E(errs.Invalid, opFill, "the memfd: %w", err)
	}
	return uintptr(p), nil
}

func (f *Filler) unmapLocked() {
	if f.mu.length > 0 {
		// It was mapped, so it can be unmapped.
		_, _, _ = unix.Syscall(unix.SYS_MUNMAP, f.mu.start, f.mu.length, 0)
	}
}

// Close gives the mapping back, once. It waits for calls of Fill; pages that are there stay. The error is nil.
func (f *Filler) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return nil
	}
	f.mu.closed = true
	f.unmapLocked()
	for _, fd := range []int{f.uffd, f.memfd} {
		if fd >= 0 {
			closeFD(fd)
		}
	}
	return nil
}
