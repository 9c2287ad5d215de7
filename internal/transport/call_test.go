package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// answering returns a node whose OnCall is f.
func answering(t testing.TB, self dsm.NodeID, f func(ctx context.Context, from dsm.NodeID, id uint64) (any, error)) *node {
	return newNode(t, self, func(c *Config) {
		c.OnCall = func(ctx context.Context, from dsm.NodeID, req any) (any, error) {
			return f(ctx, from, req.(*wire.PushAck).ID)
		}
	})
}

// echo answers with the number that was asked with.
func echo(_ context.Context, _ dsm.NodeID, id uint64) (any, error) {
	return &wire.PushAck{ID: id}, nil
}

func TestCall(t *testing.T) {
	a := newNode(t, 1, nil)
	b := answering(t, 2, echo)
	var wg sync.WaitGroup
	for i := range uint64(200) {
		wg.Go(func() {
			reply, err := a.Call(t.Context(), b.Addr(), &wire.PushAck{ID: i})
			if err != nil || reply.(*wire.PushAck).ID != i {
				t.Errorf("call %d: %v, %v", i, reply, err)
			}
		})
	}
	wg.Wait()
	if a.mu.Lock(); len(a.conns) != 1 {
		t.Errorf("%d connections, want one", len(a.conns))
	}
	a.mu.Unlock()
}

// A node that has joined nothing can ask.
func TestCallOfJoiner(t *testing.T) {
	a := newNode(t, 1, nil)
	a.SetCluster(0)
	b := answering(t, 2, func(_ context.Context, from dsm.NodeID, id uint64) (any, error) {
		return &wire.PushAck{ID: uint64(from)}, nil
	})
	reply, err := a.Call(t.Context(), b.Addr(), &wire.PushAck{})
	if err != nil || reply.(*wire.PushAck).ID != 1 {
		t.Fatalf("%v, %v", reply, err)
	}
}

func TestCallErrors(t *testing.T) {
	a := newNode(t, 1, nil)
	b := answering(t, 2, func(_ context.Context, _ dsm.NodeID, id uint64) (any, error) {
		switch id {
		case 1:
			return nil, &errs.Error{Op: "propose", Kind: errs.NotLeader, Path: "/p"}
		case 2:
			return nil, errors.New("plain")
		case 3:
			return struct{}{}, nil
		}
		return &wire.Publish{Index: make([]byte, 2*wire.MaxMessage)}, nil
	})
	silent := newNode(t, 3, nil)
	closed := newNode(t, 4, nil)
	closed.Close()
	other := newNode(t, 5, nil)
	other.SetCluster(99)
	for _, c := range []struct {
		name, addr string
		id         uint64
		kind       errs.Kind
		node       dsm.NodeID
		text       string
	}{
		{"an error", b.Addr(), 1, errs.NotLeader, 2, "propose: /p: node 0000000000000002: not the leader"},
		{"a plain error", b.Addr(), 2, errs.Other, 2, "plain"},
		{"an unregistered reply", b.Addr(), 3, errs.Invalid, 2, "not a registered message"},
		{"a large reply", b.Addr(), 4, errs.TooLarge, 2, "the most is"},
		{"no handler", silent.Addr(), 1, errs.Unsupported, 3, "answers no requests"},
		{"nobody", closed.Addr(), 1, errs.Unavailable, 0, "connection refused"},
		{"another cluster", other.Addr(), 1, errs.Access, 0, "this is cluster"},
		{"another node", NodeAddr(7, b.Addr()), 1, errs.Unavailable, 7, "node 0000000000000007 is not here, but node 0000000000000002"},
		{"a bad node", "x@" + b.Addr(), 1, errs.Invalid, 0, "node id"},
	} {
		_, err := a.Call(t.Context(), c.addr, &wire.PushAck{ID: c.id})
		var e *errs.Error
		if errors.Is(err, errs.ErrUnanswered) || !errs.Is(err, c.kind) || !errors.As(err, &e) || e.Node != c.node || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (kind %v), want kind %v of node %v with %q", c.name, err, errs.KindOf(err), c.kind, c.node, c.text)
		}
	}
	if _, err := a.Call(t.Context(), b.Addr(), struct{}{}); !errs.Is(err, errs.Invalid) {
		t.Errorf("an unregistered request: %v", err)
	}
	if reply, err := a.Call(t.Context(), NodeAddr(2, b.Addr()), &wire.PushAck{ID: 1}); !errs.Is(err, errs.NotLeader) {
		t.Errorf("by node address: %v, %v", reply, err)
	}
}

