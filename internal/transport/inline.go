package transport

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A few frames are written by Send itself, without waiting. Waking the writer would double the
// latency of 4 KiB there and back (26 us against 14 us of bare TCP on loopback), and where all
// processors are busy, it may have to wait for one as long as the kernel lets other threads run (3
// ms). What the socket does not accept, and frames that follow each other closely, are left to the
// writer, which puts many into one system call.
const (
	inlineBytes = 256 << 10
	inlineParts = 128                  // elements of a writev
	inlinePause = 5 * time.Microsecond // since the last write
)

// inline is the state of writing from Send; guarded by outbound.mu.
type inline struct {
	raw   syscall.RawConn // of the session; nil if it has none
	seal  *sealed         // the session, if it is encrypted
	busy  bool            // the writer or a Send is writing
	last  time.Time       // end of the last write
	rest  []byte          // what a Send could not write of its frames, as it goes out; it must be written first
	spare batch           // empty; its memory takes turns with the queue's
}

// inlineLocked reports whether Send may write the queue now.
func (o *outbound) inlineLocked() bool {
	q := &o.mu.queue
	return o.mu.raw != nil && q.bytes <= inlineBytes && q.pieces < inlineParts &&
		len(o.mu.rest) == 0 && time.Since(o.mu.last) > inlinePause
}

// writeInlineLocked takes the queue and writes it, with the lock released meanwhile.
func (o *outbound) writeInlineLocked() {
	session, raw, seal, b := o.mu.session, o.mu.raw, o.mu.seal, o.mu.queue
	o.mu.queue, o.mu.spare = o.mu.spare, batch{}
	o.mu.busy, o.mu.writing = true, b.bytes
	o.mu.Unlock()

	o.parts = b.appendTo(o.parts[:0])
	bytes := b.bytes
	if seal != nil {
		out := seal.seal(o.parts)
		clear(o.parts)
		o.parts, bytes = append(o.parts[:0], out), len(out)
	}
	n := writeParts(raw, o.parts, bytes)

	o.mu.Lock()
	o.mu.busy, o.mu.last = false, time.Now()
	if o.mu.session == session { // otherwise it was dropped with its session
		o.mu.writing = bytes - n
		o.mu.rest = appendFrom(o.mu.rest[:0], o.parts, n)
		o.flow.bytes.Add(uint64(n))
		o.flow.frames.Add(uint64(b.frames))
	}
	clear(o.parts)
	b.reset()
	o.mu.spare = b
	if len(o.mu.rest) > 0 || o.mu.queue.frames > 0 {
		o.poke()
	}
}

// writeParts writes what the socket accepts of so many bytes without waiting. Errors are left to the
// writer, which will see them again.
func writeParts(raw syscall.RawConn, parts [][]byte, bytes int) (n int) {
	_ = raw.Write(func(fd uintptr) bool {
		if bytes <= briefBytes {
			n, _ = writevNow(fd, parts)
			return true
		}
		for {
			var err error
			if n, err = unix.Writev(int(fd), parts); err != unix.EINTR {
				return true
			}
		}
	})
	return max(n, 0)
}

// appendFrom appends the bytes of parts after the first n to b.
func appendFrom(b []byte, parts [][]byte, n int) []byte {
	for _, p := range parts {
		skip := min(n, len(p))
		b, n = append(b, p[skip:]...), n-skip
	}
	return b
}
