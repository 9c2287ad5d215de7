package transport

import (
	"context"
	"net"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// frameWriter writes whole frames of the control lane, one at a time.
type frameWriter struct {
	conn    net.Conn
	timeout time.Duration
	turn    chan struct{} // has one token: the goroutine that takes it may write
	buf     []byte        // belongs to the goroutine that has the turn, as armed does
	armed   time.Time     // when the deadline was last set
}

func newFrameWriter(conn net.Conn, timeout time.Duration) *frameWriter {
	w := &frameWriter{conn: conn, timeout: timeout, turn: make(chan struct{}, 1)}
	w.turn <- struct{}{}
	return w
}

// write writes m. If it fails halfway the connection is closed.
func (w *frameWriter) write(ctx context.Context, m any, req uint64, reply bool) error {
	select {
	case <-w.turn:
	default:
		select {
		case <-w.turn:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { w.turn <- struct{}{} }()
	b, err := wire.Append(w.buf[:0], m, req, reply, 0)
	if err != nil {
		return err
	}
	if w.buf = b; cap(b) > copyPayload {
		w.buf = nil
	}
	if err := w.put(ctx, b); err != nil {
		w.conn.Close()
		return errs.E(errs.Unavailable, "call", "%w", err)
	}
	return nil
}

// put writes b until the timeout or the end of ctx.
func (w *frameWriter) put(ctx context.Context, b []byte) error {
	// A tenth of the timeout is exact enough, and saves most of the calls.
	if now := time.Now(); now.Sub(w.armed) > w.timeout/10 {
		if err := w.conn.SetWriteDeadline(now.Add(w.timeout)); err != nil {
			return err
		}
		w.armed = now
	}
	if c, ok := w.conn.(*brief); ok { // nearly always the socket takes it all, and nobody waits
		n, err := c.writeNow(b)
		if b = b[n:]; err != nil || len(b) == 0 {
			return err
		}
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.conn.SetWriteDeadline(time.Unix(1, 0)) // fails only if the connection is closed
		close(fired)
	})
	_, err := w.conn.Write(b)
	if !stop() {
		<-fired // otherwise it could hit the next write's deadline
		w.armed = time.Time{}
	}
	return err
}
