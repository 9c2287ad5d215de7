package merge

import (
	"iter"
	"math/bits"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// blockSize is how much of a page is compared at a time. Most blocks of most pages are equal, and
// the vectorised comparison of the runtime skips one in 10 ns.
const blockSize = 512

// mask is a set of the units of a page: unit i, at byte i*unit, is bit i%64 of
// word i/64. A page has 4096/unit of them.
type mask [dsm.PageSize / 64]uint64

// A lane is a unit within a word of eight bytes. The functions below find the lanes that are not
// zero without a branch. They are generic in the size of T so that the compiler knows it: with the
// constants in a table, a dense page takes twice the time.

// lowBits returns the lowest bit of every lane.
func lowBits[T word]() uint64 {
	var t T
	switch unsafe.Sizeof(t) {
	case 1:
		return 0x0101010101010101
	case 2:
		return 0x0001000100010001
	case 4:
		return 0x0000000100000001
	}
	return 1
}

// nonzero returns the lowest bit of every lane of x that is not zero: adding ones
// to the bits below the highest carries into it exactly when one of them is set.
func nonzero[T word](x uint64) uint64 {
	var t T
	high := lowBits[T]() << (unsafe.Sizeof(t)*8 - 1)
	return (x&^high + ^high | x) & high >> (unsafe.Sizeof(t)*8 - 1)
}

// pack moves the lowest bits of the lanes together: lane i to bit i.
func pack[T word](low uint64) uint64 {
	var t T
	switch unsafe.Sizeof(t) {
	case 1:
		return low * 0x0102040810204080 >> 56
	case 2:
		return low * (1<<60 | 1<<45 | 1<<30 | 1<<15) >> 60
	case 4:
		return low * (1<<62 | 1<<31) >> 62
	}
	return low
}

// words views a page, or a part of it, as words of eight bytes.
func words(b []byte) []uint64 { return view[uint64](b) }

// view returns the whole elements of type T in b. b may be unaligned.
func view[T any](b []byte) []T {
	var t T
	n := len(b) / int(unsafe.Sizeof(t))
	if n == 0 {
		return nil // b may end where its allocation does, so there may be no T to point to
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// diff sets m, which is empty, to the units of section s in which base and working differ, and
// reports whether there are any. Each word of working that may differ is read once,
// compared, and stored in snap, which is a page too; other words of snap are undefined.
func (m *mask) diff(s section, base, working, snap []byte) bool {
	found := false
	for from := s.from &^ (blockSize - 1); from < s.to; from += blockSize {
		b, w := base[from:from+blockSize], working[from:from+blockSize]
		if string(b) == string(w) {
			continue
		}
		found = true
		out, units := snap[from:from+blockSize], m[from/s.unit/64:]
		switch s.unit {
		case 1:
			diffBlock1(units, b, w, out)
		case 2:
			diffBlock[uint16](units, words(b), words(w), words(out))
		case 4:
			diffBlock4(units, b, w, out)
		case 8:
			diffBlock[uint64](units, words(b), words(w), words(out))
		}
	}
	if !found {
		return false
	}
	if s.from > 0 || s.to < dsm.PageSize {
		m.keep(s.units())
	}
	return *m != mask{}
}

// diffBlock is diff for one block. In a dense publish nearly all units differ. To find that a word
// of units has no zero lane takes a third of the time of finding out which lanes are zero.
func diffBlock[T word](units []uint64, base, working, snap []uint64) {
	var t T
	lanes := 8 / int(unsafe.Sizeof(t))
	chunk := 64 / lanes // words of eight bytes for a word of units
	low := lowBits[T]()
	high := low << (unsafe.Sizeof(t)*8 - 1)
	for n := 0; len(working) >= chunk; n++ {
		b, w, s := base[:chunk], working[:chunk], snap[:chunk]
		var any, zero uint64
		for i := range w {
			v := w[i]
			s[i] = v
			x := v ^ b[i]
			any |= x
			zero |= (x - low) &^ x & high // stays 0 if no lane of x is zero
		}
		switch {
		case zero == 0:
			units[n] = ^uint64(0)
		case any == 0:
			units[n] = 0
		default:
			var acc uint64
			for i, v := range s {
				acc |= pack[T](nonzero[T](v^b[i])) << (i * lanes & 63)
			}
			units[n] = acc
		}
		base, working, snap = base[chunk:], working[chunk:], snap[chunk:]
	}
}

// keep removes all units but [from, to) from m.
func (m *mask) keep(from, to int) {
	for i := range m {
		lo, hi := max(from-i*64, 0), min(to-i*64, 64)
		if lo >= hi {
			m[i] = 0
			continue
		}
		m[i] &= span(lo, hi)
	}
}

// set adds the units [from, to) to m.
func (m *mask) set(from, to int) {
	for from < to {
		i := from / 64
		end := min(to, i*64+64)
		m[i] |= span(from-i*64, end-i*64)
		from = end
	}
}

// span returns the bits [lo, hi), lo < hi <= 64.
func span(lo, hi int) uint64 { return ^uint64(0) >> (64 - hi + lo) << lo }

// len returns the number of units in m.
func (m *mask) len() (units int) {
	for _, w := range m {
		units += bits.OnesCount64(w)
	}
	return units
}

// count returns the number of units in m and the number of runs of adjacent ones.
func (m *mask) count() (units, runs int) {
	var carry uint64
	for _, w := range m {
		if w == 0 {
			carry = 0
			continue
		}
		units += bits.OnesCount64(w)
		runs += bits.OnesCount64(w &^ (w<<1 | carry))
		carry = w >> 63
	}
	return units, runs
}

// runs yields the runs of adjacent units, as [start, end). The processor cannot predict where these
// begin and end, so the only branch that depends on it is the number of edges in a word.
func (m *mask) runs() iter.Seq2[int, int] {
	return func(yield func(start, end int) bool) {
		var edges mask // units that are in m while the one before is not, or the other way round
		var some, before uint64
		for i, w := range m {
			e := w ^ (w<<1 | before)
			before = w >> 63
			edges[i] = e
			some |= (e | -e) >> 63 << i
		}
		start, within := 0, false
		for ; some != 0; some &= some - 1 {
			i := bits.TrailingZeros64(some)
			for e := edges[i]; e != 0; e &= e - 1 {
				at := i*64 + bits.TrailingZeros64(e)
				if within = !within; within {
					start = at
				} else if !yield(start, at) {
					return
				}
			}
		}
		if within {
			yield(start, len(m)*64)
		}
	}
}

// appendRuns appends the runs of m to r; its units begin at byte off of the area.
func (m *mask) appendRuns(r *Runs, off int64, unit int) {
	for start, end := range m.runs() {
		r.Add(off+int64(start*unit), int64((end-start)*unit))
	}
}

// bytes views m as bytes: unit i is bit i%8 of byte i/8.
func (m *mask) bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(m)), len(m)*8) }
