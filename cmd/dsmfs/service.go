package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// serviceVariable names the socket of the service manager; see sd_notify(3).
const serviceVariable = "NOTIFY_SOCKET"

// service is the service manager that started this process; a nil service is told nothing.
type service struct {
	socket string
	as     int // the process in whose name it is told
}

// newService returns the service manager, nil if there is none. It removes the variable from the
// environment, so that children of this process do not report in its name. The process that was started is the holder, if there is one: the
// service manager may listen to that alone (NotifyAccess=main), so it is told in its name.
func newService(held bool) (*service, error) {
	socket := os.Getenv(serviceVariable)
	if socket == "" {
		return nil, nil
	}
	if err := os.Unsetenv(serviceVariable); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(socket, "/") && !strings.HasPrefix(socket, "@") {
		return nil, fail(exitUsage, "%s=%q: want the path of a socket, or @ and a name", serviceVariable, socket)
	}
	s := &service{socket, os.Getpid()}
	if held {
		s.as = os.Getppid()
	}
	return s, nil
}

// tell sends lines such as READY=1.
func (s *service) tell(lines string) error {
	if s == nil {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	to := &unix.SockaddrUnix{Name: s.socket}
	who := unix.UnixCredentials(&unix.Ucred{Pid: int32(s.as), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())})
	err = unix.Sendmsg(fd, []byte(lines), who, to, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ESRCH) { // the privilege lacks, or the holder has ended
		err = unix.Sendmsg(fd, []byte(lines), nil, to, 0)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", s.socket, err)
	}
	return errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
}
