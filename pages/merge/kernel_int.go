package merge

import "math/bits"

// subtractInt is subtract for integers: they wrap, so nothing is inexact.
func subtractInt[T word](m *mask, base, working, out []T) {
	n := 0
	for i, w := range m {
		if w == 0 {
			continue
		}
		b, v := base[i*64:], working[i*64:]
		if w == ^uint64(0) {
			b, v, d := b[:64], v[:64], out[n:n+64]
			for j := range d {
				d[j] = v[j] - b[j]
			}
			n += 64
			continue
		}
		for ; w != 0; w &= w - 1 {
			j := bits.TrailingZeros64(w)
			out[n] = v[j] - b[j]
			n++
		}
	}
}

// mergeInt is the three-way merge of integers, for which no case is special:
// the sum gives incoming where working is base and working where incoming is.
func mergeInt[T word](base, working, incoming []T) {
	base, incoming = base[:len(working)], incoming[:len(working)]
	for i := range working {
		working[i] += incoming[i] - base[i]
	}
}
