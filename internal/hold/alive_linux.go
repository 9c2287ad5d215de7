package hold

import (
	"errors"
	"math"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A daemon that was killed may be unable to end: a thread that tells the kernel to drop a page waits for a request of that page, which only the
// next daemon will answer, and no signal ends that. So the holder does not wait for the end of the process, but for that of its first
// thread, in which nothing of the kind happens. (A pidfd of a thread does not say it, since Linux 6.15.) The kernel clears a number
// when a thread ends, and wakes who waits for that: what pthread_join is made of.

const (
	futexWait = 0
	futexWake = 1
)

// Live says that the first thread of the process, which must be the one that calls, is that of the daemon.
func (m *Memory) Live() error {
	if unix.Gettid() != os.Getpid() {
		return errors.New("not the first thread of the process")
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_SET_TID_ADDRESS, uintptr(unsafe.Pointer(m.Word(Alive))), 0, 0) // it returns the thread's number
	return nil
}

// Expect says that a daemon is about to be started, and returns a function that returns when its first thread has ended, or when release was called.
// Then the daemon may still be there, and another one be expected.
func (m *Memory) Expect() (wait, release func()) {
	w, n := m.Word(Alive), m.Word(Expected).Add(1)&math.MaxInt32
	w.Store(n)
	at := uintptr(unsafe.Pointer(w))
	wait = func() {
		for w.Load() == n {
			_, _, e := syscall.Syscall6(unix.SYS_FUTEX, at, futexWait, uintptr(n), 0, 0, 0)
			if e != 0 && e != unix.EINTR && e != unix.EAGAIN {
				return
			}
		}
	}
	release = func() {
		if !w.CompareAndSwap(n, 0) {
			return // its first thread has ended before
		}
		_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, at, futexWake, 1, 0, 0, 0) // which fails only for wrong arguments
	}
	return wait, release
}
