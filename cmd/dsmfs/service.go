package main

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// serviceVariable names the socket of the service manager; see sd_notify(3).
const serviceVariable = "NOTIFY_SOCKET"

// service is the service manager that started this process; a nil service is told nothing.
type service struct{ socket string }

// newService returns the service manager, nil if there is none. It removes the variable from the
// environment, so that children of this process do not report in its name.
func newService() (*service, error) {
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
	return &service{socket}, nil
}

// tell sends lines such as READY=1.
func (s *service) tell(lines string) error {
	if s == nil {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	if _, err := conn.Write([]byte(lines)); err != nil {
		return fmt.Errorf("%s: %w", s.socket, err)
	}
	return conn.Close()
}
