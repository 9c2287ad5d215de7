package pagetest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// AddOne adds 1 to the element at the start of b, atomically.
func AddOne(dt dsm.DType, b []byte) {
	switch p := unsafe.Pointer(&b[0]); dt {
	case dsm.DTypeI32:
		atomic.AddInt32((*int32)(p), 1)
	case dsm.DTypeI64:
		atomic.AddInt64((*int64)(p), 1)
	case dsm.DTypeF32:
		for p := (*uint32)(p); ; {
			old := atomic.LoadUint32(p)
			if atomic.CompareAndSwapUint32(p, old, math.Float32bits(math.Float32frombits(old)+1)) {
				return
			}
		}
	case dsm.DTypeF64:
		for p := (*uint64)(p); ; {
			old := atomic.LoadUint64(p)
			if atomic.CompareAndSwapUint64(p, old, math.Float64bits(math.Float64frombits(old)+1)) {
				return
			}
		}
	}
}

// ElementAt returns the whole number in the element at the start of b.
func ElementAt(dt dsm.DType, b []byte) int {
	switch le := binary.LittleEndian; dt {
	case dsm.DTypeI32:
		return int(int32(le.Uint32(b)))
	case dsm.DTypeI64:
		return int(le.Uint64(b))
	case dsm.DTypeF32:
		return int(math.Float32frombits(le.Uint32(b)))
	default:
		return int(math.Float64frombits(le.Uint64(b)))
	}
}

// RandomIncrements adds 1 to some elements of page, from one to all, and to their totals.
func RandomIncrements(rng *rand.Rand, dt dsm.DType, page []byte, first int, totals []int) {
	add := func(e int) {
		AddOne(dt, page[e*dt.Size():])
		totals[e]++
	}
	if rng.IntN(3) == 0 {
		for e := first; e < len(totals); e++ {
			add(e)
		}
		return
	}
	for range 1 + rng.IntN(10) {
		add(first + rng.IntN(len(totals)-first))
	}
}
