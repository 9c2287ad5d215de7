package fs

import "golang.org/x/sys/unix"

// twiceHere are those that only some architectures have. A program of 32 bits has other numbers: none of
// those that make a name is here, or in twice.
var twiceHere = []int{
	unix.SYS_OPEN, unix.SYS_CREAT, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN,
	unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT, unix.SYS_RENAME, unix.SYS_RMDIR, unix.SYS_UNLINK,
}
