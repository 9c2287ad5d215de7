package merge

import (
	"math/bits"
	"unsafe"
)

// float is a type with float arithmetic; pattern is the integer type of the same size. An element
// is added as a float but compared as a pattern, because NaN equals nothing and the two zeroes
// equal each other.
type float interface{ float32 | float64 }
type pattern interface{ uint32 | uint64 }

// bitsOf returns the bits of f.
func bitsOf[U pattern, F float](f F) U { return *(*U)(unsafe.Pointer(&f)) }

// subtractFloat is subtract for floats.
func subtractFloat[F float, U pattern](m *mask, base, working, out []byte) (inexact bool) {
	bf, wf, wu, of := view[F](base), view[F](working), view[U](working), view[F](out)
	n := 0
	for i, w := range m {
		if w == 0 {
			continue
		}
		b, v, u := bf[i*64:], wf[i*64:], wu[i*64:]
		if w == ^uint64(0) {
			b, v, u, o := b[:64], v[:64], u[:64], of[n:n+64]
			var off U
			for j := range o {
				d := v[j] - b[j]
				o[j] = d
				off |= bitsOf[U](b[j]+d) ^ u[j]
			}
			inexact = inexact || off != 0
			n += 64
			continue
		}
		for ; w != 0; w &= w - 1 {
			j := bits.TrailingZeros64(w)
			d := v[j] - b[j]
			of[n] = d
			inexact = inexact || bitsOf[U](b[j]+d) != u[j]
			n++
		}
	}
	return inexact
}

// subtractFloat32s is subtractFloat for the most common type, and a page of which all elements are in m, but those of the header.
func subtractFloat32s(m *mask, base, working, out []byte) (inexact bool) {
	lo, hi := -1, 0
	for from, to := range m.runs() {
		if lo >= 0 {
			return subtractFloat[float32, uint32](m, base, working, out)
		}
		lo, hi = from, to
	}
	if lo < 0 {
		return false
	}
	return subtractFloats(view[float32](base)[lo:hi], view[float32](working)[lo:hi], view[float32](out))
}

// mergeFloat is the three-way merge of floats.
func mergeFloat[F float, U pattern](base, working, incoming []byte) {
	bf, wf, nf := view[F](base), view[F](working), view[F](incoming)
	bu, wu, nu := view[U](base), view[U](working), view[U](incoming)
	bf, nf, bu, wu, nu = bf[:len(wf)], nf[:len(wf)], bu[:len(wf)], wu[:len(wf)], nu[:len(wf)]
	for i := range wf {
		switch b := bu[i]; b {
		case wu[i]:
			wu[i] = nu[i]
		case nu[i]:
		default:
			wf[i] = nf[i] + (wf[i] - bf[i])
		}
	}
}
