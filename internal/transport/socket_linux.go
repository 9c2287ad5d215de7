package transport

import (
	"cmp"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tune sets the options of every connection: no delay, and an end for connections whose other side
// is gone or accepts nothing. TCP_USER_TIMEOUT also covers a peer that is stopped (SIGSTOP) with
// its window closed, which keepalives do not.
func tune(c net.Conn, timeout time.Duration) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return // an in-process connection of a test
	}
	// An error means that the connection is already gone, which its user will see.
	_ = tcp.SetNoDelay(true)
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: timeout, Interval: timeout / 5, Count: 5})
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
		})
	}
}

// reusePort lets several processes of a user have the port.
func reusePort(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	})
	return cmp.Or(err, failed)
}
