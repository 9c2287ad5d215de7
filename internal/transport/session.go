package transport

import (
	"context"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// run connects and writes until o is closed.
func (o *outbound) run() {
	defer o.t.forget(o)
	pause := o.t.cfg.RedialMin
	rest := func() {
		o.sleep(pause/2 + rand.N(pause))
		pause = min(2*pause, o.t.cfg.RedialMax)
	}
	for {
		addr, ok := o.address()
		if !ok {
			return
		}
		conn, err := o.connect(addr)
		if err != nil {
			o.t.cfg.Log.Debug("connect", "peer", o.id, "addr", addr, "err", err)
			o.settle(false)
			rest()
			continue
		}
		began := time.Now()
		err = o.session(conn)
		o.t.drop(conn)
		if o.t.ctx.Err() != nil {
			return
		}
		o.t.cfg.Log.Info("session ended", "peer", o.id, "err", err)
		if !o.settle(true) {
			return
		}
		if time.Since(began) < o.t.cfg.RedialMax {
			rest() // as a node that was evicted, and ends every session until it has joined again
		} else {
			pause = o.t.cfg.RedialMin
		}
	}
}

// address waits until there is an address to connect to. It returns false when o is closed, or when
// the node was not named for too long.
func (o *outbound) address() (string, bool) {
	stranger := time.NewTimer(o.t.cfg.StrangerWait)
	defer stranger.Stop()
	for {
		o.mu.Lock()
		addr, closed, broken := o.mu.addr, o.mu.closed, o.mu.broken
		o.mu.Unlock()
		if broken && !o.settle(false) || closed {
			return "", false
		}
		if addr != "" {
			return addr, true
		}
		select {
		case <-o.wake:
		case <-stranger.C:
			o.giveUp()
		}
	}
}

// giveUp closes o if it still has no address.
func (o *outbound) giveUp() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.addr == "" {
		o.mu.closed = true
		o.breakLocked()
	}
}

// settle completes a break: it drops what is left of the session, calls OnReset if there was a
// session or frames were dropped, and lets Send queue again. It returns false if o is closed.
func (o *outbound) settle(session bool) bool {
	o.mu.Lock()
	closed, told := o.mu.closed, session || o.mu.broken
	if told {
		o.mu.queue.reset()
		o.mu.writing = 0
		o.mu.broken = false
	}
	o.mu.Unlock()
	if told && o.t.ctx.Err() == nil {
		o.flow.resets.Add(1)
		o.t.cfg.OnReset(o.id)
	}
	return !closed
}

// interruptible runs f; a break ends it by calling interrupt. If o is already broken f does not
// run.
func (o *outbound) interruptible(interrupt func(), f func()) bool {
	o.mu.Lock()
	if o.mu.broken || o.mu.closed {
		o.mu.Unlock()
		return false
	}
	o.mu.interrupt = interrupt
	o.mu.Unlock()
	f()
	o.mu.Lock()
	o.mu.interrupt = nil
	o.mu.Unlock()
	return true
}

// connectLimit bounds an attempt until there is a connection. The kernel repeats the first packet after 1 s, 3 s and 7 s: to begin anew
// finds out sooner that a link works again.
const connectLimit = 1500 * time.Millisecond

// connect makes one attempt.
func (o *outbound) connect(addr string) (conn net.Conn, err error) {
	ctx, cancel := context.WithCancel(o.t.ctx)
	defer cancel()
	if !o.interruptible(cancel, func() { conn, _, err = o.t.dial(ctx, laneData, o.id, addr) }) {
		return nil, errs.E(errs.Closed, "connect", "")
	}
	return conn, err
}

// sleep waits, unless o is closed meanwhile.
func (o *outbound) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return
		case <-o.wake:
			o.mu.Lock()
			closed := o.mu.closed
			o.mu.Unlock()
			if closed {
				return
			}
		}
	}
}

// session writes what is queued to conn until that fails, the other side closes, or o breaks. It
// returns the reason.
func (o *outbound) session(conn net.Conn) (err error) {
	ended := make(chan error, 1)
	o.t.wg.Go(func() {
		// The other side sends nothing on this connection. Without this read the loss of the last
		// frames would go unnoticed until the next one is sent.
		_, err := under(conn).Read(make([]byte, 1))
		if err == nil {
			err = errs.E(errs.Corrupt, "session", "bytes on the way back")
		}
		conn.Close()
		ended <- err
	})
	if !o.interruptible(func() { conn.Close() }, func() { err = o.write(conn, ended) }) {
		conn.Close()
		err = errs.E(errs.Closed, "session", "")
	}
	return err
}

// write writes until something fails.
func (o *outbound) write(conn net.Conn, ended <-chan error) error {
	o.begin(conn)
	defer o.end()
	w := newChunker(conn, o.t.cfg.WriteTimeout, o.wrote)
	var b batch
	var rest []byte
	for {
		ok, err := o.next(&b, &rest)
		if err != nil {
			return err
		}
		if !ok {
			select {
			case <-o.wake:
			case err := <-ended:
				return err
			}
			continue
		}
		if err = w.putSealed(rest); err == nil {
			err = w.write(&b)
		}
		o.done(&b)
		if err != nil {
			return err
		}
	}
}

// begin makes conn the session.
func (o *outbound) begin(conn net.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.live, o.mu.reached = true, time.Now()
	switch c := conn.(type) {
	case *sealed:
		o.mu.seal, o.mu.raw = c, c.pipe.raw
	case syscall.Conn:
		o.mu.raw, _ = c.SyscallConn() // without it every frame is left to the writer
	}
	if o.mu.raw != nil {
		keepAsking(o.mu.raw)
	}
}

// end undoes begin. A Send that is still writing to the connection will see that the session has
// changed.
func (o *outbound) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.live = false
	o.mu.raw, o.mu.seal = nil, nil
	o.mu.session++
	o.mu.rest = o.mu.rest[:0]
}

// next takes what must be written, if there is something and nothing else writes.
func (o *outbound) next(b *batch, rest *[]byte) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.broken {
		return false, errs.E(errs.Closed, "session", "")
	}
	if o.mu.busy || len(o.mu.rest) == 0 && o.mu.queue.frames == 0 {
		return false, nil
	}
	o.mu.busy = true
	*b, o.mu.queue = o.mu.queue, *b
	*rest, o.mu.rest = o.mu.rest, (*rest)[:0]
	o.mu.writing = b.bytes + len(*rest)
	return true, nil
}

// wrote records that bytes were handed to the kernel.
func (o *outbound) wrote(n int) {
	o.flow.bytes.Add(uint64(n))
	o.mu.Lock()
	o.mu.writing -= n
	o.mu.Unlock()
}

// done completes what next began.
func (o *outbound) done(b *batch) {
	o.flow.frames.Add(uint64(b.frames))
	b.reset()
	o.mu.Lock()
	o.mu.busy, o.mu.last = false, time.Now()
	o.mu.Unlock()
}
