// Package procs tells how a process of this machine has ended.
package procs

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process is a process, which may end meanwhile. Its number may be that of another one then.
type Process struct {
	pid int
	fd  int // of the process itself: pidfd_open(2)
}

// Open returns the process with a number, or an error of pidfd_open(2). Close ends that.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return &Process{pid, fd}, nil
}

// Close forgets the process.
func (p *Process) Close() {
	if p != nil {
		_ = unix.Close(p.fd) // nothing was written to it
	}
}

// Killed reports whether a signal has ended the process, or is just ending it. It is false if the process lives, if it has exited, of nil, and if the kernel does not say: of one that is
// reaped it does since Linux 6.15 (PIDFD_GET_INFO).
func (p *Process) Killed() bool {
	return p != nil && Killed(p.pid, p.fd)
}

// Killed is Process.Killed of a process that a pidfd stands for.
func Killed(pid, pidfd int) bool {
	if code, ended := reaped(pidfd); ended {
		return bySignal(code)
	}
	code, ends := exiting(pid)
	if now, ended := reaped(pidfd); ended { // in between: the number may be that of another process
		code, ends = now, true
	}
	return ends && bySignal(code)
}

// bySignal reports whether a status is that of a process which a signal has ended: see wait(2).
func bySignal(code int32) bool { return code&0x7f != 0 }

// reaped returns the status of a process that has gone.
func reaped(pidfd int) (code int32, gone bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if unix.IoctlPidfdInfo(pidfd, &info) != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false
	}
	return info.Exit_code, true
}

// Fields of /proc/PID/stat, counted from the state on: see proc_pid_stat(5).
const (
	statFlags    = 9 - 3
	statExitCode = 52 - 3

	flagExiting = 0x4 // PF_EXITING
)

// exiting returns the status with which a process is ending, or has ended and is not reaped.
func exiting(pid int) (code int32, ends bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	word := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // the name may have anything in it
	if len(word) <= statExitCode {
		return 0, false
	}
	flags, err := strconv.ParseUint(word[statFlags], 10, 32)
	if err != nil || flags&flagExiting == 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(word[statExitCode], 10, 32)
	return int32(n), err == nil
}
