package catalog

import (
	"net"
	"strings"
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

func serverID(n dsm.NodeID) raft.ServerID { return raft.ServerID(n.String()) }

func nodeAddr(n dsm.NodeID, addr string) string { return n.String() + "@" + addr }

func serverAddress(n dsm.NodeID, addr string) raft.ServerAddress {
	return raft.ServerAddress(nodeAddr(n, addr))
}

func parseServer(a raft.ServerAddress) (dsm.NodeID, string, error) {
	id, addr, _ := strings.Cut(string(a), "@")
	n, err := dsm.ParseNodeID(id)
	return n, addr, err
}

// layer is raft's StreamLayer over Streams.
type layer struct {
	Streams
	self dsm.Member

	mu struct {
		lockrank.Mutex
		open   map[net.Conn]struct{}
		closed bool
	}
}

func newLayer(s Streams, self dsm.Member) *layer {
	l := &layer{Streams: s, self: self}
	l.mu.Init("catalog.layer")
	l.mu.open = make(map[net.Conn]struct{})
	s.Open()
	return l
}

func (l *layer) Addr() net.Addr { return l }

// Network and String make the layer the net.Addr that raft tells its peers.
func (l *layer) Network() string { return "dsmfs" }
func (l *layer) String() string  { return string(serverAddress(l.self.ID, l.self.Addr)) }

func (l *layer) Dial(a raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := l.Streams.Dial(string(a), timeout)
	if err != nil {
		return nil, err
	}
	return l.track(conn)
}

func (l *layer) Accept() (net.Conn, error) {
	conn, err := l.Streams.Accept()
	if err != nil {
		return nil, err
	}
	return l.track(conn)
}

// Close closes the streams too, because raft waits for calls under way, and these would wait for
// peers.
func (l *layer) Close() error {
	l.mu.Lock()
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