// The handler's context ends when the caller gives up, and when his connection
// breaks.
func TestCallCancel(t *testing.T) {
	began, ended := make(chan uint64, 10), make(chan error, 10)
	b := answering(t, 2, func(ctx context.Context, _ dsm.NodeID, id uint64) (any, error) {
		began <- id
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	a := newNode(t, 1, nil)
	for _, c := range []struct {
		name string
		end  func(cancel context.CancelFunc)
		kind errs.Kind
	}{
		{"cancelled", func(cancel context.CancelFunc) { cancel() }, errs.Interrupted},
		{"broken", func(context.CancelFunc) { a.breakAll() }, errs.Unavailable},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := a.Call(ctx, b.Addr(), &wire.PushAck{})
			result <- err
		}()
		next(t, "request", began)
		c.end(cancel)
		if err := next(t, "result", result); !errs.Is(err, c.kind) || errors.Is(err, errs.ErrUnanswered) != (c.kind == errs.Unavailable) {
			t.Errorf("%s: %v, want kind %v", c.name, err, c.kind)
		}
		if err := next(t, "end of the handler", ended); err != context.Canceled {
			t.Errorf("%s: the handler's context: %v", c.name, err)
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := a.Call(ctx, b.Addr(), &wire.PushAck{}); !errs.Is(err, errs.Timeout) {
		t.Errorf("deadline: %v", err)
	}
}

// After the connection has broken, the next call makes another.
func TestCallReconnects(t *testing.T) {
	a, b := newNode(t, 1, nil), answering(t, 2, echo)
	for i := range uint64(20) {
		reply, err := a.Call(t.Context(), b.Addr(), &wire.PushAck{ID: i})
		if err != nil || reply.(*wire.PushAck).ID != i {
			t.Fatalf("call %d: %v, %v", i, reply, err)
		}
		a.breakAll()
		// Also before the reader of the connection has seen it: the call was not sent.
		if _, err := a.Call(t.Context(), b.Addr(), &wire.PushAck{ID: i}); err != nil {
			t.Fatalf("call %d, after the connection was closed: %v", i, err)
		}
	}
}

// Calls on a closed transport, and those under way when it closes, fail.
func TestCallClosed(t *testing.T) {
	began := make(chan struct{})
	b := answering(t, 2, func(ctx context.Context, _ dsm.NodeID, _ uint64) (any, error) {
		close(began)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	a := newNode(t, 1, nil)
	result := make(chan error, 1)
	go func() {
		_, err := a.Call(t.Context(), b.Addr(), &wire.PushAck{})
		result <- err
	}()
	next(t, "request", began)
	a.Close()
	if err := next(t, "result", result); !errs.Is(err, errs.Closed) && !errs.Is(err, errs.Unavailable) {
		t.Errorf("under way: %v", err)
	}
	if _, err := a.Call(t.Context(), b.Addr(), &wire.PushAck{}); !errs.Is(err, errs.Closed) {
		t.Errorf("afterwards: %v", err)
	}
	a.Send(2, &wire.PushAck{}, nil, false)
	a.SetPeers(map[dsm.NodeID]string{2: b.Addr()})
}

// A peer that accepts and says nothing costs a call the hello's timeout, or
// less if the caller wants.
func TestCallSilentPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := newNode(t, 1, func(c *Config) { c.HelloTimeout = 50 * time.Millisecond })
	if _, err := a.Call(t.Context(), l.Addr().String(), &wire.PushAck{}); !errs.Is(err, errs.Unavailable) {
		t.Errorf("%v, want unavailable", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("had enough"))
	if _, err := a.Call(ctx, l.Addr().String(), &wire.PushAck{}); !errs.Is(err, errs.Interrupted) || !strings.Contains(err.Error(), "had enough") {
		t.Errorf("%v, want interrupted", err)
	}
}

// TestTell makes requests that are not answered, and others that fail, of which the caller hears.
func TestTell(t *testing.T) {
	handled := make(chan uint64, 100)
	a := newNode(t, 1, nil)
	b := newNode(t, 2, func(c *Config) {
		c.OnNow = func(_ dsm.NodeID, req any) (any, bool) {
			id := req.(*wire.PushAck).ID
			if id%2 == 0 {
				handled <- id
			}
			return nil, id%2 == 0
		}
		c.OnCall = func(_ context.Context, _ dsm.NodeID, req any) (any, error) {
			id := req.(*wire.PushAck).ID
			if handled <- id; id%3 == 0 {
				return nil, errs.E(errs.Busy, "call", "")
			}
			return nil, nil
		}
	})
	if _, err := a.Call(t.Context(), b.Addr(), &wire.PushAck{ID: 3}); !errs.Is(err, errs.Busy) { // which connects
		t.Fatal(err)
	}
	<-handled
	var last <-chan error
	for id := range uint64(12) {
		failed, forget := a.Tell(t.Context(), b.Addr(), &wire.PushAck{ID: id})
		if got := <-handled; got != id {
			t.Fatalf("request %d arrived, want %d", got, id)
		}
		switch {
		case id%2 == 1 && id%3 == 0:
			if err := <-failed; !errs.Is(err, errs.Busy) {
				t.Errorf("request %d: %v, want that the other is busy", id, err)
			}
		case id%3 == 1:
			forget()
		default:
			last = failed
		}
	}
	select {
	case err := <-last:
		t.Errorf("a request that was handled: %v", err)
	default:
	}
	b.Close()
	if err := <-last; !errs.Is(err, errs.Unavailable) {
		t.Errorf("the connection ended: %v", err)
	}
	failed, _ := a.Tell(t.Context(), b.Addr(), &wire.PushAck{})
	if err := <-failed; !errs.Is(err, errs.Unavailable) {
		t.Errorf("to a node that has ended: %v", err)
	}
}

// TestTellDoesNotWaitForAConnection: what is told to a node whose machine does not answer fails at once.
func TestTellDoesNotWaitForAConnection(t *testing.T) {
	dialing, over := make(chan struct{}, 10), make(chan struct{})
	a := newNode(t, 1, func(c *Config) {
		c.Dial = func(context.Context, string, string) (net.Conn, error) {
			dialing <- struct{}{}
			<-over
			return nil, net.ErrClosed
		}
	})
	defer close(over)
	failed, _ := a.Tell(t.Context(), NodeAddr(2, "127.0.0.1:1"), &wire.PushAck{})
	<-dialing
	if err := <-failed; !errs.Is(err, errs.Unavailable) {
		t.Errorf("%v, want that there is no connection", err)
	}
}

// TestAsk makes requests that nobody waits for: what becomes of each is told once, and in time.
func TestAsk(t *testing.T) {
	const limit = 50 * time.Millisecond
	mayDial := make(chan struct{})
	a := newNode(t, 1, func(c *Config) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			<-mayDial
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	b := newNode(t, 2, func(c *Config) {
		c.OnNow = func(_ dsm.NodeID, req any) (any, bool) {
			m := req.(*wire.PushAck)
			if m.ID == 0 {
				return nil, true // it never answers
			}
			return m, m.ID%2 == 0
		}
		c.OnCall = func(context.Context, dsm.NodeID, any) (any, error) { return nil, errs.E(errs.Busy, "call", "") }
	})
	type told struct {
		reply any
		err   error
	}
	outcomes := make(chan told, 100)
	done := func(reply any, err error) { outcomes <- told{reply, err} }
	if a.Ask(limit, b.Addr(), &wire.PushAck{ID: 2}, done) {
		t.Error("asked without a connection")
	}
	close(mayDial)
	if _, err := a.Call(t.Context(), b.Addr(), &wire.PushAck{ID: 1}); !errs.Is(err, errs.Busy) { // which connects
		t.Fatal(err)
	}
	ask := func(limit time.Duration, id uint64) told {
		t.Helper()
		if !a.Ask(limit, b.Addr(), &wire.PushAck{ID: id}, done) {
			t.Fatalf("request %d is not made", id)
		}
		return <-outcomes
	}
	if r, _ := ask(time.Minute, 2).reply.(*wire.PushAck); r == nil || r.ID != 2 {
		t.Errorf("the answer is %+v", r)
	}
	if got := ask(time.Minute, 3); !errs.Is(got.err, errs.Busy) {
		t.Errorf("%v, want that the other is busy", got.err)
	}
	if got := ask(limit, 0); !errs.Is(got.err, errs.Timeout) {
		t.Errorf("no answer: %v", got.err)
	}
	for range 20 { // the answer and the limit come at the same time
		ask(100*time.Microsecond, 2)
	}
	if !a.Ask(time.Minute, b.Addr(), &wire.PushAck{}, done) {
		t.Fatal("a request is not made")
	}
	b.Close()
	if got := <-outcomes; !errs.Is(got.err, errs.Unavailable) {
		t.Errorf("the connection ended: %v", got.err)
	}
	if a.Ask(limit, b.Addr(), &wire.PushAck{ID: 2}, done) {
		<-outcomes // a new connection, or one that has ended: it is told all the same
	}
	select {
	case got := <-outcomes:
		t.Errorf("told twice: %+v", got)
	default:
	}
}
