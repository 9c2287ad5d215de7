package transport

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// outbound is the way to one node: a queue, and a goroutine that connects and writes. It lives
// while SetPeers names the node. If the node was never named it lives for Config.StrangerWait after
// the first frame.
type outbound struct {
	t    *Transport
	id   dsm.NodeID
	flow flow
	wake chan struct{} // has one token when there is something new to look at

	parts [][]byte // of the inline write; belongs to the goroutine that set busy

	mu struct {
		lockrank.Mutex
		addr    string // "" until SetPeers names the node
		queue   batch
		writing int       // bytes taken from the queue and not yet written
		broken  bool      // frames were dropped: the session must end before others are queued
		closed  bool      // for good
		live    bool      // there is a session
		session uint64    // counts them
		reached time.Time // when the node was last known to be in reach; see silence
		inline
		// interrupt ends the attempt to connect or the session; nil between them.
		interrupt func()
	}
}

// SetPeers says to which nodes the data lane connects, with their addresses. Sessions with other
// nodes end.
func (t *Transport) SetPeers(peers map[dsm.NodeID]string) {
	var gone []*outbound
	t.mu.Lock()
	for id, o := range t.mu.out {
		if _, ok := peers[id]; !ok && o.named() {
			delete(t.mu.out, id)
			gone = append(gone, o)
		}
	}
	for id, addr := range peers {
		if id == t.cfg.Self || t.mu.closed {
			continue
		}
		if !t.outboundLocked(id).setAddr(addr) {
			delete(t.mu.out, id) // it gave up at this moment
			t.outboundLocked(id).setAddr(addr)
		}
	}
	t.mu.Unlock()
	for _, o := range gone {
		o.close()
	}
}

// Send queues a message and its payload for a node. It never blocks and calls nothing outside. The
// message is encoded before Send returns. The payload's bytes must never change afterwards: they
// may be read until the session ends.
//
// more says that this message may wait: the caller sends the node another one at once, as with
// MSG_MORE of send(2), or calls Flush. Messages sent to a node by OnFrame while it handles a frame
// of that node need no Flush: they leave when all frames that have arrived are handled, or many of
// them.
//
// A message that cannot be encoded is a bug of the caller: it is logged and dropped.
func (t *Transport) Send(to dsm.NodeID, m any, payload [][]byte, more bool) {
	t.send(to, m, payload, nil, more)
}

// SendShared is Send for a counted payload. The caller's reference passes to the transport, which
// releases it when the bytes have been written or are dropped.
func (t *Transport) SendShared(to dsm.NodeID, m any, payload *wire.Shared, more bool) {
	t.send(to, m, [][]byte{payload.Bytes}, payload, more)
}

// Flush sends messages that wait for more.
func (t *Transport) Flush(to dsm.NodeID) {
	t.mu.Lock()
	o := t.mu.out[to]
	t.mu.Unlock()
	if o != nil {
		o.flush()
	}
}

func (t *Transport) send(to dsm.NodeID, m any, payload [][]byte, shared *wire.Shared, more bool) {
	if to == t.cfg.Self || to == 0 {
		invariants.Check(false, "%T sent to %v by itself", m, to)
		t.cfg.Log.Error("message to no other node dropped", "to", to)
		release(shared)
		return
	}
	for {
		t.mu.Lock()
		if t.mu.closed {
			t.mu.Unlock()
			release(shared)
			return
		}
		o := t.outboundLocked(to)
		t.mu.Unlock()
		if o.send(m, payload, shared, more) {
			return
		}
		// o was closed since: there is a new one by now, or will be.
		t.forget(o)
	}
}

// outboundLocked returns the way to the node, making it if there is none.
func (t *Transport) outboundLocked(id dsm.NodeID) *outbound {
	o := t.mu.out[id]
	if o == nil {
		o = &outbound{t: t, id: id, wake: make(chan struct{}, 1)}
		o.mu.Init("transport.outbound")
		t.mu.out[id] = o
		t.wg.Go(o.run)
	}
	return o
}

// forget removes a closed outbound.
func (t *Transport) forget(o *outbound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.out[o.id] == o {
		delete(t.mu.out, o.id)
	}
}

func (o *outbound) named() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.addr != ""
}

// setAddr returns false if o is closed.
func (o *outbound) setAddr(addr string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.addr == "" {
		o.mu.reached = time.Now()
	}
	if o.mu.addr != addr {
		o.mu.addr = addr
		o.poke()
	}
	return !o.mu.closed
}

// load returns the bytes that wait, and whether there is a session.
func (o *outbound) load() (int, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.queue.bytes + o.mu.writing, o.mu.live
}

// poke makes the goroutine look at the queue again.
func (o *outbound) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// send queues a frame. If o is closed it returns false and does not take the reference to shared.
func (o *outbound) send(m any, payload [][]byte, shared *wire.Shared, more bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.closed {
		return false
	}
	if o.mu.broken {
		release(shared)
		return true
	}
	if err := o.mu.queue.add(m, payload, shared); err != nil {
		invariants.Check(false, "send to %v: %v", o.id, err)
		o.t.cfg.Log.Error("message dropped", "peer", o.id, "err", err)
	}
	if waiting := o.mu.queue.bytes + o.mu.writing; waiting > o.t.cfg.QueueBytes {
		o.t.cfg.Log.Warn("session broken: the peer takes too little", "peer", o.id, "waiting", waiting)
		o.breakLocked()
		return true
	}
	if !more || o.mu.queue.bytes >= inlineBytes { // waiting would gain nothing for so many bytes
		o.flushLocked()
	}
	return true
}

func (o *outbound) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushLocked()
}

// flushLocked makes sure that the queue is written.
func (o *outbound) flushLocked() {
	switch {
	case o.mu.busy || o.mu.queue.frames == 0: // the goroutine that set busy looks again by itself
	case o.inlineLocked():
		o.writeInlineLocked()
	default:
		o.poke()
	}
}

// breakLocked drops what is queued and ends the session.
func (o *outbound) breakLocked() {
	o.mu.broken = true
	o.mu.queue.reset()
	if o.mu.interrupt != nil {
		o.mu.interrupt()
	}
	o.poke()
}

// close ends o for good.
func (o *outbound) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.closed = true
	o.breakLocked()
}
