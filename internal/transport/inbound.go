package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/loop"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// inbound is what a node knows about the sessions that another node has had to it. The entry stays
// when a session ends, to know that the next one is not the first.
type inbound struct {
	flow flow
	// conn and done are the newest session; guarded by Transport.mu.
	conn net.Conn
	done chan struct{} // closed when its reader has ended
}

// receive reads a session. It waits until the previous session's reader has ended, calls OnReset
// unless this is the first session, and reads frames until the connection breaks or the next
// session replaces it. The first session of an heir is not the first: what the peer has answered may
// have been dropped with one of the process before.
func (t *Transport) receive(from dsm.NodeID, conn net.Conn) {
	conn, looped := t.looped(conn)
	done := make(chan struct{})
	defer close(done)
	defer t.drop(conn)

	t.mu.Lock()
	in := t.mu.in[from]
	first := in == nil
	if first {
		in = new(inbound)
		t.mu.in[from] = in
	}
	before, ended := in.conn, in.done
	in.conn, in.done = conn, done
	t.mu.Unlock()

	if !first {
		before.Close()
		<-ended
	}
	if !first || t.cfg.Heir {
		t.reset(from, in)
	}
	err := t.readFrames(from, in, conn, looped)
	t.mu.Lock()
	replaced := in.conn != conn
	t.mu.Unlock()
	if replaced || t.ctx.Err() != nil {
		return
	}
	if err != nil {
		t.cfg.Log.Info("incoming session ended", "peer", from, "err", err)
	}
	t.reset(from, in)
}

func (t *Transport) reset(peer dsm.NodeID, in *inbound) {
	if t.ctx.Err() == nil {
		in.flow.resets.Add(1)
		t.cfg.OnReset(peer)
	}
}

// answerBytes is how much of a session is handled, while there is more to read, before the answers
// are sent.
const answerBytes = 256 << 10

