package membership

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// network is an in-process network that can be cut, for tests in a bubble of
// testing/synctest: nothing in it waits for anything but channels and time.
type network struct {
	mu    sync.Mutex
	ports map[string]*port
	side  map[string]int // of the partition; addresses on different sides cannot talk
}

// port is one node's Net.
type port struct {
	net     *network
	addr    string
	packets chan packet
	streams chan net.Conn
	done    chan struct{}
	once    sync.Once
}

type packet struct {
	b    []byte
	from net.Addr
}

func newNetwork() *network {
	return &network{ports: make(map[string]*port), side: make(map[string]int)}
}

// listen opens the i-th address; the port there before must be closed.
func (n *network) listen(i int) *port {
	p := &port{
		net: n, addr: fmt.Sprintf("10.0.0.%d:7000", i),
		packets: make(chan packet, 1000), streams: make(chan net.Conn, 10), done: make(chan struct{}),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports[p.addr] = p
	return p
}

// part puts the port on a side of the partition.
func (n *network) part(p *port, side int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.side[p.addr] = side
}

// reach returns the port at addr if p can reach it.
func (p *port) reach(addr string) *port {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.net.side[p.addr] != p.net.side[addr] {
		return nil
	}
	return p.net.ports[addr]
}

func (p *port) WriteTo(b []byte, addr string) error {
	if to := p.reach(addr); to != nil {
		select {
		case to.packets <- packet{append([]byte(nil), b...), net.UDPAddrFromAddrPort(mustAddr(p.addr))}:
		default:
		}
	}
	return nil
}

func (p *port) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case m := <-p.packets:
		return copy(b, m.b), m.from, nil
	case <-p.done:
		return 0, nil, net.ErrClosed
	}
}

func (p *port) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	to := p.reach(addr)
	if to == nil {
		time.Sleep(timeout) // no answer
		return nil, errors.New("timed out")
	}
	here, there := net.Pipe()
	select {
	case to.streams <- there:
		return here, nil
	case <-to.done:
		return nil, errors.New("connection refused")
	}
}

// Open does nothing: a port that is in the network takes streams.
func (p *port) Open() {}

func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.streams:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *port) Addr() string { return p.addr }

func (p *port) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}
