package merge

import (
	"math/bits"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// The rules min and max keep one of the values that were stored, bit for bit: the one that comes first in an order
// of all bit patterns of the type. So the result does not depend on the order in which values arrive, or on how
// often. Floats are in the order of their values, with -0 before +0. A NaN comes first by either rule, so it stays, as it does in numpy.minimum and numpy.maximum.

// order maps the bit patterns of a type to numbers, of which the smallest wins.
type order[T word] struct {
	negative T // the bits to flip in a pattern whose highest bit is set
	all      T // what is flipped in all patterns
	add      T // added afterwards: brings NaNs to the front
	last     T // flipped at the end: reverses the order
}

// orderOf returns the order of a section with the rule min or max.
func orderOf[T word](s section) (o order[T]) {
	high := T(1) << (unsafe.Sizeof(o.all)*8 - 1)
	infinity := uint64(0)
	switch s.dtype {
	case dsm.DTypeF64:
		infinity = 0x7ff << 52
	case dsm.DTypeF32:
		infinity = 0xff << 23
	case dsm.DTypeF16:
		infinity = 0x7c00
	case dsm.DTypeBF16:
		infinity = 0x7f80
	case dsm.DTypeI8, dsm.DTypeI16, dsm.DTypeI32, dsm.DTypeI64:
		o.all = high
	}
	if s.op == opMax {
		o.last = ^T(0)
	}
	if infinity != 0 {
		// As integers positive floats are in order, and negative ones in reverse order. Once flipped they are, from below: negative NaNs,
		// numbers, positive NaNs. NaNs at the far end overflow to the near one.
		o.all, o.negative = high, ^high
		if s.op == opMin {
			o.add = ^(T(infinity) | high)
		} else {
			o.add = -(^T(infinity | uint64(high)))
		}
	}
	return o
}

func (o order[T]) of(x T) T {
	sign := -(x >> (unsafe.Sizeof(x)*8 - 1))
	return (x ^ sign&o.negative ^ o.all + o.add) ^ o.last
}

// worst returns the last pattern of the order.
func (o order[T]) worst() T {
	x := (^o.last - o.add) ^ o.all
	return x ^ -(x>>(unsafe.Sizeof(x)*8-1))&o.negative
}

// better returns the one of two values that the rule keeps.
func (o order[T]) better(x, y T) T {
	if o.of(y) < o.of(x) {
		return y
	}
	return x
}

// worse reports whether the rule prefers base to working in some element of m.
func (s section) worse(m *mask, base, working []byte) bool {
	switch s.unit {
	case 1:
		return worse(orderOf[uint8](s), m, base, working)
	case 2:
		return worse(orderOf[uint16](s), m, view[uint16](base), view[uint16](working))
	case 4:
		return worse(orderOf[uint32](s), m, view[uint32](base), view[uint32](working))
	}
	return worse(orderOf[uint64](s), m, view[uint64](base), view[uint64](working))
}

func worse[T word](o order[T], m *mask, base, working []T) bool {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			j := i*64 + bits.TrailingZeros64(w)
			if o.of(base[j]) < o.of(working[j]) {
				return true
			}
		}
	}
	return false
}

// improve keeps the better one of each element of m in page and its value in data, where they are one after the other. data may be
// longer.
func (s section) improve(m *mask, page, data []byte) {
	switch s.unit {
	case 1:
		improve(orderOf[uint8](s), m, page, data)
	case 2:
		improve(orderOf[uint16](s), m, view[uint16](page), view[uint16](data))
	case 4:
		improve32(orderOf[uint32](s), m, view[uint32](page), view[uint32](data))
	case 8:
		improve(orderOf[uint64](s), m, view[uint64](page), view[uint64](data))
	}
}

func improve[T word](o order[T], m *mask, page, data []T) {
	n := 0
	for i, w := range m {
		if w == 0 {
			continue
		}
		to := page[i*64:]
		if w == ^uint64(0) {
			to, from := to[:64], data[n:n+64]
			for j, v := range from {
				to[j] = o.better(to[j], v)
			}
			n += 64
			continue
		}
		for ; w != 0; w &= w - 1 {
			j := bits.TrailingZeros64(w)
			to[j] = o.better(to[j], data[n])
			n++
		}
	}
}

// improve32 is improve for elements of four bytes: whole rows that follow each other are done at once.
func improve32(o order[uint32], m *mask, page, data []uint32) {
	n := 0
	for i := 0; i < len(m); i++ {
		w := m[i]
		if w == ^uint64(0) {
			first := i
			for i+1 < len(m) && m[i+1] == w {
				i++
			}
			to := page[first*64 : (i+1)*64]
			keepBetter(o, to, data[n:])
			n += len(to)
			continue
		}
		for ; w != 0; w &= w - 1 {
			j := i*64 + bits.TrailingZeros64(w)
			page[j] = o.better(page[j], data[n])
			n++
		}
	}
}

// improveDense keeps the better one of each element of m in page and in values, at the same index.
func (s section) improveDense(m *mask, page, values []byte) {
	switch s.unit {
	case 1:
		improveDense(orderOf[uint8](s), m, page, values)
	case 2:
		improveDense(orderOf[uint16](s), m, view[uint16](page), view[uint16](values))
	case 4:
		o, to, from := orderOf[uint32](s), view[uint32](page), view[uint32](values)
		for lo, hi := range m.runs() {
			keepBetter(o, to[lo:hi], from[lo:])
		}
	case 8:
		improveDense(orderOf[uint64](s), m, view[uint64](page), view[uint64](values))
	}
}

func improveDense[T word](o order[T], m *mask, page, values []T) {
	for lo, hi := range m.runs() {
		from := values[lo:hi]
		to := page[lo:hi][:len(from)]
		for j, v := range from {
			to[j] = o.better(to[j], v)
		}
	}
}

// mergeBetter is the three-way merge by the rules min and max. The three are equal parts of pages.
func (s section) mergeBetter(base, working, incoming []byte) {
	switch s.unit {
	case 1:
		mergeBetter(orderOf[uint8](s), base, working, incoming)
	case 2:
		mergeBetter(orderOf[uint16](s), view[uint16](base), view[uint16](working), view[uint16](incoming))
	case 4:
		mergeBetter(orderOf[uint32](s), view[uint32](base), view[uint32](working), view[uint32](incoming))
	case 8:
		mergeBetter(orderOf[uint64](s), view[uint64](base), view[uint64](working), view[uint64](incoming))
	}
}

func mergeBetter[T word](o order[T], base, working, incoming []T) {
	base, incoming = base[:len(working)], incoming[:len(working)]
	for i, w := range working {
		working[i] = o.three(base[i], w, incoming[i])
	}
}

// three is the three-way merge of one element.
func (o order[T]) three(b, w, n T) T {
	switch b {
	case w:
		return n
	case n:
		return w
	}
	return o.better(w, n)
}

// betterWord is the merge of the elements in one word.
func betterWord[T word](s section) wordMerge {
	o := orderOf[T](s)
	size := int(unsafe.Sizeof(o.all)) * 8
	return func(b, w, n uint64) (all uint64) {
		for at := 0; at < 64; at += size {
			all |= uint64(o.three(T(b>>at), T(w>>at), T(n>>at))) << at
		}
		return all
	}
}
