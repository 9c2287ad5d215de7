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

// mergeInt is the three-way merge of integers. It needs no special cases: where working equals base
// the sum is incoming, and where incoming equals base it is working.
func mergeInt[T word](base, working, incoming []T) {
	base, incoming = base[:len(working)], incoming[:len(working)]
	for i := range working {
		working[i] += incoming[i] - base[i]
	}
}
