package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Call asks the node at addr (host:port, or a NodeAddr if only that node may answer) and waits for
// its reply. An error of the other node has its kind, text and node. Without an answer the kind is
// Unavailable; the request may have been carried out if the error is errs.ErrUnanswered. If it is not, this node has not sent it, or the other one says so of its own
// part. If ctx ends first, the other node is told so, and the kind is Timeout or Interrupted.
//
// Requests to one address share a connection. They may overtake each other.
func (t *Transport) Call(ctx context.Context, addr string, req any) (any, error) {
	for {
		c, err := t.callerOf(addr)
		if err != nil {
			return nil, err
		}
		reply, err, again := c.call(ctx, req)
		if !again {
			return reply, err
		}
	}
}

// Tell makes a request of which only a failure is answered. It returns when the request has been
// written; a failure, also that of writing it, comes by the channel, until forget is called. ctx
// bounds the writing. It does not wait for a connection: where there is none yet, that is the failure,
// and a later Tell may find one.
func (t *Transport) Tell(ctx context.Context, addr string, req any) (failed <-chan error, forget func()) {
	for {
		c, err := t.callerOf(addr)
		if err != nil {
			return told(err), func() {}
		}
		failed, forget, again := c.tell(ctx, req)
		if !again {
			return failed, forget
		}
	}
}

// Ask makes a request and does not wait for the answer: done is called once, with the answer by the goroutine that reads
// it, or with the failure. done must not wait. A request that has no answer within the limit has failed. Where there is no
// connection yet Ask returns false, and done is not called.
func (t *Transport) Ask(limit time.Duration, addr string, req any, done func(reply any, err error)) bool {
	c, err := t.callerOf(addr)
	if err != nil {
		return false
	}
	select {
	case <-c.ready:
	default:
		return false
	}
	var (
		over atomic.Bool   // done has been called, or is being called
		id   atomic.Uint64 // of the request, once it is known here
	)
	ctx, cancel := context.WithTimeout(t.ctx, limit)
	stop := context.AfterFunc(ctx, func() {
		if over.CompareAndSwap(false, true) {
			c.forget(id.Load())
			done(nil, c.gaveUp(ctx))
			cancel()
		}
	})
	end := func(res result) {
		if over.CompareAndSwap(false, true) {
			stop()
			cancel()
			done(res.reply, res.err)
		}
	}
	n, err, _ := c.ask(ctx, req, asker{done: end})
	if err != nil {
		end(result{err: err})
	}
	if id.Store(n); over.Load() {
		c.forget(n) // its time may have been over before its number was known
	}
	return true
}

// told returns a channel that yields the error.
func told(err error) <-chan error {
	ch := make(chan error, 1)
	ch <- err
	return ch
}

// callerOf returns the connection to the address.
func (t *Transport) callerOf(addr string) (*caller, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, errs.E(errs.Closed, "call", "")
	}
	c := t.mu.callers[addr]
	if c == nil {
		c = newCaller(t, addr)
		t.mu.callers[addr] = c
		t.wg.Go(c.run)
	}
	return c, nil
}

// caller is a control connection of this node to another, with the requests on it. It ends with the
// connection; the next Call makes a new one.
type caller struct {
	t     *Transport
	addr  string
	ready chan struct{} // closed when the connection is there or has failed
	gone  chan struct{} // closed when the connection has ended, and the next Call makes a new one
	out   *frameWriter  // set before ready
	node  dsm.NodeID    // the node that answers; set before ready

	mu struct {
		lockrank.Mutex
		next    uint64
		waiting map[uint64]asker
		ended   error // why the connection ended; nil until then
	}
}

// asker is who made a request: one of the three. No channel is ever full.
type asker struct {
	answer  chan result
	failure chan error
	done    func(result)
}

func (a asker) give(res result) {
	switch {
	case a.done != nil:
		a.done(res)
	case a.answer != nil:
		a.answer <- res
	case a.failure != nil && res.err != nil:
		a.failure <- res.err
	}
}

// result is the answer to one request.
type result struct {
	reply any
	err   error
}

func newCaller(t *Transport, addr string) *caller {
	c := &caller{t: t, addr: addr, ready: make(chan struct{}), gone: make(chan struct{})}
	c.mu.Init("transport.caller")
	c.mu.waiting = make(map[uint64]asker)
	return c
}

