package pages

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// minCapacity is the least length of a mapping, so that small areas may grow
// without being mapped anew.
const minCapacity = 1 << 20

// copyFile is one copy of an area: a memfd and this process's mapping of it. The
// file is as long as the area, to the byte: programs that have it open see its end as
// that of their file. The mapping has the length capacity, which may be more, and is
// never touched past the last page of the file (SIGBUS).
type copyFile struct {
	fd   int
	len  int64 // whole pages
	mem  []byte
	name string
}

// newCopy makes an empty copy. The name is for people, in /proc/PID/maps.
func newCopy(id dsm.AreaID, suffix string) (*copyFile, error) {
	name := fmt.Sprintf("dsmfs:%d:%s", id, suffix)
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	// A memfd is of mode 0777: whoever gets a read-only descriptor could open it
	// again by /proc/self/fd for writing.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, errors.Join(os.NewSyscallError("fchmod", err), unix.Close(fd))
	}
	// Nobody can add a seal: that would keep this process from its own memory. (Without MFD_ALLOW_SEALING some could, where
	// the sysctl vm.memfd_noexec is set.) F_SEAL_SHRINK, against ftruncate by programs, would keep this process from
	// cutting, too, and memory past a new end is SIGBUS: see Restore.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	return &copyFile{fd: fd, name: name}, nil
}

// capacityFor returns the mapping length for a file of n bytes: a power of two,
// so that an area that grows bit by bit is mapped a few times only.
func capacityFor(n int64) int64 {
	c := int64(minCapacity)
	for c < n {
		c *= 2
	}
	return c
}

// reserve makes the mapping at least n bytes long. Until it has succeeded the old
// mapping stays. The new one is at another address.
func (c *copyFile) reserve(n int64) error {
	if n <= int64(len(c.mem)) {
		return nil
	}
	mem, err := unix.Mmap(c.fd, 0, int(capacityFor(n)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	old := c.mem
	c.mem = mem
	if old == nil {
		return nil
	}
	return os.NewSyscallError("munmap", unix.Munmap(old))
}

// resize makes the file n bytes long, for which the mapping is long enough.
// Pages that are added read zero and take no memory.
func (c *copyFile) resize(n int64) error {
	if err := unix.Ftruncate(c.fd, n); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	c.len = wholePages(n)
	return nil
}

// extend is resize to at least n bytes of a file that programs may be making longer at the
// same moment, by write(2): ftruncate would cut off what they have just written. It takes
// the memory of one page.
func (c *copyFile) extend(n int64) error {
	had, err := c.end()
	if err == nil && had < n {
		err = os.NewSyscallError("fallocate", unix.Fallocate(c.fd, 0, n-1, 1))
	}
	if err != nil {
		return err
	}
	c.len = wholePages(n)
	return nil
}

// end returns the length of the file in bytes.
func (c *copyFile) end() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(c.fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Size, nil
}

// zero makes the bytes [from, to) read zero. Whole pages are given back, and
// parts of pages that are holes stay holes.
func (c *copyFile) zero(from, to int64) error {
	if from >= to {
		return nil
	}
	err := unix.Fallocate(c.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	return os.NewSyscallError("fallocate", err)
}

// page returns page p. It must be before the end of the file.
func (c *copyFile) page(p dsm.PageIndex) []byte { return c.pages(p, 1) }

// pages returns n pages from p on. They must be before the end of the file.
func (c *copyFile) pages(p dsm.PageIndex, n int) []byte {
	off, end := int64(p)*dsm.PageSize, (int64(p)+int64(n))*dsm.PageSize
	if end > c.len {
		panic(fmt.Sprintf("%d pages from %d on of %s, which has %d", n, p, c.name, c.len/dsm.PageSize))
	}
	return c.mem[off:end:end]
}

// resident returns the bytes of memory that the file takes.
func (c *copyFile) resident() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(c.fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Blocks * 512, nil
}

// close gives everything back.
func (c *copyFile) close() error {
	var err error
	if c.mem != nil {
		err = os.NewSyscallError("munmap", unix.Munmap(c.mem))
		c.mem = nil
	}
	c.len = 0
	if e := unix.Close(c.fd); err == nil {
		err = os.NewSyscallError("close", e)
	}
	return err
}
