package catalog

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Streams carries byte streams between the catalogs of two nodes. An address is id@host:port, and
// Dial fails unless the node with that id answers there: otherwise a node started at the address of
// a dead one would acknowledge entries in the other's name, with an empty log.
type Streams interface {
	// Open admits connections, which then wait for Accept.
	Open()
	Accept() (net.Conn, error)
	Close() error
	Addr() net.Addr
	Dial(addr string, timeout time.Duration) (net.Conn, error)
}

func nodeAddr(n dsm.NodeID, addr string) string { return n.String() + "@" + addr }

// server is a node to which raft replicates. To raft each incarnation of a node is a server of its own: a new incarnation has neither the log nor the votes of
// the one before.
type server struct {
	id    dsm.NodeID
	inc   uint64
	addr  string
	voter bool
}

func serverOf(m dsm.Member) server { return server{id: m.ID, inc: m.Inc, addr: m.Addr} }

func (s server) raftID() raft.ServerID {
	if s.inc == 0 {
		return raft.ServerID(s.id.String())
	}
	return raft.ServerID(s.id.String() + "." + strconv.FormatUint(s.inc, 16))
}

func (s server) raftAddress() raft.ServerAddress {
	return raft.ServerAddress(string(s.raftID()) + "@" + s.addr)
}

// parseServer is the inverse of raftAddress.
func parseServer(a raft.ServerAddress) (s server, err error) {
	name, addr, _ := strings.Cut(string(a), "@")
	id, inc, of := strings.Cut(name, ".")
	s.addr = addr
	if s.id, err = dsm.ParseNodeID(id); err == nil && of {
		s.inc, err = strconv.ParseUint(inc, 16, 64)
	}
	return s, err
}

// layer is raft's StreamLayer over Streams.
type layer struct {
	Streams
	self dsm.Member
	held func(dsm.NodeID) bool // the node is a member with a holder
	done chan struct{}         // closed by Close

	mu struct {
		lockrank.Mutex
		open   map[net.Conn]struct{}
		closed bool
	}
}

func newLayer(s Streams, self dsm.Member, held func(dsm.NodeID) bool) *layer {
	l := &layer{Streams: s, self: self, held: held, done: make(chan struct{})}
	l.mu.Init("catalog.layer")
	l.mu.open = make(map[net.Conn]struct{})
	s.Open()
	return l
}

func (l *layer) Addr() net.Addr { return l }

// Network and String make the layer the net.Addr that raft tells its peers.
func (l *layer) Network() string { return "dsmfs" }
func (l *layer) String() string  { return string(serverOf(l.self).raftAddress()) }

func (l *layer) Dial(a raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	to, err := parseServer(a)
	if err != nil {
		return nil, err
	}
	conn, err := l.dial(to, timeout)
	if err != nil {
		return nil, err
	}
	if _, err = conn.Write(binary.BigEndian.AppendUint64(nil, to.inc)); err != nil {
		conn.Close()
		return nil, err
	}
	return l.track(conn)
}

const (
	// followPatience is how long a connection that a member with a holder refuses is tried again, and followPause the pause between two tries. Its daemon may
	// have been killed, and another is about to follow: raft, which tries again later each time, would be seconds late then.
	followPatience = time.Second
	followPause    = 20 * time.Millisecond
)

// dial connects to a node. If that has a holder, its daemon may just be followed by another one.
func (l *layer) dial(to server, timeout time.Duration) (net.Conn, error) {
	for end := time.Now().Add(min(timeout, followPatience)); ; {
		conn, err := l.Streams.Dial(nodeAddr(to.id, to.addr), timeout)
		if !errors.Is(err, syscall.ECONNREFUSED) || !l.held(to.id) || time.Now().After(end) {
			return conn, err
		}
		select {
		case <-time.After(followPause):
		case <-l.done:
			return nil, net.ErrClosed
		}
	}
}

func (l *layer) Accept() (net.Conn, error) {
	conn, err := l.Streams.Accept()
	if err != nil {
		return nil, err
	}
	return l.track(&addressed{Conn: conn, inc: l.self.Inc})
}

// Close closes the streams too, because raft waits for calls under way, and these would wait for
// peers.
func (l *layer) Close() error {
	l.mu.Lock()
	if !l.mu.closed {
		close(l.done)
	}
	l.mu.closed = true
	open := l.mu.open
	l.mu.open = make(map[net.Conn]struct{})
	l.mu.Unlock()
	for conn := range open {
		conn.Close()
	}
	return l.Streams.Close()
}

func (l *layer) track(conn net.Conn) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	t := &tracked{Conn: conn, layer: l}
	l.mu.open[t] = struct{}{}
	return t, nil
}

// addressed is a stream that begins with the incarnation that it is for. For any other it ends there.
type addressed struct {
	net.Conn
	inc  uint64
	read bool
}

func (a *addressed) Read(b []byte) (int, error) {
	if !a.read {
		var to [8]byte
		if _, err := io.ReadFull(a.Conn, to[:]); err != nil {
			return 0, err
		}
		if binary.BigEndian.Uint64(to[:]) != a.inc {
			return 0, io.EOF
		}
		a.read = true
	}
	return a.Conn.Read(b)
}

// tracked is a stream that the layer closes when it is closed itself.
type tracked struct {
	net.Conn
	layer *layer
}

func (t *tracked) Close() error {
	t.layer.mu.Lock()
	delete(t.layer.mu.open, t)
	t.layer.mu.Unlock()
	return t.Conn.Close()
}
