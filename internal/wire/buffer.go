package wire

import (
	"sync"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/invariants"
)

// bufferSizes are the capacities of pooled buffers: a page, a few pages, up to
// an extent and the largest payload.
var bufferSizes = [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, MaxPayload}

var bufferPools [len(bufferSizes)]sync.Pool

// Alloc returns a buffer of n bytes with any content, from a pool if n is at
// most MaxPayload. Hand it back with Free, or drop it.
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

// Free hands back a buffer that Alloc returned. Nothing may refer to its bytes
// afterwards. Buffers of another origin are left to the garbage collector.
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

// Shared is a buffer that several hold at a time: who made a payload, and each
// message that is queued with it. It goes back to the pool when the last of them
// has released it, not before: that the other node has received the bytes does not
// say that this one is done with reading them. One that is lost, as with an area that
// was removed, is left to the garbage collector.
type Shared struct {
	Bytes   []byte
	holders atomic.Int32
}

// Share returns a buffer of n bytes with any content, held once.
func Share(n int) *Shared {
	s := &Shared{Bytes: Alloc(n)}
	s.holders.Store(1)
	return s
}

// Trim moves bytes that are few to a smaller buffer: the large one is of use to others at once,
// while it is in the processor's caches. The caller alone holds it.
func (s *Shared) Trim() {
	if len(s.Bytes) > cap(s.Bytes)/4 {
		return
	}
	large := s.Bytes
	s.Bytes = Alloc(len(large))
	copy(s.Bytes, large)
	Free(large)
}

// Hold adds a holder. The caller is one already.
func (s *Shared) Hold() *Shared {
	s.holders.Add(1)
	return s
}

// Release ends what Share or Hold began. The caller does not touch the bytes
// afterwards.
func (s *Shared) Release() {
	n := s.holders.Add(-1)
	invariants.Check(n >= 0, "a shared buffer is released more often than held")
	if n == 0 {
		Free(s.Bytes)
		s.Bytes = nil
	}
}
