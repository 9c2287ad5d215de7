package transport

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/loop"
)

// The sockets never block, so a small read or write ends at once. It is made without telling the
// scheduler of Go (RawSyscall). Otherwise the first system call after a moment of rest wakes the
// scheduler's monitor, which then looks every 20 us: that was a fifth of what three nodes did for a
// new file. A call of more than briefBytes copies for so long that others may need the processor
// meanwhile: that one is told.
const briefBytes = 64 << 10

// brief is a connection whose small reads and writes are such calls.
type brief struct {
	net.Conn
	raw syscall.RawConn
}

// briefly returns c, with brief reads and writes if it is a socket.
func briefly(c net.Conn) net.Conn {
	socket, ok := c.(loop.Socket)
	if !ok {
		return c // an in-process connection of a test
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return c
	}
	return &brief{c, raw}
}

func (c *brief) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	b = b[:min(len(b), briefBytes)]
	broken := c.raw.Read(func(fd uintptr) bool {
		n, err = readNow(fd, b)
		return err != unix.EAGAIN
	})
	switch {
	case broken != nil:
		return 0, broken
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *brief) Write(b []byte) (n int, err error) {
	if len(b) == 0 || len(b) > briefBytes {
		return c.Conn.Write(b)
	}
	broken := c.raw.Write(func(fd uintptr) bool {
		for n < len(b) {
			var m int
			if m, err = writeNow(fd, b[n:]); err != nil {
				return err != unix.EAGAIN
			}
			n += m
		}
		return true
	})
	if broken != nil {
		return n, broken
	}
	return n, os.NewSyscallError("write", err)
}

// writeNow writes what the socket takes without waiting.
func (c *brief) writeNow(b []byte) (n int, err error) {
	broken := c.raw.Write(func(fd uintptr) bool {
		n, err = writeNow(fd, b[:min(len(b), briefBytes)])
		return true
	})
	switch {
	case broken != nil:
		return n, broken
	case err == unix.EAGAIN:
		return n, nil
	}
	return n, os.NewSyscallError("write", err)
}

// readNow reads what is there.
func readNow(fd uintptr, b []byte) (int, error) {
	return now(unix.SYS_READ, fd, unsafe.Pointer(unsafe.SliceData(b)), len(b))
}

// writeNow writes what the socket takes.
func writeNow(fd uintptr, b []byte) (int, error) {
	return now(unix.SYS_WRITE, fd, unsafe.Pointer(unsafe.SliceData(b)), len(b))
}

// writevNow writes what the socket takes of parts.
func writevNow(fd uintptr, parts [][]byte) (int, error) {
	var few [8]unix.Iovec // most batches have no more
	iov := few[:0]
	for _, p := range parts {
		if len(p) > 0 {
			v := unix.Iovec{Base: &p[0]}
			v.SetLen(len(p))
			iov = append(iov, v)
		}
	}
	return now(unix.SYS_WRITEV, fd, unsafe.Pointer(unsafe.SliceData(iov)), len(iov))
}

// now makes a system call that does not block.
func now(call, fd uintptr, p unsafe.Pointer, n int) (int, error) {
	for {
		m, _, errno := unix.RawSyscall(call, fd, uintptr(p), uintptr(n))
		switch errno {
		case 0:
			return int(m), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