// looped has the loop poll a connection in place of Go's poller. looped is nil if it cannot.
func (t *Transport) looped(conn net.Conn) (_ net.Conn, looped *loop.Conn) {
	if t.cfg.OnFrameNow == nil {
		return conn, nil
	}
	tcp, ok := under(conn).(loop.Socket)
	if b, is := under(conn).(*brief); is {
		tcp, ok = b.Conn.(loop.Socket)
	}
	if !ok {
		return conn, nil // an in-process connection of a test
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	node, tracked := t.mu.conns[conn]
	if !tracked {
		return conn, nil // Close has closed it
	}
	looped, err := loop.Take(tcp)
	if err != nil {
		return conn, nil // no descriptor is left, most likely
	}
	if s, ok := conn.(*sealed); ok {
		s.pipe.become(looped)
		return conn, looped
	}
	delete(t.mu.conns, conn)
	t.mu.conns[looped] = node
	return looped, looped
}

// incoming is a session that is read.
type incoming struct {
	t      *Transport
	from   dsm.NodeID
	in     *inbound
	source *source
	reader *wire.Reader

	// What the loop leaves to the goroutine of the session.
	left *wire.Frame
	err  error
}

// readFrames handles the frames of one session. The error is nil at the end of the stream. Answers
// are sent together, when there is nothing more to read: sending each alone would cost a system
// call and wake the other node each time. looped, if not nil, is the connection, or the one beneath it.
func (t *Transport) readFrames(from dsm.NodeID, in *inbound, conn net.Conn, looped *loop.Conn) error {
	answer := func() { t.Flush(from) }
	defer answer()
	c := newSource(conn, &in.flow.bytes, answer)
	s := &incoming{t: t, from: from, in: in, source: c, reader: wire.NewReader(c)}
	for {
		f, err := s.next(looped)
		if err == nil {
			in.flow.frames.Add(1)
			err = t.cfg.OnFrame(from, f)
			f.Release()
			if c.unanswered >= answerBytes {
				c.unanswered = 0
				answer()
			}
			if err == nil {
				continue
			}
			t.counts.bad.Add(1)
			return err
		}
		if errs.Is(err, errs.Corrupt) {
			t.counts.bad.Add(1)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// next returns the next frame for the goroutine of the session.
func (s *incoming) next(looped *loop.Conn) (*wire.Frame, error) {
	if looped == nil {
		return s.reader.Read()
	}
	s.source.poll = true
	f, whole, err := s.reader.Now()
	s.source.poll = false
	switch {
	case f != nil || err != nil:
		return f, err
	case !whole || !s.reader.Empty(): // the rest is on its way
		return s.reader.Read()
	}
	s.source.rest()
	if err := looped.Await(s.serve); err != nil {
		return nil, err
	}
	f, err = s.left, s.err
	if s.left, s.err = nil, nil; f != nil || err != nil {
		return f, err
	}
	return s.reader.Read()
}

// serve handles what has come, in the loop. It returns false, and leaves what it has read to the goroutine of the session, if a frame is
// large, or might have to wait.
func (s *incoming) serve() (again bool) {
	s.source.poll = true
	defer func() { s.source.poll = false }()
	for {
		f, whole, err := s.reader.Now()
		if err != nil || !whole {
			s.err = err
			return false
		}
		if f == nil {
			break
		}
		handled, err := s.t.cfg.OnFrameNow(s.from, f)
		if !handled {
			s.left = f
			return false
		}
		s.in.flow.frames.Add(1)
		f.Release()
		if err != nil {
			s.t.counts.bad.Add(1)
			s.err = err
			return false
		}
		if s.reader.Empty() && s.source.seal == nil {
			break // if there is more, the loop sees it
		}
	}
	s.source.rest()
	return true
}

// source reads a connection, and calls idle before it waits for bytes.
type source struct {
	conn       net.Conn
	brief      net.Conn        // conn, with brief reads
	raw        syscall.RawConn // if nil, and seal too, idle is called before each Read
	seal       *sealed         // conn, if it is encrypted
	n          *atomic.Uint64  // counts what is read
	unanswered int             // bytes since the last call of idle
	idle       func()
	poll       bool // Read does not wait
}

func newSource(conn net.Conn, n *atomic.Uint64, idle func()) *source {
	s := &source{conn: conn, brief: briefly(conn), n: n, idle: idle}
	switch c := conn.(type) {
	case *sealed:
		s.seal = c
	case syscall.Conn:
		s.raw, _ = c.SyscallConn()
	}
	return s
}

func (s *source) Read(b []byte) (n int, err error) {
	if n, err = s.readNow(b); n == 0 && err == nil {
		if s.poll {
			return 0, wire.ErrNothing
		}
		s.rest() // not called from within raw.Read, because it takes locks that are held while the connection is closed
		if len(b) <= briefBytes {
			n, err = s.brief.Read(b)
		} else {
			n, err = s.conn.Read(b)
		}
	}
	s.unanswered += n
	s.n.Add(uint64(n))
	return n, err
}

// rest sends the answers before a wait.
func (s *source) rest() {
	s.unanswered = 0
	s.idle()
}

// readNow reads what is there without waiting. It leaves the end of the stream to conn.Read, if that is called next: it
// will see it again; the kernel reports an error only once.
func (s *source) readNow(b []byte) (n int, err error) {
	if s.seal != nil {
		return s.seal.readNow(b)
	}
	if s.raw == nil {
		return 0, nil
	}
	broken := s.raw.Read(func(fd uintptr) bool {
		if len(b) <= briefBytes {
			n, err = readNow(fd, b)
			return true
		}
		for {
			if n, err = unix.Read(int(fd), b); err != unix.EINTR {
				return true
			}
		}
	})
	switch {
	case broken == nil && err == unix.EAGAIN:
		return 0, nil
	case broken != nil && s.poll:
		return 0, broken
	case broken != nil:
		return 0, nil
	case n == 0 && err == nil && s.poll:
		return 0, io.EOF
	}
	return max(n, 0), os.NewSyscallError("read", err)
}
