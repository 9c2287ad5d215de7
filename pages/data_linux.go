package pages

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// DataRanges calls f for the parts of [off, off+n) of the working copy that take
// memory; all else was never touched, or given up, and is zero. None of it is touched by that.
func (a *Area) DataRanges(off, n int64, f func(off, n int64)) error {
	if err := a.working.data(off, n, f); err != nil {
		return a.fail("seek", err)
	}
	return nil
}

// data calls f for the parts of [off, off+n) that take memory. It touches none. The search for a hole looks at
// every page, 80 ns each, and is spared where the file takes as much memory as it is long.
func (c *copyFile) data(off, n int64, f func(off, n int64)) error {
	end := min(off+n, c.len)
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

// whole reports whether the file has no holes. It says so of one with a huge page that goes on past its end, too, if
// the holes are no larger than that: then some count as data, and reading them takes memory.
func (c *copyFile) whole() bool {
	var st unix.Stat_t
	return unix.Fstat(c.fd, &st) == nil && st.Blocks*512 >= c.len && st.Size <= c.len // a program may write past it
}

// OpenWorking opens the memfd of the working copy once more, for a program of this
// node: with its own file offset, and, unless write, such that it can only be read. The
// caller closes it.
func (a *Area) OpenWorking(write bool) (*os.File, error) {
	f, err := a.working.open(write)
	if err != nil {
		return nil, a.fail("open", err)
	}
	return f, nil
}

func (c *copyFile) open(write bool) (*os.File, error) {
	flags := unix.O_RDONLY
	if write {
		flags = unix.O_RDWR
	}
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", c.fd), flags, 0)
}
