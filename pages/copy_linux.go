package pages

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// minCapacity is the least length of a mapping, so that small areas can grow without being mapped
// again.
const minCapacity = 1 << 20

// areaCopy is one copy of an area. It is either anonymous memory, which takes no descriptor, or a
// memfd, which programs can map:
//
//	base copy                             anonymous until it is opened for a program; then a memfd. In an area on demand, a memfd beyond smallCopy
//	working copy, draft, up to smallCopy  anonymous until it is opened for a program; then a memfd
//	working copy, draft, beyond           a memfd, because moving it takes time; anonymous if no descriptor is left
//
// A memfd is as long as the area, to the byte: programs that have it open see its end as that of
// their file. One that is sealed is as long as any area. The mapping has the length capacity, which may be
// more. The mapping of a memfd is never touched past the last page of the area (SIGBUS, if it is not sealed).
//
// Moving from one to the other is a copy under the area's lock. No program can have anonymous
// memory, so nobody else stores into it meanwhile, and nothing is lost. (The base of an area on
// demand is a memfd because of the speed of write(2) to a hole: see installBase.)
type areaCopy struct {
	id     dsm.AreaID
	suffix string
	fd     int   // -1: anonymous
	size   int64 // in bytes
	len    int64 // in bytes of whole pages
	mem    []byte
	piece  piece // the piece that mem is, if it is one
	filed  bool  // will be a memfd beyond smallCopy
	absent bool  // there is no memory, and nobody may look at the copy
	sealed bool  // programs may store into the memfd: see seal
	holes  bool  // of an area on demand: a page that is not here is a hole
	// dropping is closed when what droppingPast returned last is over; nil: it is. It frees what is past droppingFrom.
	dropping     chan struct{}
	droppingFrom int64
	left         bool // a process of an earlier daemon may be freeing what is past droppingFrom
	// taken, for anonymous memory, has the pages that were returned for storing: all others are zero,
	// and take no memory. Pages of different extents may be returned concurrently.
	taken takenPages
	// kept, if not nil, is the Keep's: anonymous memory is memory of the Keep then, and at says where the copy is. It is a memfd only if that is a HeldFile.
	kept   *keeping
	at     **atomic.Uint64
	slot   int64   // of the Keep, if it is in one
	number uint64  // of the HeldFile, if it is one
	moving *moving // the copy is being copied to a HeldFile; nil: it is not
}

// newCopy returns an empty copy, which takes no memory. filed says that it will be a memfd beyond
// smallCopy.
func newCopy(id dsm.AreaID, suffix string, filed bool) *areaCopy {
	return &areaCopy{id: id, suffix: suffix, fd: -1, filed: filed}
}

// String names the copy for people, also in /proc/PID/maps.
func (c *areaCopy) String() string { return fmt.Sprintf("dsmfs:%d:%s", c.id, c.suffix) }

// capacityFor returns the mapping length for a copy of n bytes: a power of two, so that an area
// that grows bit by bit is mapped only a few times.
func capacityFor(n int64) int64 {
	c := int64(minCapacity)
	for c < n {
		c *= 2
	}
	return c
}

// reserve makes the mapping at least n bytes long. The old mapping stays until this has succeeded.
// The new one is at another address.
func (c *areaCopy) reserve(n int64) error {
	if n <= int64(len(c.mem)) || c.absent {
		return nil
	}
	if c.fd < 0 && c.filed && n > smallCopy {
		err := c.toFile(n)
		if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) {
			return err
		}
	}
	if c.fd < 0 {
		return c.reserveAnonymous(n)
	}
	mem, err := mapFile(c.fd, n)
	if err != nil {
		return err
	}
	old := c.mem
	c.mem = mem
	if old == nil {
		return nil
	}
	return os.NewSyscallError("munmap", unix.Munmap(old))
}

