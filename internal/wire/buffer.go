package wire

import (
	"sync"

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
