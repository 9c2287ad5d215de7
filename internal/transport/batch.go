package transport

import (
	"net"
	"time"

	"github.com/dsmfs/dsmfs/internal/wire"
)

const (
	// copyPayload is the largest payload that is copied to the place after its header. Larger ones
	// are written from where they are, as another element of the writev, which is cheaper for
	// these.
	copyPayload = 8 << 10
	// chunkBytes is how much is written within one deadline, so that a session on a slow link does
	// not break as long as it makes progress.
	chunkBytes = 512 << 10
	// chunkParts bounds the elements of one writev; IOV_MAX is 1024.
	chunkParts = 256
	// keepHeads is how much memory for headers an idle queue keeps at most.
	keepHeads = 1 << 20
)

// batch is frames that wait to be written, in order. Headers and small payloads are in one piece of
// memory, large payloads where the sender has them.
type batch struct {
	heads   []byte
	inserts []insert
	pieces  int // in all inserts
	frames  int
	bytes   int
}

// insert is a payload that belongs between heads[:at] and heads[at:].
type insert struct {
	at      int
	payload [][]byte
	shared  *wire.Shared // the buffer that contains payload, or nil
}

// add appends the frame of m. If shared is not nil, it is released when payload is not needed any
// more. On error the batch is unchanged.
func (b *batch) add(m any, payload [][]byte, shared *wire.Shared) error {
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	before := len(b.heads)
	heads, err := wire.Append(b.heads, m, 0, false, n)
	b.heads = heads
	if err != nil {
		release(shared)
		return err
	}
	switch {
	case n == 0:
		release(shared)
	case n <= copyPayload:
		for _, p := range payload {
			b.heads = append(b.heads, p...)
		}
		release(shared)
	default:
		b.inserts = append(b.inserts, insert{at: len(b.heads), payload: payload, shared: shared})
		b.pieces += 1 + len(payload)
		b.bytes += n
	}
	b.frames++
	b.bytes += len(b.heads) - before
	return nil
}

func release(s *wire.Shared) {
	if s != nil {
		s.Release()
	}
}

// reset empties the batch and releases the payloads: they have been written, or are dropped.
func (b *batch) reset() {
	for i := range b.inserts {
		release(b.inserts[i].shared)
	}
	clear(b.inserts)
	b.inserts = b.inserts[:0]
	b.heads = b.heads[:0]
	if cap(b.heads) > keepHeads {
		b.heads = nil
	}
	b.pieces, b.frames, b.bytes = 0, 0, 0
}

// appendTo appends the pieces of memory that make up b, in order.
func (b *batch) appendTo(parts [][]byte) [][]byte {
	from := 0
	for i := range b.inserts {
		parts = append(parts, b.heads[from:b.inserts[i].at])
		parts = append(parts, b.inserts[i].payload...)
		from = b.inserts[i].at
	}
	if from < len(b.heads) {
		parts = append(parts, b.heads[from:])
	}
	return parts
}

// chunker writes batches to a connection.
type chunker struct {
	conn    net.Conn
	seal    *sealed // encrypts; nil: nobody does
	most    int     // bytes of a chunk
	timeout time.Duration
	wrote   func(bytes int) // called after each chunk
	armed   time.Time       // when the deadline was last set
	batch   [][]byte
	parts   net.Buffers
	bytes   int
}

func newChunker(conn net.Conn, timeout time.Duration, wrote func(int)) *chunker {
	c := &chunker{conn: conn, most: chunkBytes, timeout: timeout, wrote: wrote}
	if s, ok := conn.(*sealed); ok {
		c.conn, c.seal, c.most = s.pipe.Conn, s, sealedChunk
	}
	return c
}

// putSealed adds what is to be written as it is, and has been taken out of the connection's bytes
// already.
func (c *chunker) putSealed(p []byte) error {
	seal := c.seal
	if c.seal = nil; seal == nil {
		return c.put(p)
	}
	err := c.put(p)
	if err == nil {
		err = c.flush()
	}
	c.seal = seal
	return err
}

// write writes all of b.
func (c *chunker) write(b *batch) error {
	c.batch = b.appendTo(c.batch[:0])
	defer func() { clear(c.batch) }()
	for _, p := range c.batch {
		if err := c.put(p); err != nil {
			return err
		}
	}
	return c.flush()
}

// put adds p to the chunk, and writes the chunk whenever it is full.
func (c *chunker) put(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), c.most-c.bytes)
		c.parts = append(c.parts, p[:n])
		c.bytes += n
		p = p[n:]
		if c.bytes == c.most || len(c.parts) == chunkParts {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush writes the chunk.
func (c *chunker) flush() error {
	if c.bytes == 0 {
		return nil
	}
	// A tenth of the timeout is exact enough, and saves most of the calls.
	if now := time.Now(); now.Sub(c.armed) > c.timeout/10 {
		if err := c.conn.SetWriteDeadline(now.Add(c.timeout)); err != nil {
			return err
		}
		c.armed = now
	}
	var err error
	switch parts := c.parts; { // WriteTo consumes the slice it is called on
	case c.seal != nil:
		_, err = c.conn.Write(c.seal.seal(parts))
	case len(parts) == 1:
		_, err = c.conn.Write(parts[0])
	default:
		_, err = parts.WriteTo(c.conn)
	}
	n := c.bytes
	clear(c.parts[:cap(c.parts)])
	c.parts, c.bytes = c.parts[:0], 0
	if err != nil {
		return err
	}
	c.wrote(n)
	return nil
}
