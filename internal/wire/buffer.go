package wire

import (
	"sync"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/invariants"
)

// bufferSizes are the capacities of pooled buffers: a page, a few pages, up to an extent and the
// largest payload.
var bufferSizes = [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, MaxPayload}

var bufferPools [len(bufferSizes)]sync.Pool

// Alloc returns a buffer of n bytes with arbitrary content, from a pool if n is at most MaxPayload.
// Give it back with Free, or drop it.
func Alloc(n int) []byte {
	for i, size := range bufferSizes {
		if n <= size {
			if b, ok := bufferPools[i].Get().(*[]byte); ok {
				return (*b)[:n]
			}
			return make([]byte, n, size)
		}
	}
	return make([]byte, n)
}

// Free gives back a buffer that Alloc returned. Nothing may refer to its bytes afterwards. Buffers
// from elsewhere are left to the garbage collector.
func Free(b []byte) {
	for i, size := range bufferSizes {
		if cap(b) == size {
			b = b[:size]
			if invariants.Enabled {
				for j := range b {
					b[j] = 0xdb
				}
			}
			bufferPools[i].Put(&b)
			return
		}
	}
}

// Shared is a counted buffer: the maker of a payload and each message queued with it have a
// reference. It goes back to the pool when the last reference is released, and not earlier: even
// when the other node has received the bytes, this one may still be reading them. If a reference is
// dropped, for instance with an area that was removed, the buffer is left to the garbage collector.
type Shared struct {
	Bytes []byte
	refs  atomic.Int32
	back  func() // of memory that is lent; nil: it is a buffer of Alloc
}

// Share returns a buffer of n bytes with arbitrary content and one reference.
func Share(n int) *Shared {
	s := new(Shared)
	s.alloc(n)
	return s
}

// Lend returns memory of somebody else as a counted buffer with one reference. Nobody may write to it. back is called when the last reference
// is released, in whatever goroutine does that, perhaps with a lock held: it must not wait.
func Lend(b []byte, back func()) *Shared {
	s := &Shared{Bytes: b[:len(b):len(b)], back: back}
	s.refs.Store(1)
	return s
}

func (s *Shared) alloc(n int) {
	s.Bytes = Alloc(n)
	s.refs.Store(1)
}

// Trim moves the bytes to a smaller buffer if they are few: others can use the large one at once,
// while it is in the processor's caches. The caller must have the only reference, and the memory not be lent.
func (s *Shared) Trim() {
	if len(s.Bytes) > cap(s.Bytes)/4 {
		return
	}
	large := s.Bytes
	s.Bytes = Alloc(len(large))
	copy(s.Bytes, large)
	Free(large)
}

// Retain adds a reference. The caller must have one already.
func (s *Shared) Retain() *Shared {
	s.refs.Add(1)
	return s
}

// Release ends a reference that Share or Retain made. The caller must not touch the bytes afterwards.
func (s *Shared) Release() {
	n := s.refs.Add(-1)
	invariants.Check(n >= 0, "a shared buffer is released more often than it is referred to")
	switch {
	case n > 0:
	case s.back != nil:
		s.Bytes = nil
		s.back()
	default:
		Free(s.Bytes)
		s.Bytes = nil
	}
}
