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
	if c.at != nil {
		return errs.E(errs.Unsupported, "open memory", "programs cannot attach this file on a mount with --hold")
	}
	fd, err := newFile(c.String())
	if err != nil {
		return err
	}
	moved, err := c.moveTo(fd, n)
	if !moved {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// moveTo moves an anonymous copy into a memfd, which it has from then on. If it did not, it is unchanged.
func (c *areaCopy) moveTo(fd int, n int64) (moved bool, err error) {
	mem, err := mapFile(fd, n)
	if err != nil {
		return false, err
	}
	if err := unix.Ftruncate(fd, c.size); err != nil {
		return false, errors.Join(os.NewSyscallError("ftruncate", err), unix.Munmap(mem))
	}
	c.copyTo(mem, c.moving)
	c.isAt(placeOfFile(c.number))
	err = c.unmap()
	c.fd, c.mem, c.taken = fd, mem, takenPages{}
	return true, err
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
	return fd, nil
}

// seal keeps the programs that get a descriptor for writing from making the memfd shorter, after which this
// process would get SIGBUS, and from adding seals, which could keep this process from its own memory. It
// is for ever, and for this process too: the memfd never gets shorter. So
//
//   - its length says nothing, also because programs may make it longer;
//   - bytes past the end of the copy are zero when resize makes it longer, and have no memory when resize has
//     made it shorter. Programs may store there in between: dropPast undoes that;
//   - a file of a mount cannot be a sealed memfd: it would not end where the area does.
func (c *areaCopy) seal() error {
	if c.sealed {
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(c.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	c.sealed = true
	return nil
}

// pastAll is past whatever a memfd may have.
const pastAll = 1 << 62

// dropPast frees what a sealed memfd has from the byte off on.
func (c *areaCopy) dropPast(off int64) error {
	c.settle()
	return c.zero(off, pastAll)
}

// droppingPast returns dropPast for all past the last page, to be called once and without locks: the kernel lets it wait while a program writes to the memfd
// by write(2), and the bytes that are written may come from a page that this process has yet to bring. nil: the memfd is not sealed, or there is
// one under way. Before the copy gets another length it must be over (settle): it would free what is stored there then.
func (c *areaCopy) droppingPast() (drop func() error) {
	if !c.sealed {
		return nil
	}
	select {
	case <-c.dropping:
	default:
		if c.dropping != nil {
			return nil
		}
	}
	fd, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0) // the copy may end meanwhile
	if err != nil {
		return func() error { return os.NewSyscallError("fcntl", err) }
	}
	done := make(chan struct{})
	past := &areaCopy{fd: fd}
	from := c.len
	c.dropping = done
	return func() error {
		defer close(done)
		return errors.Join(past.zero(from, pastAll), unix.Close(fd))
	}
}

// settle returns when no droppingPast is under way.
func (c *areaCopy) settle() {
	if c.dropping != nil {
		<-c.dropping
		c.dropping = nil
	}
}

// unshare gives a sealed copy memory of its own. Programs keep what they have mapped. After an error it is
// unchanged.
func (c *areaCopy) unshare() error {
	n := newCopy(c.id, c.suffix, c.filed)
	err := n.reserve(c.len)
	if err == nil {
		err = n.resize(c.size)
	}
	if err == nil {
		err = c.data(0, c.len, func(off, k int64) {
			for p, to := pagesOf(off, k); p < to; p++ {
				copy(n.page(p), c.look(p, 1))
			}
		})
	}
	if err != nil {
		return errors.Join(err, n.close())
	}
	n.clearPast(n.size) // a program may have stored there
	*c, *n = *n, *c
	return n.close()
}

// open opens the copy for a program, which makes it a memfd, a sealed one if it may write.
func (c *areaCopy) open(write bool) (*os.File, error) {
	if c.fd < 0 {
		if err := c.toFile(c.len); err != nil {
			return nil, err
		}
	}
	flags := unix.O_RDONLY
	if write {
		flags = unix.O_RDWR
		if err := c.seal(); err != nil {
			return nil, err
		}
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
