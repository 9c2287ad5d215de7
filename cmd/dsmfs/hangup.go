package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hangUp shuts the sockets of the network that a process has which is dead and cannot end. It has the port of its successor as well, and the kernel would give every other connection to the dead
// one, where nobody answers; and who waits for an answer on a connection from before would go on waiting. So would programs that have attached, whose connections it shuts, too; the socket at which
// they connect is also its successor's. It returns how many there were.
//
// A socket is shut by whoever has it, so this process gets each from a thread that still has them (pidfd_getfd(2)).
func hangUp(pid int) (shut int, err error) {
	for _, task := range tasksOf(pid) {
		links, e := os.ReadDir(filepath.Join(task, "fd"))
		if e != nil || len(links) == 0 {
			continue // it has ended
		}
		n, e := hangUpOf(task, links)
		if e == nil {
			return shut + n, nil
		}
		shut, err = shut+n, errors.Join(err, e)
	}
	return shut, err
}

// hangUpOf shuts the sockets of one thread. All threads have the same.
func hangUpOf(task string, links []os.DirEntry) (shut int, err error) {
	tid, err := strconv.Atoi(filepath.Base(task))
	if err != nil {
		return 0, err
	}
	thread, err := unix.PidfdOpen(tid, unix.PIDFD_THREAD)
	if err != nil {
		return 0, os.NewSyscallError("pidfd_open", err)
	}
	defer func() { _ = unix.Close(thread) }()
	for _, link := range links {
		to, err := os.Readlink(filepath.Join(task, "fd", link.Name()))
		if err != nil || !strings.HasPrefix(to, "socket:") {
			continue
		}
		number, err := strconv.Atoi(link.Name())
		if err != nil {
			return shut, err
		}
		fd, err := unix.PidfdGetfd(thread, number, 0)
		if err != nil {
			return shut, os.NewSyscallError("pidfd_getfd", err)
		}
		did, err := shutSocket(fd)
		if did {
			shut++
		}
		if err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd))); err != nil {
			return shut, err
		}
	}
	return shut, nil
}

// shutSocket shuts a socket, if it is one of the network, or a connection of a program.
func shutSocket(fd int) (did bool, err error) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return false, os.NewSyscallError("getsockopt", err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return false, os.NewSyscallError("getsockopt", err)
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return false, os.NewSyscallError("getsockopt", err)
	}
	program := domain == unix.AF_UNIX && kind == unix.SOCK_SEQPACKET && listens == 0
	if domain != unix.AF_INET && domain != unix.AF_INET6 && !program {
		return false, nil
	}
	if kind == unix.SOCK_DGRAM { // it keeps the port, but gets packets only from where it is connected to
		own, err := unix.Getsockname(fd)
		if err != nil {
			return false, os.NewSyscallError("getsockname", err)
		}
		return true, os.NewSyscallError("connect", unix.Connect(fd, own))
	}
	if err = unix.Shutdown(fd, unix.SHUT_RDWR); errors.Is(err, unix.ENOTCONN) { // it has ended
		err = nil
	}
	return true, os.NewSyscallError("shutdown", err)
}
