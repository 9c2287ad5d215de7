package merge

import (
	"math"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// wordMerge is the three-way merge of the elements in one word of eight bytes. Its
// result is what Merge gives, bit for bit.
type wordMerge func(base, working, incoming uint64) uint64

// mergeOfWords returns the merge of the words of the section.
func (s section) mergeOfWords() wordMerge {
	switch s.op {
	case opSum:
		return s.sumOfWords()
	case opLast:
		switch s.unit {
		case 1:
			return lastWord[uint8]
		case 2:
			return lastWord[uint16]
		case 4:
			return lastWord[uint32]
		}
		return lastWord[uint64]
	}
	switch s.unit {
	case 1:
		return betterWord[uint8](s)
	case 2:
		return betterWord[uint16](s)
	case 4:
		return betterWord[uint32](s)
	}
	return betterWord[uint64](s)
}

func (s section) sumOfWords() wordMerge {
	switch s.dtype {
	case dsm.DTypeF64:
		return sumF64
	case dsm.DTypeF32:
		return sumF32
	case dsm.DTypeF16:
		return sumF16
	case dsm.DTypeBF16:
		return sumBF16
	case dsm.DTypeU8, dsm.DTypeI8:
		return sumWord[uint8]
	case dsm.DTypeU16, dsm.DTypeI16:
		return sumWord[uint16]
	case dsm.DTypeU32, dsm.DTypeI32:
		return sumWord[uint32]
	}
	return sumWord[uint64]
}

// lastWord takes the lanes of w that were stored to, and those of n otherwise.
func lastWord[T word](b, w, n uint64) uint64 {
	own := nonzero[T](w^b) * uint64(^T(0))
	return w&own | n&^own
}

// sumWord returns w + (n-b) in each lane, without a carry from one lane to the next: the highest
// bits of the lanes are left out of the arithmetic and added afterwards.
func sumWord[T word](b, w, n uint64) uint64 {
	var t T
	high := lowBits[T]() << (unsafe.Sizeof(t)*8 - 1)
	d := (n | high) - b&^high ^ (n^^b)&high
	return w&^high + d&^high ^ (w^d)&high
}

func sumF64(b, w, n uint64) uint64 {
	switch b {
	case w:
		return n
	case n:
		return w
	}
	return math.Float64bits(math.Float64frombits(n) + (math.Float64frombits(w) - math.Float64frombits(b)))
}

func sumF32(b, w, n uint64) uint64 {
	return uint64(sumOneF32(uint32(b), uint32(w), uint32(n))) |
		uint64(sumOneF32(uint32(b>>32), uint32(w>>32), uint32(n>>32)))<<32
}

func sumOneF32(b, w, n uint32) uint32 {
	switch b {
	case w:
		return n
	case n:
		return w
	}
	return math.Float32bits(math.Float32frombits(n) + (math.Float32frombits(w) - math.Float32frombits(b)))
}

func sumF16(b, w, n uint64) (sum uint64) {
	for at := 0; at < 64; at += 16 {
		x, y, z := uint16(b>>at), uint16(w>>at), uint16(n>>at)
		switch x {
		case y:
			y = z
		case z:
		default:
			y = roundF16(f16ToFloat(z) + (f16ToFloat(y) - f16ToFloat(x)))
		}
		sum |= uint64(y) << at
	}
	return sum
}

func sumBF16(b, w, n uint64) (sum uint64) {
	for at := 0; at < 64; at += 16 {
		x, y, z := uint16(b>>at), uint16(w>>at), uint16(n>>at)
		switch x {
		case y:
			y = z
		case z:
		default:
			wide := func(v uint16) float32 { return math.Float32frombits(uint32(v) << 16) }
			y = roundBF16(wide(z) + (wide(y) - wide(x)))
		}
		sum |= uint64(y) << at
	}
	return sum
}
