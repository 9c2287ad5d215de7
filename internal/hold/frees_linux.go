package hold

import (
	"os"

	"golang.org/x/sys/unix"
)

// A child of the daemon frees memory of files that programs have, and the kernel may have it wait for a program, beyond the reach of any signal: see harvest.Freer. So it may
// outlive a daemon that is killed. When it goes on, it frees what is in the file by then. So before it opens such a file, it locks a byte of the Memory's file by a lock of its own
// open file (F_OFD_SETLK), which ends when it does. The byte says which file it is, by the inode number, and from where on it frees. Programs do not have the Memory, so they can neither
// keep it from that, nor feign it. A number that is used again, after 2^32 others, only has somebody wait.

const (
	freePage  = 12 // what is freed begins at a page
	freePages = 30 // no file has more pages than 2^30
)

// FreeMark is the byte that is locked while a file with an inode number is freed from an offset on.
func FreeMark(ino uint64, from int64) int64 { return int64(uint32(ino))<<freePages | from>>freePage }

// Freeing reports whether a process is freeing the file with an inode number, and from where on.
func (m *Memory) Freeing(ino uint64) (from int64, is bool, err error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: FreeMark(ino, 0), Len: 1 << freePages}
	if err := unix.FcntlFlock(uintptr(m.fd), unix.F_OFD_GETLK, &l); err != nil {
		return 0, false, os.NewSyscallError("fcntl", err)
	}
	return l.Start & (1<<freePages - 1) << freePage, l.Type != unix.F_UNLCK, nil
}
