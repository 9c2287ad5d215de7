package pages

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// DataRanges calls f for the parts of [off, off+n) of the working copy that take
// memory; all else was never touched and is zero.
func (a *Area) DataRanges(off, n int64, f func(off, n int64)) error {
	for end := min(off+n, a.working.len); off < end; {
		from, err := unix.Seek(a.working.fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return a.fail("seek", os.NewSyscallError("lseek", err))
		}
		to, err := unix.Seek(a.working.fd, from, unix.SEEK_HOLE)
		if err != nil {
			return a.fail("seek", os.NewSyscallError("lseek", err))
		}
		if from >= end {
			return nil
		}
		f(from, min(to, end)-from)
		off = to
	}
	return nil
}

// OpenWorking opens the memfd of the working copy once more, for a program of this
// node: with its own file offset, and, unless write, such that it can only be read. The
// caller closes it.
func (a *Area) OpenWorking(write bool) (*os.File, error) {
	flags := unix.O_RDONLY
	if write {
		flags = unix.O_RDWR
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", a.working.fd), flags, 0)
	if err != nil {
		return nil, a.fail("open", err)
	}
	return f, nil
}
