package membership

import (
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// Net carries gossip: datagrams of up to maxPacket bytes, which may be dropped, and byte streams.
// Transport.Gossip is one.
type Net interface {
	// WriteTo sends a datagram to host:port.
	WriteTo(b []byte, addr string) error
	// ReadFrom waits for a datagram. One goroutine calls it.
	ReadFrom(b []byte) (int, net.Addr, error)
	// Dial opens a byte stream to host:port.
	Dial(addr string, timeout time.Duration) (net.Conn, error)
	// Open admits byte streams of other nodes, which then wait for Accept.
	Open()
	// Accept waits for a byte stream of another node.
	Accept() (net.Conn, error)
	// Addr returns the host:port at which the others reach this node.
	Addr() string
	// Close ends ReadFrom and Accept.
	Close() error
}

// maxPacket bounds a datagram.
const maxPacket = 1400

// carrier makes a Net into the transport that memberlist expects.
type carrier struct {
	net     Net
	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
	once    sync.Once // if Create fails, memberlist shuts down as well as Start
	wg      sync.WaitGroup
}

func newCarrier(n Net) *carrier {
	c := &carrier{net: n, packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), done: make(chan struct{})}
	n.Open() // before anybody can see this node and dial it
	c.wg.Go(c.read)
	c.wg.Go(c.accept)
	return c
}

// read passes datagrams on until the net is closed.
func (c *carrier) read() {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.net.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // errors of the kernel, all of them transient
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-c.done:
				return
			}
		}
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: time.Now()}
		if n == 0 {
			continue // otherwise memberlist would log an error for what anybody can send
		}
		select {
		case c.packets <- p:
		case <-c.done:
			return
		}
	}
}

// accept passes streams on until the net is closed.
func (c *carrier) accept() {
	for {
		conn, err := c.net.Accept()
		if err != nil {
			return
		}
		select {
		case c.streams <- conn:
		case <-c.done:
			conn.Close()
			return
		}
	}
}

// FinalAdvertiseAddr returns the advertised address. memberlist requires it to be numeric.
func (c *carrier) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	host, port, err := net.SplitHostPort(c.net.Addr())
	if err != nil {
		return nil, 0, errs.E(errs.Invalid, "gossip", "%w", err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, 0, errs.E(errs.Invalid, "gossip", "address %q: want a port number", c.net.Addr())
	}
	ip, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return nil, 0, errs.E(errs.Other, "gossip", "advertised address: %w", err)
	}
	if v4 := ip.IP.To4(); v4 != nil {
		return v4, n, nil
	}
	return ip.IP, n, nil
}

// WriteTo sends a datagram.
func (c *carrier) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	return now, c.net.WriteTo(b, addr)
}

// PacketCh returns the channel of incoming datagrams.
func (c *carrier) PacketCh() <-chan *memberlist.Packet { return c.packets }

// DialTimeout opens a stream.
func (c *carrier) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return c.net.Dial(addr, timeout)
}

// StreamCh returns the channel of incoming streams.
func (c *carrier) StreamCh() <-chan net.Conn { return c.streams }

// WriteToAddress is WriteTo; the name adds nothing.
func (c *carrier) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return c.WriteTo(b, a.Addr)
}

// DialAddressTimeout is DialTimeout; the name adds nothing.
func (c *carrier) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return c.DialTimeout(a.Addr, timeout)
}

// Shutdown ends both goroutines.
func (c *carrier) Shutdown() (err error) {
	c.once.Do(func() {
		close(c.done)
		err = c.net.Close()
		c.wg.Wait()
	})
	return err
}

var _ memberlist.NodeAwareTransport = (*carrier)(nil)