func mapFile(fd int, n int64) ([]byte, error) {
	mem, err := unix.Mmap(fd, 0, int(capacityFor(n)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

// resize makes the copy n bytes long; the mapping must be long enough. Pages that are added read
// zero and take no memory.
func (c *areaCopy) resize(n int64) error {
	if c.fd < 0 {
		c.resizeAnonymous(n)
		return nil
	}
	if c.sealed {
		return c.resizeSealed(n)
	}
	if err := unix.Ftruncate(c.fd, n); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	c.size, c.len = n, wholePages(n)
	return nil
}

// extend makes the copy at least n bytes long. It is for a file that programs may be extending by
// write(2) at the same moment: the ftruncate of resize would truncate what they have just written. The
// last page takes memory afterwards.
func (c *areaCopy) extend(n int64) error {
	had, err := c.end()
	if err == nil && had < n {
		if c.fd < 0 {
			return c.resize(n)
		}
		err = os.NewSyscallError("fallocate", unix.Fallocate(c.fd, 0, n-1, 1))
	}
	if err != nil {
		return err
	}
	c.size, c.len = n, wholePages(n)
	return nil
}

// end returns where the bytes end. That is past size if programs have made a file longer by write(2) that
// is not sealed. The length of a sealed one says nothing.
func (c *areaCopy) end() (int64, error) {
	if c.fd < 0 || c.sealed {
		return c.size, nil
	}
	st, err := c.stat()
	return st.Size, err
}

// stat asks about the memfd. Comparing does, and it does not block, so Go's scheduler is not told: that would wake its monitor.
func (c *areaCopy) stat() (st unix.Stat_t, err error) {
	if _, _, errno := unix.RawSyscall(unix.SYS_FSTAT, uintptr(c.fd), uintptr(unsafe.Pointer(&st)), 0); errno != 0 {
		return st, os.NewSyscallError("fstat", errno)
	}
	return st, nil
}

// zero makes the bytes [from, to) read zero. Like free, if programs cannot have it wait.
func (c *areaCopy) zero(from, to int64) error {
	if c.sealed {
		return c.wipe(from, to)
	}
	return c.free(from, to)
}

// free makes the bytes [from, to) read zero. The memory of whole pages is freed, and partly covered
// pages without memory stay without.
func (c *areaCopy) free(from, to int64) error {
	if from >= to {
		return nil
	}
	if c.fd < 0 {
		return c.zeroAnonymous(from, min(to, c.len))
	}
	err := unix.Fallocate(c.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	return os.NewSyscallError("fallocate", err)
}

// clearPast zeroes the page of the byte from, from that byte on: what programs have stored past the end.
func (c *areaCopy) clearPast(from int64) {
	if to := wholePages(from); from < to && c.takes(dsm.PageIndex(from/dsm.PageSize)) {
		clear(c.mem[from:to])
	}
}

// page returns page p for storing. It must be before the end.
func (c *areaCopy) page(p dsm.PageIndex) []byte { return c.pages(p, 1) }

// pages returns n pages of one extent, from p on, for storing. They must be before the end.
func (c *areaCopy) pages(p dsm.PageIndex, n int) []byte {
	mem := c.look(p, n)
	if c.fd < 0 {
		c.take(p, n)
	}
	return mem
}

// look returns n pages from p on for reading only. They must be before the end.
func (c *areaCopy) look(p dsm.PageIndex, n int) []byte {
	off, end := int64(p)*dsm.PageSize, (int64(p)+int64(n))*dsm.PageSize
	if end > c.len {
		panic(fmt.Sprintf("%d pages from %d on of %v, which has %d", n, p, c, c.len/dsm.PageSize))
	}
	return c.mem[off:end:end]
}

// resident returns the bytes of memory that the copy takes.
func (c *areaCopy) resident() (int64, error) {
	if c.fd < 0 {
		return c.residentAnonymous(), nil
	}
	st, err := c.stat()
	return st.Blocks * 512, err
}

// close frees everything. Afterwards the copy is empty and anonymous.
func (c *areaCopy) close() error { return c.closeLater()() }

// closeLater is close, but returns what frees the memory, for which the kernel looks at each page. Only what is in a Keep is freed at once.
func (c *areaCopy) closeLater() (free func() error) {
	c.isAt(0)
	mem, fd, file := c.mem, c.fd, c.file()
	c.moving.end()
	c.number, c.moving = 0, nil
	var err error
	if c.piece.block != nil || c.slot != 0 {
		mem, err = nil, c.unmap()
	}
	c.mem, c.fd, c.sealed, c.dropping, c.droppingFrom, c.left = nil, -1, false, nil, 0, false
	c.size, c.len, c.taken = 0, 0, takenPages{}
	return func() error {
		if mem != nil {
			err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(mem)))
		}
		switch {
		case file != nil:
			err = errors.Join(err, file.Close())
		case fd >= 0:
			err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
		}
		return err
	}
}

// unmap gives the mapping back, and what is behind it.
func (c *areaCopy) unmap() error {
	mem, p, slot := c.mem, c.piece, c.slot
	c.mem, c.piece, c.slot = nil, piece{}, 0
	switch {
	case p.block != nil:
		return c.small().give(p)
	case slot != 0:
		return errors.Join(os.NewSyscallError("munmap", unix.Munmap(mem)), c.kept.store.dropSlot(slot))
	case mem != nil:
		return os.NewSyscallError("munmap", unix.Munmap(mem))
	}
	return nil
}

// leaveLater is closeLater, but the copy keeps its size. Until come it is absent.
func (c *areaCopy) leaveLater() (free func() error) {
	size := c.size
	free = c.closeLater()
	c.absent = true
	c.resizeAnonymous(size)
	return free
}

// come ends leave: all bytes are zero.
func (c *areaCopy) come() error {
	c.absent = false
	if err := c.reserve(c.len); err != nil {
		c.absent = true
		return err
	}
	return nil
}
