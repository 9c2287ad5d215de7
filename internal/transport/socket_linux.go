package transport

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// tune sets what every connection wants: no delay, and an end of connections
// whose other side is gone or takes nothing. TCP_USER_TIMEOUT also covers the
// peer that is stopped (SIGSTOP) with its window closed, which keepalives do not.
func tune(c net.Conn, timeout time.Duration) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return // an in-process connection of a test
	}
	// Errors mean that the connection is gone already, which its user will see.
	_ = tcp.SetNoDelay(true)
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: timeout, Interval: timeout / 5, Count: 5})
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
		})
	}
}
