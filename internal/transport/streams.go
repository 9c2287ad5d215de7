package transport

import (
	"context"
	"net"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Streams is a lane of byte streams, as raft's StreamLayer and the stream half of gossip need it.
// Connections are refused until Open.
type Streams struct {
	t        *Transport
	lane     lane
	incoming chan net.Conn
	done     chan struct{}

	mu struct {
		lockrank.Mutex
		open, closed bool
	}
}

func newStreams(t *Transport, l lane) *Streams {
	s := &Streams{t: t, lane: l, incoming: make(chan net.Conn, 16), done: make(chan struct{})}
	s.mu.Init("transport.Streams")
	return s
}

// RaftLayer returns the byte streams of the consensus.
func (t *Transport) RaftLayer() *Streams { return t.raft.Load() }

// ReopenRaft is RaftLayer, and returns new ones if they have been closed.
func (t *Transport) ReopenRaft() *Streams {
	s := t.raft.Load()
	select {
	case <-s.done:
		if t.ctx.Err() == nil {
			s = newStreams(t, laneRaft)
			t.raft.Store(s)
		}
	default:
	}
	return s
}

// Open admits connections, which from then on wait for Accept.
func (s *Streams) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.open = !s.mu.closed
}

// Accept waits for a connection of another node.
func (s *Streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.incoming:
		return &stream{briefly(c), c, s.t}, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Dial connects to the same lane of another node. On the raft lane addr must be a NodeAddr.
func (s *Streams) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	if id, _, err := SplitNodeAddr(addr); err == nil && id == 0 && s.lane == laneRaft {
		return nil, errs.E(errs.Invalid, "connect", "raft server address %q names no node: want one of NodeAddr", addr)
	}
	if timeout <= 0 {
		timeout = s.t.cfg.HelloTimeout
	}
	ctx, cancel := context.WithTimeout(s.t.ctx, timeout)
	defer cancel()
	c, _, err := s.t.dial(ctx, s.lane, 0, addr)
	if err != nil {
		return nil, err
	}
	return &stream{briefly(c), c, s.t}, nil
}

// Addr returns the NodeAddr of this node.
func (s *Streams) Addr() net.Addr { return streamAddr(NodeAddr(s.t.cfg.Self, s.t.addr)) }

// Close ends Accept. Connections that were accepted or dialed stay open until they or the transport
// are closed.
func (s *Streams) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil
	}
	s.mu.closed, s.mu.open = true, false
	close(s.done)
	return nil
}

// open reports whether connections are accepted.
func (s *Streams) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.open
}

// deliver passes an incoming connection to Accept.
func (s *Streams) deliver(c net.Conn) {
	select {
	case s.incoming <- c:
	case <-s.done:
		s.t.drop(c)
	case <-s.t.ctx.Done():
		s.t.drop(c)
	}
}

// stream is a connection that is closed by its user, or by Transport.Close.
type stream struct {
	net.Conn
	tracked net.Conn // as the transport knows it
	t       *Transport
}

func (s *stream) Close() error {
	s.t.drop(s.tracked)
	return nil
}

type streamAddr string

func (a streamAddr) Network() string { return "tcp" }
func (a streamAddr) String() string  { return string(a) }
