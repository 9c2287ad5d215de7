package transport

import (
	"context"
	"net"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Call asks the node at addr (host:port, or a NodeAddr if only that node may answer) and waits for
// its reply. An error of the other node has its kind, text and node. Without an answer the kind is
// Unavailable, and it is unknown whether the request was carried out. If ctx ends first, the other
// node is told so, and the kind is Timeout or Interrupted.
//
// Requests to one address share a connection. They may overtake each other.
func (t *Transport) Call(ctx context.Context, addr string, req any) (any, error) {
	for {
		t.mu.Lock()
		if t.mu.closed {
			t.mu.Unlock()
			return nil, errs.E(errs.Closed, "call", "")
		}
		c := t.mu.callers[addr]
		if c == nil {
			c = newCaller(t, addr)
			t.mu.callers[addr] = c
			t.wg.Go(c.run)
		}
		t.mu.Unlock()
		reply, err, again := c.call(ctx, req)
		if !again {
			return reply, err
		}
	}
}

// caller is a control connection of this node to another, with the requests on it. It ends with the
// connection; the next Call makes a new one.
type caller struct {
	t     *Transport
	addr  string
	ready chan struct{} // closed when the connection is there or has failed
	out   *frameWriter  // set before ready
	node  dsm.NodeID    // the node that answers; set before ready

	mu struct {
		lockrank.Mutex
		next    uint64
		waiting map[uint64]chan result
		ended   error // why the connection ended; nil until then
	}
}

// result is the answer to one request.
type result struct {
	reply any
	err   error
}

func newCaller(t *Transport, addr string) *caller {
	c := &caller{t: t, addr: addr, ready: make(chan struct{})}
	c.mu.Init("transport.caller")
	c.mu.waiting = make(map[uint64]chan result)
	return c
}

// run connects and reads the replies until the connection ends.
func (c *caller) run() {
	conn, node, err := c.t.dial(c.t.ctx, laneControl, 0, c.addr)
	if err == nil {
		c.node = node
		c.out = newFrameWriter(conn, c.t.cfg.WriteTimeout)
		close(c.ready)
		err = c.read(conn)
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
	for _, ch := range c.mu.waiting {
		ch <- result{err: err}
	}
	clear(c.mu.waiting)
	c.mu.Unlock()
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
			return &errs.Error{Op: "call", Node: c.node, Kind: errs.Unavailable, Err: err}
		}
		f.Release()
		res := result{reply: f.Msg}
		if fail, ok := f.Msg.(*wire.Failure); ok {
			res = result{err: fail.Err()}
		}
		c.mu.Lock()
		if ch := c.mu.waiting[f.Req]; ch != nil { // otherwise nobody waits any more
			delete(c.mu.waiting, f.Req)
			ch <- res
		}
		c.mu.Unlock()
	}
}

// call makes one request. again reports that the connection had ended before anything was sent.
func (c *caller) call(ctx context.Context, req any) (reply any, err error, again bool) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, c.gaveUp(ctx), false
	}
	c.mu.Lock()
	if c.mu.ended != nil {
		defer c.mu.Unlock()
		return nil, c.mu.ended, c.out != nil
	}
	c.mu.next++
	id := c.mu.next
	ch := make(chan result, 1)
	c.mu.waiting[id] = ch
	c.mu.Unlock()

	if err := c.out.write(ctx, req, id, false); err != nil {
		c.mu.Lock()
		delete(c.mu.waiting, id)
		c.mu.Unlock()
		if ctx.Err() != nil {
			err = c.gaveUp(ctx)
		}
		return nil, err, false
	}
	select {
	case res := <-ch:
		return res.reply, res.err, false
	case <-ctx.Done():
	}
	c.mu.Lock()
	delete(c.mu.waiting, id)
	c.mu.Unlock()
	c.t.spawn(func() {
		ctx, cancel := context.WithTimeout(c.t.ctx, c.t.cfg.HelloTimeout)
		defer cancel()
		_ = c.out.write(ctx, &wire.Cancel{}, id, false) // if it fails the connection has, which cancels as well
	})
	return nil, c.gaveUp(ctx), false
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
