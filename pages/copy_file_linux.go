package pages

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// toFile moves an anonymous copy into a memfd with a mapping of at least n bytes. After an error it
// is unchanged.
func (c *areaCopy) toFile(n int64) error {
	if c.kept != nil {
		return errs.E(errs.Unsupported, "open memory", "programs cannot attach to a mount with --hold")
	}
	fd, err := newFile(c.String())
	if err != nil {
		return err
	}
	mem, err := mapFile(fd, n)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	if err := unix.Ftruncate(fd, c.size); err != nil {
		return errors.Join(os.NewSyscallError("ftruncate", err), unix.Munmap(mem), unix.Close(fd))
	}
	c.copyTo(mem)
	err = c.unmap()
	c.fd, c.mem, c.taken = fd, mem, nil
	return err
}

// newFile makes a memfd. The name is for people, in /proc/PID/maps.
func newFile(name string) (fd int, err error) {
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	// A memfd has mode 0777: a program that gets a read-only descriptor could open it again for
	// writing through /proc/self/fd.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return -1, errors.Join(os.NewSyscallError("fchmod", err), unix.Close(fd))
	}
	// Nobody may add a seal, which could keep this process from its own memory. (Even without
	// MFD_ALLOW_SEALING some seals are possible, if the sysctl vm.memfd_noexec is set.)
	// F_SEAL_SHRINK is not used against ftruncate by programs: it would also keep this process from
	// cutting, and memory past a new end must be SIGBUS: see Restore.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL); err != nil {
		return -1, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	return fd, nil
}

// open opens the copy for a program, which makes it a memfd.
func (c *areaCopy) open(write bool) (*os.File, error) {
	if c.fd < 0 {
		if err := c.toFile(c.len); err != nil {
			return nil, err
		}
	}
	flags := unix.O_RDONLY
	if write {
		flags = unix.O_RDWR
	}
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", c.fd), flags, 0)
}

// fileData is data for a memfd. The search for a hole looks at every page, 80 ns each, so it is
// left out if the file takes as much memory as it is long.
func (c *areaCopy) fileData(off, end int64, f func(off, n int64)) error {
	if off < end && c.whole() {
		f(off, end-off)
		return nil
	}
	for off < end {
		from, err := unix.Seek(c.fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		if from >= end {
			return nil
		}
		to, err := unix.Seek(c.fd, from, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		f(from, min(to, end)-from)
		off = to
	}
	return nil
}

// whole reports whether the file has no holes. It may be wrong for a file with a huge page that
// reaches past its end, if its holes are no larger than that: then some holes count as data, and
// reading them takes memory.
func (c *areaCopy) whole() bool {
	st, err := c.stat()
	return err == nil && st.Blocks*512 >= c.len && st.Size <= c.len // a program may write past it
}

// fileWrite stores n at off with write(2).
func (c *areaCopy) fileWrite(n []byte, off int64) {
	for len(n) > 0 {
		done, err := unix.Pwrite(c.fd, n, off)
		if err != nil {
			done = copy(c.mem[off:c.len], n) // like a store: if it fails the daemon ends, as anywhere
		}
		n, off = n[done:], off+int64(done)
	}
}
