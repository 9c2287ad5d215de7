package transport

import (
	"errors"
	"io"
	"net"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// inbound is what a node knows of the sessions that another one had to it.
// The entry stays when a session ends, so that the next one is known not to be the
// first.
type inbound struct {
	flow flow
	// conn and done are the newest session; guarded by Transport.mu.
	conn net.Conn
	done chan struct{} // closed when its reader has ended
}

// receive is the reader of a session: it waits for the reader of the session
// before, tells of the reset unless this is the first, and reads frames until
// the connection breaks or the next session replaces it.
func (t *Transport) receive(from dsm.NodeID, conn net.Conn) {
	done := make(chan struct{})
	defer close(done)
	defer t.drop(conn)

	t.mu.Lock()
	in := t.mu.in[from]
	first := in == nil
	if first {
		in = new(inbound)
		t.mu.in[from] = in
	}
	before, ended := in.conn, in.done
	in.conn, in.done = conn, done
	t.mu.Unlock()

	if !first {
		before.Close()
		<-ended
		t.reset(from, in)
	}
	err := t.readFrames(from, in, conn)
	t.mu.Lock()
	replaced := in.conn != conn
	t.mu.Unlock()
	if replaced || t.ctx.Err() != nil {
		return
	}
	if err != nil {
		t.cfg.Log.Info("incoming session ended", "peer", from, "err", err)
	}
	t.reset(from, in)
}

func (t *Transport) reset(peer dsm.NodeID, in *inbound) {
	if t.ctx.Err() == nil {
		in.flow.resets.Add(1)
		t.cfg.OnReset(peer)
	}
}

// readFrames hands over the frames of one session. The error is nil at the
// end of the stream.
func (t *Transport) readFrames(from dsm.NodeID, in *inbound, conn net.Conn) error {
	r := wire.NewReader(&counted{r: conn, n: &in.flow.bytes})
	for {
		f, err := r.Read()
		if err == nil {
			in.flow.frames.Add(1)
			err = t.cfg.OnFrame(from, f)
			f.Release()
			if err == nil {
				continue
			}
			t.counts.bad.Add(1)
			return err
		}
		if errs.Is(err, errs.Corrupt) {
			t.counts.bad.Add(1)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// counted counts what is read.
type counted struct {
	r io.Reader
	n *atomic.Uint64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n.Add(uint64(n))
	return n, err
}
