package transport

import (
	"context"
	"net"
	"sync"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// maxRequests bounds the requests of one control connection that run at the same time; further ones
// wait in the socket.
const maxRequests = 1024

// requests has the requests of one control connection that are running.
type requests struct {
	mu struct {
		lockrank.Mutex
		cancel map[uint64]context.CancelFunc
	}
}

// serve answers the requests of one control connection until it ends.
func (t *Transport) serve(from dsm.NodeID, conn net.Conn) {
	ctx, cancel := context.WithCancel(t.ctx)
	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer t.drop(conn)
	defer cancel()

	lane := briefly(conn)
	out := newFrameWriter(lane, t.cfg.WriteTimeout)
	room := make(chan struct{}, maxRequests)
	var under requests
	under.mu.Init("transport.requests")
	under.mu.cancel = make(map[uint64]context.CancelFunc)
	r := wire.NewReader(lane)
	for {
		f, err := r.Read()
		if err == nil && (f.Reply || f.Req == 0) {
			err = errs.E(errs.Corrupt, "serve", "%T is no request", f.Msg)
		}
		if err != nil {
			if errs.Is(err, errs.Corrupt) {
				t.counts.bad.Add(1)
				t.cfg.Log.Warn("control connection closed", "peer", from, "err", err)
			}
			return
		}
		f.Release()
		if s, ok := conn.(*sealed); ok && !t.guard.mayAsk(s, f.Msg) {
			t.refused.log(t.cfg.Log, conn.RemoteAddr(), errs.E(errs.Access, "serve", "%T by node %v, which is no member", f.Msg, from))
			if err := out.write(t.ctx, wire.FailureOf(errs.E(errs.Access, "call", "node %v is not a member of this cluster", from), t.cfg.Self), f.Req, true); err != nil {
				return
			}
			continue
		}
		if _, ok := f.Msg.(*wire.Cancel); ok {
			under.end(f.Req)
			continue
		}
		if t.cfg.OnNow != nil {
			if reply, handled := t.cfg.OnNow(from, f.Msg); handled {
				if reply != nil {
					t.answer(out, reply, f.Req)
				}
				continue
			}
		}
		select {
		case room <- struct{}{}:
		case <-t.ctx.Done():
			return
		}
		ctx := under.begin(ctx, f.Req)
		handlers.Go(func() {
			reply := t.handle(ctx, from, f.Msg)
			under.end(f.Req)
			defer func() { <-room }()
			if reply != nil {
				t.answer(out, reply, f.Req)
			}
		})
	}
}

// answer writes a reply. If the connection has failed, its reader sees that too.
func (t *Transport) answer(out *frameWriter, reply any, req uint64) {
	if err := out.write(t.ctx, reply, req, true); err != nil && !errs.Is(err, errs.Unavailable) {
		// The reply itself is the problem, not the connection.
		_ = out.write(t.ctx, wire.FailureOf(err, t.cfg.Self), req, true)
	}
}

// handle returns the answer to one request, a Failure if it failed, nil if there is none.
func (t *Transport) handle(ctx context.Context, from dsm.NodeID, req any) any {
	if t.cfg.OnCall == nil {
		return wire.FailureOf(errs.E(errs.Unsupported, "call", "this node answers no requests"), t.cfg.Self)
	}
	reply, err := t.cfg.OnCall(ctx, from, req)
	if err != nil {
		return wire.FailureOf(err, t.cfg.Self)
	}
	return reply
}

// begin returns the context of a request.
func (r *requests) begin(ctx context.Context, id uint64) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.mu.cancel[id]; before != nil {
		before() // an id used twice is a bug of the other side, and harms only that side
	}
	r.mu.cancel[id] = cancel
	return ctx
}

// end ends the context of a request; it may have ended before.
func (r *requests) end(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cancel := r.mu.cancel[id]; cancel != nil {
		cancel()
		delete(r.mu.cancel, id)
	}
}
