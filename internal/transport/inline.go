package transport

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A frame that is alone is written by Send itself, without waiting: waking the
// writer would double the latency of 4 KiB there and back (26 us against 14 us
// of bare TCP on loopback). What the socket does not take, and frames that come
// close together, are the writer's, who puts many into one system call.
const (
	inlineBytes = 16 << 10
	inlinePause = 5 * time.Microsecond // since the last write
)

// inline is the part of an outbound that is about writing from Send; guarded
// by outbound.mu.
type inline struct {
	raw   syscall.RawConn // of the session; nil if it has none
	busy  bool            // somebody is writing: the writer or a Send
	last  time.Time       // end of the last write
	rest  []byte          // what a Send left of its frames, to be written first
	spare batch           // empty; its memory takes turns with the queue's
}

// aloneLocked reports whether the queue is one small frame that may be written
// at once.
func (o *outbound) aloneLocked() bool {
	q := &o.mu.queue
	return o.mu.raw != nil && !o.mu.busy && q.frames == 1 && len(q.cuts) == 0 && len(q.heads) <= inlineBytes &&
		len(o.mu.rest) == 0 && time.Since(o.mu.last) > inlinePause
}

// writeInlineLocked takes the queue and writes it, with the lock released meanwhile.
func (o *outbound) writeInlineLocked() {
	session, raw, b := o.mu.session, o.mu.raw, o.mu.queue
	o.mu.queue, o.mu.spare = o.mu.spare, batch{}
	o.mu.busy, o.mu.writing = true, b.bytes
	o.mu.Unlock()

	n := writeNow(raw, b.heads)

	o.mu.Lock()
	o.mu.busy, o.mu.last = false, time.Now()
	if o.mu.session == session { // else it was lost with its session
		o.mu.writing = b.bytes - n
		o.mu.rest = append(o.mu.rest[:0], b.heads[n:]...)
		o.flow.bytes.Add(uint64(n))
		o.flow.frames.Add(uint64(b.frames))
	}
	b.reset()
	o.mu.spare = b
	if len(o.mu.rest) > 0 || o.mu.queue.frames > 0 {
		o.poke()
	}
}

// writeNow writes what the socket takes without waiting. Errors are left to
// the writer, who will meet them again.
func writeNow(raw syscall.RawConn, b []byte) (n int) {
	_ = raw.Write(func(fd uintptr) bool {
		for {
			var err error
			if n, err = unix.Write(int(fd), b); err != unix.EINTR {
				return true
			}
		}
	})
	return max(n, 0)
}
