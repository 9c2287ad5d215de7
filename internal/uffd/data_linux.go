package uffd

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A program that has a memfd for writing can have lseek(2) to data or a hole wait for as long as it likes: the kernel has the lock of a file for all of a
// write(2), and the bytes may come from memory that is not there. cachestat(2), of Linux 6.5, takes no lock. It only counts.

// CountPages returns how many of the pages between two offsets of a memfd take memory, also in swap.
func CountPages(fd int, from, to int64) (int64, error) {
	in, st := unix.CachestatRange{Off: uint64(from), Len: uint64(to - from)}, unix.Cachestat_t{}
	call := unix.Syscall6
	if to-from <= 1<<20 { // it is short, and Go's scheduler need not be told: that would wake its monitor
		call = unix.RawSyscall6
	}
	_, _, errno := call(unix.SYS_CACHESTAT, uintptr(fd), uintptr(unsafe.Pointer(&in)), uintptr(unsafe.Pointer(&st)), 0, 0, 0)
	if errno != 0 {
		return 0, os.NewSyscallError("cachestat", errno)
	}
	return int64(st.Cache + st.Evicted), nil
}

// CannotCount reports whether the error of CountPages is that the kernel has no cachestat(2), or does not let this process call it.
func CannotCount(err error) bool { return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) }

// NextData returns the first page between two offsets of a memfd that takes memory. It looks twice as far each time, so that it costs no more than the hole before that page.
func NextData(fd int, from, to int64) (at int64, ok bool, err error) {
	size := int64(pageSize)
	n := size
	for {
		if n = min(n, to-from); n <= 0 {
			return 0, false, nil
		}
		k, err := CountPages(fd, from, from+n)
		if err != nil {
			return 0, false, err
		}
		if k > 0 {
			break
		}
		from, n = from+n, 2*n
	}
	for n > size {
		half := (n/size + 1) / 2 * size
		k, err := CountPages(fd, from, from+half)
		if err != nil {
			return 0, false, err
		}
		if k > 0 {
			n = half
		} else {
			from, n = from+half, n-half
		}
	}
	return from, true, nil
}

// DataRuns calls f with each run of pages between two offsets of a memfd that take memory. It halves a range until all of it is there, or nothing.
func DataRuns(fd int, from, to int64, f func(from, to int64) error) error {
	size := int64(pageSize)
	first, last := from, from // found, and not given to f yet
	tell := func() error {
		if first == last {
			return nil
		}
		return f(first, last)
	}
	var look func(from, to int64) error
	look = func(from, to int64) error {
		n, err := CountPages(fd, from, to)
		all := (to - from) / size
		switch {
		case err != nil || n == 0:
			return err
		case n < all:
			mid := from + all/2*size
			if err := look(from, mid); err != nil {
				return err
			}
			return look(mid, to)
		case from != last:
			if err := tell(); err != nil {
				return err
			}
			first = from
		}
		last = to
		return nil
	}
	if err := look(from, to); err != nil {
		return err
	}
	return tell()
}
