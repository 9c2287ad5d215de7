package transport

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// Gossip is the lane of membership: datagrams and byte streams. Each datagram begins with 12 bytes,
// magic and cluster; datagrams without these are dropped and counted. In a cluster that encrypts a
// nonce follows, and the rest is AES-GCM with a key of the catalog (guardView.gossip), also between
// nodes of one machine: of a datagram the kernel does not say whose it is.
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
	if g.t.guard == nil {
		p = append(p, b...)
	} else if p, err = g.t.guard.view.Load().wrap(p, b); err != nil {
		return err
	}
	_, err = g.t.udp.WriteToUDPAddrPort(p, to)
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
		at := net.UDPAddrFromAddrPort(from)
		if g.t.guard == nil {
			return copy(b, b[packetPrefix:n]), at, nil
		}
		if n, ok := g.t.guard.view.Load().unwrap(b[:n]); ok {
			return n, at, nil
		}
		g.t.counts.foreign.Add(1)
		g.t.refused.log(g.t.cfg.Log, at, errs.E(errs.Access, "gossip", "a datagram that is not encrypted with a key of this cluster"))
	}
}

// gossipKeys are the keys of gossip: the next, the one in use, the one before.
const (
	gossipInUse = 1
	nonceSize   = 12
)

func gossipCiphers(keys [][]byte) ([]cipher.AEAD, error) {
	var all []cipher.AEAD
	for _, k := range keys {
		block, err := aes.NewCipher(k)
		if err != nil {
			return nil, errs.E(errs.Corrupt, "gossip", "%w", err)
		}
		c, err := cipher.NewGCM(block)
		if err != nil {
			return nil, errs.E(errs.Corrupt, "gossip", "%w", err)
		}
		all = append(all, c)
	}
	return all, nil
}

// wrap appends b to the prefix p, encrypted.
func (v *guardView) wrap(p, b []byte) ([]byte, error) {
	if len(v.gossip) <= gossipInUse {
		return nil, errs.E(errs.Unavailable, "gossip", "this node has not joined a cluster yet")
	}
	var nonce [nonceSize]byte
	_, _ = rand.Read(nonce[:]) // does not fail
	prefix := p
	return v.gossip[gossipInUse].Seal(append(p, nonce[:]...), nonce[:], b, prefix), nil
}

// unwrap decrypts a datagram to its own beginning. ok is false if it was encrypted with another key.
func (v *guardView) unwrap(p []byte) (n int, ok bool) {
	if len(p) < packetPrefix+nonceSize {
		return 0, false
	}
	prefix, nonce, rest := p[:packetPrefix], p[packetPrefix:packetPrefix+nonceSize], p[packetPrefix+nonceSize:]
	for i := range v.gossip {
		// The key in use is the most likely one, and the others are tried after it.
		c := v.gossip[(gossipInUse+i)%len(v.gossip)]
		if plain, err := c.Open(nil, nonce, rest, prefix); err == nil {
			return copy(p, plain), true
		}
	}
	return 0, false
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
