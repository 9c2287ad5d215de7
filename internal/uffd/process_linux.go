package uffd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// PeerPidFD returns a pidfd of the process at the other end of a Unix socket. From 6.5 on Linux
// hands out one of that very process. Before, it is opened by the process number, which another
// process may have by then if the peer has ended.
func PeerPidFD(socket int) (int, error) {
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err == nil {
		unix.CloseOnExec(fd)
		return fd, nil
	}
	if err != unix.ENOPROTOOPT {
		return -1, errs.E(errs.Other, "identify process", "SO_PEERPIDFD: %w", err)
	}
	cred, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, errs.E(errs.Other, "identify process", "SO_PEERCRED: %w", err)
	}
	if fd, err = unix.PidfdOpen(int(cred.Pid), 0); err != nil {
		return -1, errs.E(errs.Other, "identify process", "pidfd_open %d: %w", cred.Pid, err)
	}
	return fd, nil
}

// process watches one process until it ends.
type process struct {
	pid  int
	file *os.File // its pidfd
	raw  syscall.RawConn
	done sync.WaitGroup
}

// newProcess duplicates the pidfd, which stays the caller's.
func newProcess(pidfd int) (*process, error) {
	fd, err := unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errs.E(errs.Invalid, "track mapping", "the pidfd: %w", err)
	}
	p := &process{}
	if p.pid, err = pidOf(fd); err == nil {
		// The runtime's poller needs a descriptor that does not block.
		err = unix.SetNonblock(fd, true)
	}
	if err == nil {
		p.file = os.NewFile(uintptr(fd), "pidfd")
		p.raw, err = p.file.SyscallConn()
	}
	if err != nil {
		closeFD(fd)
		return nil, errs.E(errs.Invalid, "track mapping", "the pidfd: %w", err)
	}
	return p, nil
}

// pidOf returns the number of the process. No other process can have it until this one has been
// waited for, which ended checks.
func pidOf(pidfd int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(value))
			if err == nil && pid <= 0 {
				err = fmt.Errorf("the process has ended, or is not of this PID namespace: %w", unix.ESRCH)
			}
			return pid, err
		}
	}
	return 0, fmt.Errorf("is no pidfd: %w", unix.EINVAL)
}

// ended reports whether the process has ended; if not, pid is its number.
func (p *process) ended() bool {
	ended := true
	err := p.raw.Control(func(fd uintptr) { ended = pollIn(fd) })
	return err != nil || ended
}

// pollIn reports whether a descriptor is readable. A pidfd is when its process has ended.
func pollIn(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return err != nil || n > 0
		}
	}
}

// watch calls f when the process ends, unless close is called first.
func (p *process) watch(f func()) {
	p.done.Go(func() {
		if AwaitExit(p.raw) {
			f()
		}
	})
}

// AwaitExit returns true when the process of a pidfd, which must not block, has ended, and false
// when the descriptor was closed before that.
func AwaitExit(pidfd syscall.RawConn) bool { return pidfd.Read(pollIn) == nil }

// close stops watching.
func (p *process) close() {
	// Closing a pidfd cannot fail.
	_ = p.file.Close()
	p.done.Wait()
}
