package transport

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/loop"
	"github.com/dsmfs/dsmfs/internal/trust"
	"github.com/dsmfs/dsmfs/internal/wire"
)

const (
	recordBytes = 16 << 10 // the most in one record of TLS
	// sealedChunk is chunkBytes for encrypted sessions: what was encrypted should still be in the
	// processor's cache when the kernel copies it.
	sealedChunk = 128 << 10
)

// sealed is a connection with TLS. Beneath crypto/tls lies a pipe, so that the data lane can write
// what is encrypted when and how it likes, and read only what is there.
type sealed struct {
	*tls.Conn
	pipe *pipe
	peer trust.Identity // what the other side's certificate says; zero if it has none
	// known says that peer was a member once when somebody looked, in a view; used by the reader of the
	// control lane only.
	known bool
	block []byte // plain bytes of a record that is not full; of whoever may call seal
}

// Close closes the connection at once: crypto/tls would wait for a write that is under way.
func (s *sealed) Close() error { return s.pipe.Conn.Close() }

// seal encrypts the parts. The result is valid until the next call.
func (s *sealed) seal(parts [][]byte) []byte {
	s.pipe.out, s.pipe.collect = s.pipe.out[:0], true
	block := s.block[:0]
	// A write to the pipe does not fail.
	for _, p := range parts {
		for len(p) > 0 {
			if n := len(p) / recordBytes * recordBytes; n > 0 && len(block) == 0 {
				_, _ = s.Conn.Write(p[:n])
				p = p[n:]
				continue
			}
			n := min(len(p), recordBytes-len(block))
			block, p = append(block, p[:n]...), p[n:]
			if len(block) == recordBytes {
				_, _ = s.Conn.Write(block)
				block = block[:0]
			}
		}
	}
	if len(block) > 0 {
		_, _ = s.Conn.Write(block)
	}
	s.block, s.pipe.collect = block, false
	return s.pipe.out
}

// readNow reads what is there without waiting: 0 and no error if it is nothing.
func (s *sealed) readNow(b []byte) (int, error) {
	s.pipe.poll = true
	n, err := s.Conn.Read(b)
	s.pipe.poll = false
	if err == wire.ErrNothing {
		return n, nil
	}
	return n, err
}

// under returns the connection whose bytes are on the wire.
func under(c net.Conn) net.Conn {
	if s, ok := c.(*sealed); ok {
		return s.pipe.Conn
	}
	return c
}

// pipe is the connection beneath TLS. One goroutine reads and one writes.
type pipe struct {
	net.Conn
	raw syscall.RawConn // nil if it is no socket

	poll    bool // Read does not wait
	buf     []byte
	ahead   []byte // of buf: read and not yet used
	out     []byte // what was written while
	collect bool
}

func newPipe(c net.Conn, first []byte) *pipe {
	p := &pipe{Conn: briefly(c), buf: make([]byte, briefBytes)}
	p.ahead = append(p.buf[:0], first...)
	if b, ok := p.Conn.(*brief); ok {
		p.raw = b.raw
	}
	return p
}

// become has the pipe lie on a Conn of a loop, which is the same socket.
func (p *pipe) become(c *loop.Conn) {
	p.Conn = briefly(c)
	if b, ok := p.Conn.(*brief); ok {
		p.raw = b.raw
	}
}

// Read returns wire.ErrNothing if it would wait and must not. crypto/tls goes on after an error that is temporary.
func (p *pipe) Read(b []byte) (int, error) {
	if len(p.ahead) == 0 && len(b) >= recordBytes/2 {
		return p.fill(b)
	}
	if len(p.ahead) == 0 {
		n, err := p.fill(p.buf)
		p.ahead = p.buf[:n]
		if n == 0 {
			return 0, err
		}
	}
	n := copy(b, p.ahead)
	p.ahead = p.ahead[n:]
	return n, nil
}

// fill reads into b.
func (p *pipe) fill(b []byte) (n int, err error) {
	if !p.poll || p.raw == nil {
		return p.Conn.Read(b)
	}
	broken := p.raw.Read(func(fd uintptr) bool {
		n, err = readNow(fd, b)
		return true
	})
	switch {
	case broken != nil:
		return 0, broken
	case err == unix.EAGAIN:
		return 0, wire.ErrNothing
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (p *pipe) Write(b []byte) (int, error) {
	if p.collect {
		p.out = append(p.out, b...)
		return len(b), nil
	}
	return p.Conn.Write(b)
}
