package fs

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// walksTwice reports whether the call that the thread of a LOOKUP is in looks up every name once more at ESTALE. mkdir(2), mknod(2), symlink(2),
// link(2) and bind(2) do not look up what they are to make again (Linux 6.18), and nothing in a LOOKUP tells which call it is for.
// If it cannot be found out the answer is no.
func walksTwice(r *request) bool {
	for end := time.Now().Add(callLimit); ; {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", r.tid))
		if err != nil {
			return false
		}
		number, _, _ := bytes.Cut(text, []byte(" "))
		if call, err := strconv.Atoi(string(number)); err == nil {
			return slices.Contains(twice, call) || slices.Contains(twiceHere, call)
		}
		if time.Now().After(end) { // "running": it has sent the request, and does not wait for the answer yet
			return false
		}
		select {
		case <-time.After(callLimit / 20):
		case <-r.Done():
			return false
		}
	}
}

// callLimit is how long a thread may take from its request until it waits.
const callLimit = 20 * time.Millisecond

// twice are calls that look up a path, in which nothing is made but by open.
var twice = []int{
	unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_NEWFSTATAT, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2,
	unix.SYS_CHDIR, unix.SYS_CHROOT, unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_READLINKAT, unix.SYS_TRUNCATE,
	unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
	unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT,
	unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_SETXATTR, unix.SYS_LSETXATTR,
	unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR,
}
