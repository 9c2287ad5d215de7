package merge

import (
	"math/bits"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// The rules sum and mean have three operations on elements, each written for integers (kernel_int.go), floats
// (kernel_float.go) and 16-bit floats (kernel_half.go):
//
//	subtract   difference = working - base       at the node that publishes
//	add        home       = home + difference    at the home
//	merge      working    = incoming + (working - base)   at a node that receives
//
// Two's complement adds alike with and without sign. Each call is for a block or a page, so that choosing the type below costs nothing for an element.

// subtract writes working-base of the elements in m to out, one after the other. inexact reports
// whether adding one of these to base does not give working.
func (s section) subtract(m *mask, base, working, out []byte) (inexact bool) {
	switch s.dtype {
	case dsm.DTypeF64:
		return subtractFloat[float64, uint64](m, base, working, out)
	case dsm.DTypeF32:
		return subtractFloat32s(m, base, working, out)
	case dsm.DTypeF16, dsm.DTypeBF16:
		return s.half().subtract(m, view[uint16](base), view[uint16](working), view[uint16](out))
	case dsm.DTypeU8, dsm.DTypeI8:
		subtractInt(m, base, working, out)
	case dsm.DTypeU16, dsm.DTypeI16:
		subtractInt(m, view[uint16](base), view[uint16](working), view[uint16](out))
	case dsm.DTypeU32, dsm.DTypeI32:
		subtractInt(m, view[uint32](base), view[uint32](working), view[uint32](out))
	case dsm.DTypeU64, dsm.DTypeI64:
		subtractInt(m, view[uint64](base), view[uint64](working), view[uint64](out))
	}
	return false
}

// add adds data, one element after the other, to the elements of m in page. data may be longer.
func (s section) add(m *mask, page, data []byte) {
	switch s.dtype {
	case dsm.DTypeF64:
		addNumbers(m, view[float64](page), view[float64](data))
	case dsm.DTypeF32:
		addFloat32s(m, view[float32](page), view[float32](data))
	case dsm.DTypeF16, dsm.DTypeBF16:
		s.half().add(m, view[uint16](page), view[uint16](data))
	case dsm.DTypeU8, dsm.DTypeI8:
		addNumbers(m, page, data)
	case dsm.DTypeU16, dsm.DTypeI16:
		addNumbers(m, view[uint16](page), view[uint16](data))
	case dsm.DTypeU32, dsm.DTypeI32:
		addNumbers(m, view[uint32](page), view[uint32](data))
	case dsm.DTypeU64, dsm.DTypeI64:
		addNumbers(m, view[uint64](page), view[uint64](data))
	}
}

// mergeSum merges incoming into working. The three are equal parts of pages.
func (s section) mergeSum(base, working, incoming []byte) {
	switch s.dtype {
	case dsm.DTypeF64:
		mergeFloat[float64, uint64](base, working, incoming)
	case dsm.DTypeF32:
		mergeFloat[float32, uint32](base, working, incoming)
	case dsm.DTypeF16, dsm.DTypeBF16:
		s.half().merge(view[uint16](base), view[uint16](working), view[uint16](incoming))
	case dsm.DTypeU8, dsm.DTypeI8:
		mergeInt(base, working, incoming)
	case dsm.DTypeU16, dsm.DTypeI16:
		mergeInt(view[uint16](base), view[uint16](working), view[uint16](incoming))
	case dsm.DTypeU32, dsm.DTypeI32:
		mergeInt(view[uint32](base), view[uint32](working), view[uint32](incoming))
	case dsm.DTypeU64, dsm.DTypeI64:
		mergeInt(view[uint64](base), view[uint64](working), view[uint64](incoming))
	}
}

// number is an element type that Go can add.
type number interface {
	word | float32 | float64
}

// addNumbers is add for these types.
func addNumbers[T number](m *mask, page, data []T) {
	n := 0
	for i, w := range m {
		if w == 0 {
			continue
		}
		to := page[i*64:]
		if w == ^uint64(0) {
			to, from := to[:64], data[n:n+64]
			for j := range to {
				to[j] += from[j]
			}
			n += 64
			continue
		}
		for ; w != 0; w &= w - 1 {
			to[bits.TrailingZeros64(w)] += data[n]
			n++
		}
	}
}

// addFloat32s is add for the most common type: whole rows that follow each other are added at once.
func addFloat32s(m *mask, page, data []float32) {
	n := 0
	for i := 0; i < len(m); i++ {
		w := m[i]
		if w == ^uint64(0) {
			first := i
			for i+1 < len(m) && m[i+1] == w {
				i++
			}
			to := page[first*64 : (i+1)*64]
			addFloats(to, data[n:])
			n += len(to)
			continue
		}
		for ; w != 0; w &= w - 1 {
			page[i*64+bits.TrailingZeros64(w)] += data[n]
			n++
		}
	}
}
