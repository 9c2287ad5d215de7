package transport

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// Gossip is the lane of membership: datagrams and byte streams. Each datagram begins with 12 bytes,
// magic and cluster; datagrams without these are dropped and counted.
type Gossip struct {
	t       *Transport
	streams *Streams
	closed  atomic.Bool
}

const (
	packetMagic  = "DSMG"
	packetPrefix = len(packetMagic) + 8
)

// Gossip returns the lane of membership.
func (t *Transport) Gossip() *Gossip { return t.gossip }

// WriteTo sends one datagram to host:port.
func (g *Gossip) WriteTo(b []byte, addr string) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		ua, err := net.ResolveUDPAddr("udp", addr)
		if err != nil {
			return err
		}
		to = ua.AddrPort()
	}
	p := make([]byte, 0, 2048)
	p = append(p, packetMagic...)
	p = binary.BigEndian.AppendUint64(p, g.t.cluster.Load())
	_, err = g.t.udp.WriteToUDPAddrPort(append(p, b...), to)
	return err
}

// ReadFrom waits for the next datagram of this cluster. Datagrams longer than b less 12 bytes are
// truncated. It is for one goroutine.
func (g *Gossip) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := g.t.udp.ReadFromUDPAddrPort(b)
		if g.closed.Load() {
			return 0, nil, net.ErrClosed
		}
		if err != nil {
			return 0, nil, err
		}
		cluster := g.t.cluster.Load()
		if n < packetPrefix || string(b[:len(packetMagic)]) != packetMagic || cluster == 0 ||
			binary.BigEndian.Uint64(b[len(packetMagic):]) != cluster {
			g.t.counts.foreign.Add(1)
			continue
		}
		return copy(b, b[packetPrefix:n]), net.UDPAddrFromAddrPort(from), nil
	}
}

// Open admits byte streams of other nodes; before, they are refused.
func (g *Gossip) Open() { g.streams.Open() }

// Accept waits for a byte stream of another node.
func (g *Gossip) Accept() (net.Conn, error) { return g.streams.Accept() }

// Dial opens a byte stream to another node, by its address or NodeAddr.
func (g *Gossip) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	return g.streams.Dial(addr, timeout)
}

// Addr returns the advertised address of this node.
func (g *Gossip) Addr() string { return g.t.addr }

// Close ends ReadFrom and Accept, for good.
func (g *Gossip) Close() error {
	if g.closed.Swap(true) {
		return nil
	}
	_ = g.t.udp.SetReadDeadline(time.Unix(1, 0)) // fails only if the socket is closed
	return g.streams.Close()
}
