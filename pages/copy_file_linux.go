package pages

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/uffd"
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

// sealedLen is the length of a sealed memfd: what an area can have at most, or a file of this process (RLIMIT_FSIZE).
var sealedLen = sync.OnceValue(func() int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &l); err != nil || l.Cur > dsm.MaxAreaSize {
		return dsm.MaxAreaSize
	}
	return int64(l.Cur)
})

// seal keeps the programs that get a descriptor for writing from changing the length of the memfd: after a shrink this
// process would get SIGBUS. It also keeps them from adding seals, which could keep this process from its own memory. It
// is for ever, and for this process too. So the memfd is made as long as any area first, and the end of the copy is another matter:
//
//   - bytes past the end of the copy are zero when resize makes it longer. Programs may store there before, and that takes memory:
//     droppingPast frees it;
//   - a file of a mount cannot be a sealed memfd: it would not end where the area does.
//
// A program with a descriptor for writing can also keep others from changing the file as long as it likes: the kernel has the lock of a file
// (its inode) for all of a write(2), and the bytes may come from memory that is not there. ftruncate(2), fallocate(2), write(2) and lseek(2) to data or a hole wait for it,
// uninterruptibly. So nobody calls these of a sealed memfd, but droppingPast. What is there is found by cachestat(2), bytes are made zero by storing zeroes.
func (c *areaCopy) seal() error {
	if c.sealed {
		return nil
	}
	if err := unix.Ftruncate(c.fd, sealedLen()); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	if _, err := unix.FcntlInt(uintptr(c.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return errors.Join(os.NewSyscallError("fcntl", err), os.NewSyscallError("ftruncate", unix.Ftruncate(c.fd, c.size)))
	}
	c.sealed = true
	return nil
}

// resizeSealed is resize for a sealed memfd. errs.Busy: what programs have past the end is to be freed first, and that may be under way: see
// droppingPast.
func (c *areaCopy) resizeSealed(n int64) error {
	end := wholePages(n)
	past := end > c.droppingFrom && c.dropsPast()
	if end > c.len && c.holes && !past {
		if err := c.fileData(c.len, end, func(int64, int64) { past = true }); err != nil {
			return err
		}
	}
	switch {
	case end > sealedLen():
		return unix.EFBIG
	case past:
		return errPast
	}
	if err := c.wipe(min(c.size, n), max(c.len, end)); err != nil {
		return err
	}
	c.size, c.len = n, end
	return nil
}

var errPast = errs.E(errs.Busy, "free memory past the end", "it is under way, and waits for a program that is in write(2) to that memory")

// wipe makes bytes of a sealed memfd read zero. Pages that take memory keep it.
func (c *areaCopy) wipe(from, to int64) error {
	return c.fileData(from, to, func(off, n int64) { clear(c.mem[off : off+n]) })
}

// Drop frees memory past the end of a sealed memfd, by a call of free. It is to be called once and without locks: the kernel has free wait while a
// program writes to the memfd by write(2), and the bytes that are written may come from a page that this process has yet to bring, or from nowhere.
type Drop func(free func(fd int, from int64) error) error

// FreePast frees what a memfd has from an offset on. A process cannot end while it waits in there.
func FreePast(fd int, from int64) error {
	return (&areaCopy{fd: fd}).free(from, math.MaxInt64)
}

// droppingPast returns what frees the memory that a sealed memfd has past the last page. nil: it has none, it is not sealed, or there is
// one under way. The copy gets no longer than it is now before that is over: what is stored there would be freed.
func (c *areaCopy) droppingPast() Drop {
	if !c.sealed || c.dropsPast() {
		return nil
	}
	if n, err := uffd.CountPages(c.fd, c.len, sealedLen()); n == 0 && err == nil {
		return nil
	}
	fd, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0) // the copy may end meanwhile
	if err != nil {
		return func(func(int, int64) error) error { return os.NewSyscallError("fcntl", err) }
	}
	done := make(chan struct{})
	from := c.len
	c.dropping, c.droppingFrom = done, from
	return func(free func(fd int, from int64) error) error {
		defer close(done)
		return errors.Join(free(fd, from), unix.Close(fd))
	}
}

// dropsPast reports whether a droppingPast is under way.
func (c *areaCopy) dropsPast() bool {
	if c.left {
		if _, c.left = c.leftFreeing(); c.left {
			return true
		}
	}
	select {
	case <-c.dropping:
		return false
	default:
		return c.dropping != nil
	}
}

// unshare gives a sealed copy memory of its own. Programs keep what they have mapped. After an error it is
// unchanged.
func (c *areaCopy) unshare() error {
	n := newCopy(c.id, c.suffix, c.filed)
	if err := n.copyOf(c); err != nil {
		return errors.Join(err, n.close())
	}
	n.clearPast(n.size) // a program may have stored there
	*c, *n = *n, *c
	return n.close()
}

// copyOf makes an empty copy one of another.
func (c *areaCopy) copyOf(o *areaCopy) error {
	err := c.reserve(o.len)
	if err == nil {
		err = c.resize(o.size)
	}
	if err == nil {
		err = o.data(0, o.len, func(off, k int64) {
			for p, to := pagesOf(off, k); p < to; p++ {
				copy(c.page(p), o.look(p, 1))
			}
		})
	}
	return err
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

// sealedData is fileData for a sealed memfd.
func (c *areaCopy) sealedData(off, end int64, f func(off, n int64)) error {
	return uffd.DataRuns(c.fd, off&^(dsm.PageSize-1), wholePages(end), func(from, to int64) error {
		if from, to = max(from, off), min(to, end); from < to {
			f(from, to-from)
		}
		return nil
	})
}

// fileData is data for a memfd. The search for a hole looks at every page, 80 ns each, so it is
// left out if the file takes as much memory as it is long.
func (c *areaCopy) fileData(off, end int64, f func(off, n int64)) error {
	switch {
	case off >= end:
		return nil
	case c.sealed:
		if err := c.sealedData(off, end, f); !uffd.CannotCount(err) {
			return err
		}
	case c.whole():
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

// fileWrite stores n at off, which is at in the file, with write(2).
func (c *areaCopy) fileWrite(fd int, n []byte, off, at int64) {
	for len(n) > 0 {
		done, err := unix.Pwrite(fd, n, at)
		if err != nil {
			done = copy(c.mem[off:c.len], n) // like a store: if it fails the daemon ends, as anywhere
		}
		n, off, at = n[done:], off+int64(done), at+int64(done)
	}
}