// run connects and reads the replies until the connection ends.
func (c *caller) run() {
	defer close(c.gone)
	conn, node, err := c.t.dial(c.t.ctx, laneControl, 0, c.addr)
	if err == nil {
		c.node = node
		lane := briefly(conn)
		c.out = newFrameWriter(lane, c.t.cfg.WriteTimeout)
		close(c.ready)
		err = c.read(lane)
		c.t.drop(conn)
	}
	c.t.mu.Lock()
	if c.t.mu.callers[c.addr] == c {
		delete(c.t.mu.callers, c.addr)
	}
	c.t.mu.Unlock()

	if c.t.ctx.Err() != nil {
		err = errs.E(errs.Closed, "call", "")
	}
	c.mu.Lock()
	c.mu.ended = err
	waiting := c.mu.waiting
	c.mu.waiting = nil
	c.mu.Unlock()
	for _, a := range waiting {
		a.give(result{err: err})
	}
	if c.out == nil {
		close(c.ready)
	}
}

// read delivers replies. It returns why it ended, never nil.
func (c *caller) read(conn net.Conn) error {
	r := wire.NewReader(conn)
	for {
		f, err := r.Read()
		if err == nil && !f.Reply {
			err = errs.E(errs.Corrupt, "call", "%T is no reply", f.Msg)
		}
		if err != nil {
			if errs.Is(err, errs.Corrupt) {
				c.t.counts.bad.Add(1)
			}
			return c.unanswered(err)
		}
		f.Release()
		res := result{reply: f.Msg}
		if fail, ok := f.Msg.(*wire.Failure); ok {
			res = result{err: fail.Err()}
		}
		c.mu.Lock()
		a := c.mu.waiting[f.Req] // if there is none, nobody waits any more
		delete(c.mu.waiting, f.Req)
		c.mu.Unlock()
		a.give(res)
	}
}

// call makes one request. again reports that the connection had ended before the request was sent.
func (c *caller) call(ctx context.Context, req any) (reply any, err error, again bool) {
	ch := make(chan result, 1)
	id, err, again := c.ask(ctx, req, asker{answer: ch})
	if err != nil {
		return nil, err, again
	}
	select {
	case res := <-ch:
		return res.reply, res.err, false
	case <-ctx.Done():
	}
	c.forget(id)
	c.t.spawn(func() {
		ctx, cancel := context.WithTimeout(c.t.ctx, c.t.cfg.HelloTimeout)
		defer cancel()
		_ = c.out.write(ctx, &wire.Cancel{}, id, false) // if it fails the connection has, which cancels as well
	})
	return nil, c.gaveUp(ctx), false
}

// tell makes one request of which only a failure is answered; again is that of call.
func (c *caller) tell(ctx context.Context, req any) (failed <-chan error, forget func(), again bool) {
	select {
	case <-c.ready:
	default:
		return told(errs.E(errs.Unavailable, "call", "there is no connection to %s yet", c.addr)), func() {}, false
	}
	ch := make(chan error, 1)
	id, err, again := c.ask(ctx, req, asker{failure: ch})
	if err != nil {
		return told(err), func() {}, again
	}
	return ch, func() { c.forget(id) }, false
}

// ask sends one request; again is that of call.
func (c *caller) ask(ctx context.Context, req any, a asker) (id uint64, err error, again bool) {
	select {
	case <-c.ready:
	default:
		select {
		case <-c.ready:
		case <-ctx.Done():
			return 0, c.gaveUp(ctx), false
		}
	}
	c.mu.Lock()
	if c.mu.ended != nil {
		defer c.mu.Unlock()
		return 0, c.mu.ended, c.out != nil
	}
	c.mu.next++
	id = c.mu.next
	c.mu.waiting[id] = a
	c.mu.Unlock()

	if err := c.out.write(ctx, req, id, false); err != nil {
		c.forget(id)
		if ctx.Err() != nil {
			return 0, c.gaveUp(ctx), false
		}
		if errors.Is(err, net.ErrClosed) { // and what reads it does not know yet, or is about to say so
			<-c.gone
			return 0, err, true
		}
		if errs.Is(err, errs.Unavailable) {
			err = c.unanswered(err)
		}
		return 0, err, false
	}
	return id, nil, false
}

// unanswered is the error of a request whose connection ended for that reason.
func (c *caller) unanswered(why error) error { return unanswered("call", c.node, why) }

func unanswered(op string, by dsm.NodeID, why error) error {
	return &errs.Error{Op: op, Node: by, Kind: errs.Unavailable, Err: fmt.Errorf("%w: %w", errs.ErrUnanswered, why)}
}

// forget drops the answer to a request.
func (c *caller) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.waiting, id)
}

// gaveUp returns the error of a call whose ctx ended.
func (c *caller) gaveUp(ctx context.Context) error {
	kind := errs.Interrupted
	if ctx.Err() == context.DeadlineExceeded {
		kind = errs.Timeout
	}
	e := &errs.Error{Op: "call", Kind: kind, Err: context.Cause(ctx)}
	select {
	case <-c.ready: // only then is it known which node answers at the address
		e.Node = c.node
	default:
	}
	return e
}

// spawn runs f on a goroutine unless the transport is closed.
func (t *Transport) spawn(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.closed {
		t.wg.Go(f)
	}
}
