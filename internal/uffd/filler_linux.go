package uffd

import (
	"errors"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Filler puts pages into the holes of a memfd, each at once and whole: a process that has the page
// mapped sees either no page or all of it. It has a mapping of the memfd of its own, without access
// rights so that nobody touches it by mistake, and uses UFFDIO_COPY
// (include/uapi/linux/userfaultfd.h). write(2) would not work: it shows a page while it copies, and
// overwrites a page that is there.
//
// All methods may be called by any goroutine at any time, Fill also concurrently.
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

// NewFiller returns a Filler for the first length bytes of a memfd, a multiple of the page size,
// which may reach past its end. The descriptor must be open for writing and stays the caller's. It
// needs no privilege. Errors: Invalid, Unsupported.
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

// Fill puts whole pages at an offset of the memfd that is a multiple of the page size; n is how
// many bytes it put. The error is of kind Exist if the next page is there already, NoSpace if there
// is no memory, Invalid for offsets past the length of the Filler or the end of the memfd, or
// Closed. src may be in any memory and is not kept.
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
			length: uint64(len(src) - n), mode: copyDontWake, // no thread waits in this mapping
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

// Resize changes how many bytes of the memfd can be filled, to a multiple of the page size. Pages
// that are there stay. It waits for calls of Fill. On errors, Invalid or Closed, the length stays
// the old one.
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

// mapping maps the memfd and registers the mapping.
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

// Close unmaps the memfd, once. It waits for calls of Fill. Pages that are there stay. The error is
// nil.
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
