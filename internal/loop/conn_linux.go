package loop

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/lockrank"
	"golang.org/x/sys/unix"
)

// Conn is a connected socket that a loop polls. As a net.Conn it has no deadlines: those that are set have no effect.
type Conn struct {
	loop          *loop
	local, remote net.Addr

	mu struct {
		lockrank.RWMutex
		fd     int
		waits  int // under way, which keep the descriptor open
		closed bool
	}
}

// Socket is a connection of package net.
type Socket interface {
	net.Conn
	syscall.Conn
}

// Take makes a Conn of a socket, which is closed for its user. If it fails the socket stays as it was.
func Take(s Socket) (*Conn, error) {
	l, err := next()
	if err != nil {
		return nil, err
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, err := -1, error(nil)
	if cerr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	c := &Conn{loop: l, local: s.LocalAddr(), remote: s.RemoteAddr()}
	c.mu.Init("loop.Conn")
	c.mu.fd = fd
	_ = s.Close() // takes it out of Go's poller; the socket itself stays open by the other descriptor
	return c, nil
}

// Await has the loop call serve whenever there is something to read, or the connection has ended, until serve returns false. Then
// Await returns. serve must read, or return false.
func (c *Conn) Await(serve func() (again bool)) error {
	fd, err := c.enter()
	if err != nil {
		return err
	}
	defer c.leave()
	return c.await(fd, unix.EPOLLIN|unix.EPOLLRDHUP, serve)
}

// awaitRoom waits until the socket takes bytes, perhaps while another goroutine is in Await: an epoll knows a descriptor once, so this takes
// another one.
func (c *Conn) awaitRoom() error {
	fd, err := c.enter()
	if err != nil {
		return err
	}
	defer c.leave()
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	defer func() { _ = unix.Close(own) }() // not the last one of the socket
	return c.await(own, unix.EPOLLOUT, once)
}

func (c *Conn) await(fd int, events uint32, serve func() bool) error {
	w, err := c.loop.begin(fd, events, serve)
	if err == nil {
		<-w.done
	}
	return err
}

// enter keeps the descriptor open until leave.
func (c *Conn) enter() (fd int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return -1, net.ErrClosed
	}
	c.mu.waits++
	return c.mu.fd, nil
}

func (c *Conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.waits--
	c.closeLocked()
}

// closeLocked closes the descriptor of a closed Conn when nobody waits for it.
func (c *Conn) closeLocked() {
	if c.mu.closed && c.mu.waits == 0 {
		_ = unix.Close(c.mu.fd) // it has been shut down
	}
}

func once() bool { return false }

// Control implements syscall.RawConn. f must not wait.
func (c *Conn) Control(f func(fd uintptr)) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.mu.closed {
		return net.ErrClosed
	}
	f(uintptr(c.mu.fd))
	return nil
}

// raw is a Conn as a syscall.RawConn.
type raw struct{ *Conn }

func (r raw) Read(f func(fd uintptr) (done bool)) error {
	return r.until(func() error { return r.Await(once) }, f)
}

func (r raw) Write(f func(fd uintptr) (done bool)) error { return r.until(r.awaitRoom, f) }

func (r raw) until(wait func() error, f func(fd uintptr) (done bool)) error {
	for {
		done := false
		if err := r.Control(func(fd uintptr) { done = f(fd) }); done || err != nil {
			return err
		}
		if err := wait(); err != nil {
			return err
		}
	}
}

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return raw{c}, nil }

// Read reads, and waits until there is something.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := c.transfer(unix.SYS_READ, raw.Read, b)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// Write writes all of b, and waits until the socket takes it.
func (c *Conn) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = c.transfer(unix.SYS_WRITE, raw.Write, b[n:])
		n += m
	}
	return n, err
}

// transfer makes one read or write, of which Go's scheduler is told: it may be of many bytes.
func (c *Conn) transfer(call uintptr, until func(raw, func(uintptr) bool) error, b []byte) (n int, err error) {
	var errno unix.Errno
	err = until(raw{c}, func(fd uintptr) bool {
		for {
			var got uintptr
			if got, _, errno = unix.Syscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))); errno != unix.EINTR {
				n = int(got)
				return errno != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case errno != 0:
		return 0, os.NewSyscallError("transfer", errno)
	}
	return n, nil
}

// Close ends the connection, and with it all waits.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return net.ErrClosed
	}
	_ = unix.Shutdown(c.mu.fd, unix.SHUT_RDWR) // it may have ended
	c.mu.closed = true
	c.closeLocked()
	return nil
}

func (c *Conn) LocalAddr() net.Addr              { return c.local }
func (c *Conn) RemoteAddr() net.Addr             { return c.remote }
func (c *Conn) SetDeadline(time.Time) error      { return nil }
func (c *Conn) SetReadDeadline(time.Time) error  { return nil }
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }
