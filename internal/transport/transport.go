package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/trust"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Transport has the sockets of one node and all its connections.
type Transport struct {
	cfg     Config
	addr    string
	tcp     net.Listener
	udp     *net.UDPConn
	cluster atomic.Uint64 // dsm.ClusterID

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of the transport

	raft    atomic.Pointer[Streams]
	gossip  *Gossip
	counts  counts
	refused refusals
	crowd   crowd
	guard   *guard // nil unless Config.Secure

	mu struct {
		lockrank.Mutex
		closed  bool
		conns   map[net.Conn]dsm.NodeID // open ones with the node that a certificate has named, or 0
		out     map[dsm.NodeID]*outbound
		in      map[dsm.NodeID]*inbound
		callers map[string]*caller
	}
}

// Listen opens the sockets and begins to accept. Until SetCluster only the control lane works.
func Listen(cfg Config) (*Transport, error) {
	cfg = cfg.withDefaults()
	if cfg.Self == 0 {
		return nil, errs.E(errs.Invalid, "listen", "the node has no id")
	}
	open := func() (net.Listener, *net.UDPConn, error) { return bind(cfg.Listen, nil) }
	if cfg.Held {
		open = func() (net.Listener, *net.UDPConn, error) { return bindHeld(cfg.Listen, cfg.Heir) }
	}
	l, u, err := open()
	if err != nil {
		return nil, err
	}
	addr, err := advertised(cfg.Advertise, l.Addr().(*net.TCPAddr))
	if err != nil {
		l.Close()
		u.Close()
		return nil, err
	}
	t := &Transport{cfg: cfg, addr: addr, tcp: l, udp: u}
	t.mu.Init("transport.Transport")
	t.refused.init()
	t.crowd.init()
	if cfg.Secure {
		if t.guard, err = newGuard(cfg.Self, cfg.Seed); err != nil {
			l.Close()
			u.Close()
			return nil, err
		}
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.mu.conns = make(map[net.Conn]dsm.NodeID)
	t.mu.out = make(map[dsm.NodeID]*outbound)
	t.mu.in = make(map[dsm.NodeID]*inbound)
	t.mu.callers = make(map[string]*caller)
	t.raft.Store(newStreams(t, laneRaft))
	t.gossip = &Gossip{t: t, streams: newStreams(t, laneGossip)}
	t.wg.Go(t.accept)
	return t, nil
}

// Addr returns the host:port at which the others reach this node.
func (t *Transport) Addr() string { return t.addr }

// ListenAddr returns where it listens.
func (t *Transport) ListenAddr() string { return t.tcp.Addr().String() }

// SetCluster says which cluster this node belongs to.
func (t *Transport) SetCluster(id dsm.ClusterID) { t.cluster.Store(uint64(id)) }

// Close closes every connection, drops what is queued and waits until every goroutine of the
// transport has ended, including running callbacks. It may be called again.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	for c := range t.mu.conns {
		c.Close()
	}
	out := t.mu.out
	t.mu.out = nil
	t.mu.Unlock()

	t.cancel()
	t.tcp.Close()
	t.udp.Close()
	t.raft.Load().Close()
	t.gossip.streams.Close()
	for _, o := range out {
		o.close()
	}
	t.wg.Wait()
	return nil
}

// accept takes connections until the listener closes.
func (t *Transport) accept() {
	for pause := time.Millisecond; ; {
		c, err := t.tcp.Accept()
		if err != nil {
			if t.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Most likely out of file descriptors: others may close some.
			t.cfg.Log.Warn("accept", "err", err)
			select {
			case <-time.After(pause):
			case <-t.ctx.Done():
				return
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		tune(c, t.cfg.WriteTimeout)
		host := hostOf(c.RemoteAddr())
		if !t.crowd.enter(host) {
			t.counts.rejected.Add(1)
			t.refused.log(t.cfg.Log, c.RemoteAddr(), errs.E(errs.Busy, "hello", "too many connections from there have not said who they are"))
			c.Close()
			continue
		}
		if !t.track(c) {
			return
		}
		t.wg.Go(func() { t.admit(c, host) })
	}
}

// track adds c to the connections that Close closes. If the transport is already closed it closes c
// and returns false.
func (t *Transport) track(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		c.Close()
		return false
	}
	t.mu.conns[c] = 0
	return true
}

// upgrade tracks the encrypted connection by in place of the one it is made of.
func (t *Transport) upgrade(c net.Conn, by *sealed) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.conns, c)
	if t.mu.closed {
		c.Close()
		return false
	}
	t.mu.conns[by] = by.peer.Node
	return true
}

// drop closes a tracked connection.
func (t *Transport) drop(c net.Conn) {
	t.mu.Lock()
	delete(t.mu.conns, c)
	t.mu.Unlock()
	c.Close()
}

// admit reads the hello of a new connection and serves its lane.
func (t *Transport) admit(c net.Conn, host string) {
	c, h, err := t.greeted(c)
	if err == nil && h.lane == laneEnroll {
		err = t.enroll(h.from, c)
		t.drop(c)
	}
	t.crowd.leave(host)
	if err != nil {
		if t.ctx.Err() == nil {
			t.counts.rejected.Add(1)
			t.refused.log(t.cfg.Log, c.RemoteAddr(), err)
		}
		t.drop(c)
		return
	}
	switch h.lane {
	case laneData:
		t.receive(h.from, c)
	case laneControl:
		t.serve(h.from, c)
	case laneRaft:
		t.raft.Load().deliver(c)
	case laneGossip:
		t.gossip.streams.deliver(c)
	}
}

// greeted reads and answers the hello.
func (t *Transport) greeted(c net.Conn) (net.Conn, hello, error) {
	if err := c.SetDeadline(time.Now().Add(t.cfg.HelloTimeout)); err != nil {
		return c, hello{}, err
	}
	c, h, why, err := t.introduced(c)
	if err != nil {
		return c, h, err
	}
	if why == nil {
		why = h.judge(t.cfg.Self, dsm.ClusterID(t.cluster.Load()))
	}
	if why == nil {
		why = t.wanted(h.lane)
	}
	err = answer(c, t.cfg.Self, why)
	if why != nil {
		return c, h, why
	}
	if err != nil || h.lane == laneEnroll {
		return c, h, err
	}
	return c, h, c.SetDeadline(time.Time{})
}

// introduced reads the hello, after the handshake of TLS if there is one. why is the refusal of
// somebody who may not say such a hello by this connection.
func (t *Transport) introduced(c net.Conn) (_ net.Conn, h hello, why *errs.Error, err error) {
	if t.guard == nil {
		h, err = readHello(c)
		return c, h, nil, err
	}
	first := make([]byte, len(helloMagic))
	if _, err := io.ReadFull(c, first); err != nil {
		return c, h, nil, err
	}
	if string(first) == helloMagic {
		if h, err = readHello(io.MultiReader(bytes.NewReader(first), c)); err == nil && (t.cfg.apart || !sameUser(c)) {
			why = errs.E(errs.Access, "hello", "this cluster encrypts: mount with --token, and without --insecure")
		}
		return c, h, why, err
	}
	s, err := t.guard.accept(c, first)
	if err != nil {
		return c, h, nil, err
	}
	if !t.upgrade(c, s) {
		return s, h, nil, errs.E(errs.Closed, "hello", "")
	}
	if h, err = readHello(s); err == nil {
		why = t.guard.admits(s, h)
	}
	return s, h, why, err
}

// wanted refuses streams of lanes that are not open.
func (t *Transport) wanted(l lane) *errs.Error {
	if l == laneRaft && !t.raft.Load().open() || l == laneGossip && !t.gossip.streams.open() {
		return errs.E(errs.Unavailable, "hello", "this node does not take part in %s yet", l)
	}
	return nil
}

// dial connects to addr, which may be a NodeAddr, and sends the hello. The connection is tracked.
func (t *Transport) dial(ctx context.Context, l lane, to dsm.NodeID, addr string) (net.Conn, dsm.NodeID, error) {
	return t.dialPinned(ctx, l, to, addr, nil)
}

// dialPinned is dial to a node of which only the fingerprint of its authority is known, unless pin
// is nil.
func (t *Transport) dialPinned(ctx context.Context, l lane, to dsm.NodeID, addr string, pin *trust.Fingerprint) (net.Conn, dsm.NodeID, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.HelloTimeout)
	defer cancel()
	fail := func(err error) (net.Conn, dsm.NodeID, error) {
		kind := errs.KindOf(err)
		if kind == errs.Other {
			kind = errs.Unavailable
		}
		return nil, 0, &errs.Error{Op: "connect", Kind: kind, Node: to, Err: err}
	}
	if id, plain, err := SplitNodeAddr(addr); err != nil {
		return fail(err)
	} else if id != 0 {
		to, addr = id, plain
	}
	plain, err := t.reach(ctx, l, addr)
	if err != nil {
		return fail(err)
	}
	if !t.track(plain) {
		return fail(errs.E(errs.Closed, "connect", ""))
	}
	tune(plain, t.cfg.WriteTimeout)
	stop := context.AfterFunc(ctx, func() { plain.Close() })
	h := hello{
		min: wire.Version, max: wire.Version, lane: l,
		cluster: dsm.ClusterID(t.cluster.Load()), from: t.cfg.Self, to: to,
	}
	c, from, err := t.introduce(ctx, plain, h, pin)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		t.drop(c)
		return fail(err)
	}
	return c, from, nil
}

// reach makes the TCP connection.
func (t *Transport) reach(ctx context.Context, l lane, addr string) (net.Conn, error) {
	if l == laneData {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, connectLimit)
		defer cancel()
	}
	return t.cfg.Dial(ctx, "tcp", addr)
}

// introduce says the hello, after the handshake of TLS unless the other side is of the same user on
// this machine.
func (t *Transport) introduce(ctx context.Context, c net.Conn, h hello, pin *trust.Fingerprint) (net.Conn, dsm.NodeID, error) {
	if t.guard == nil {
		from, err := greet(c, h, t.cfg.HelloTimeout)
		return c, from, err
	}
	if pin == nil && !t.cfg.apart && listensHere(c) {
		from, err := greet(c, h, t.cfg.HelloTimeout)
		if err == nil && !sameUser(c) {
			err = errs.E(errs.Access, "hello", "another user of this machine has answered")
		}
		return c, from, err
	}
	if err := c.SetDeadline(time.Now().Add(t.cfg.HelloTimeout)); err != nil {
		return c, 0, err
	}
	s, err := t.guard.dial(ctx, c, h.to, pin)
	if err != nil {
		return c, 0, err
	}
	if !t.upgrade(c, s) {
		return s, 0, errs.E(errs.Closed, "connect", "")
	}
	from, err := greet(s, h, t.cfg.HelloTimeout)
	if err == nil && from != s.peer.Node {
		err = errs.E(errs.Access, "hello", "node %v answers with the certificate of %v", from, s.peer.Node)
	}
	return s, from, err
}
