package pages

import "math/bits"

// word is an element that is only moved.
type word interface {
	uint8 | uint16 | uint32 | uint64
}

// mergeLast merges incoming into working by the rule last: units of working that
// are as in base take the incoming value. The three are parts of pages that
// begin at equal offsets, which need not be those of whole words.
func mergeLast(unit int, base, working, incoming []byte) {
	l := lanesOf[unit]
	b, w, n := words(base), words(working), words(incoming)
	b, n = b[:len(w)], n[:len(w)]
	for i := range w {
		x := w[i] ^ b[i]
		if x == 0 {
			w[i] = n[i]
			continue
		}
		own := l.nonzero(x) * l.fill
		w[i] = w[i]&own | n[i]&^own
	}
	// What is left is shorter than a word: a header that ends within one.
	for i := len(w) * 8; i < len(working); i += unit {
		if string(working[i:i+unit]) == string(base[i:i+unit]) {
			copy(working[i:i+unit], incoming[i:i+unit])
		}
	}
}

// gatherUnits copies the units of m, one after the other, from page to out.
func gatherUnits(m *mask, unit int, page, out []byte) {
	switch unit {
	case 1:
		gather(m, page, out)
	case 2:
		gather(m, view[uint16](page), view[uint16](out))
	case 4:
		gather(m, view[uint32](page), view[uint32](out))
	case 8:
		gather(m, view[uint64](page), view[uint64](out))
	}
}

// scatterUnits is the inverse of gatherUnits: it copies data, one unit after the
// other, to the units of m in page. data may go on beyond them.
func scatterUnits(m *mask, unit int, page, data []byte) {
	switch unit {
	case 1:
		scatter(m, page, data)
	case 2:
		scatter(m, view[uint16](page), view[uint16](data))
	case 4:
		scatter(m, view[uint32](page), view[uint32](data))
	case 8:
		scatter(m, view[uint64](page), view[uint64](data))
	}
}

// longRuns reports whether the units of a mask word come in runs that are worth
// a call of copy each.
func longRuns(w uint64) bool { return bits.OnesCount64(w) >= 8*bits.OnesCount64(w&^(w<<1)) }

func gather[T word](m *mask, page, out []T) {
	n := 0
	for i, w := range m {
		if w == 0 {
			continue
		}
		from := page[i*64:]
		if longRuns(w) {
			for w != 0 {
				s := bits.TrailingZeros64(w)
				c := bits.TrailingZeros64(^(w >> s))
				n += copy(out[n:], from[s:s+c])
				w &^= span(s, s+c)
			}
			continue
		}
		for ; w != 0; w &= w - 1 {
			out[n] = from[bits.TrailingZeros64(w)]
			n++
		}
	}
}

func scatter[T word](m *mask, page, data []T) {
	n := 0
	for i, w := range m {
		if w == 0 {
			continue
		}
		to := page[i*64:]
		if longRuns(w) {
			for w != 0 {
				s := bits.TrailingZeros64(w)
				c := bits.TrailingZeros64(^(w >> s))
				n += copy(to[s:s+c], data[n:])
				w &^= span(s, s+c)
			}
			continue
		}
		for ; w != 0; w &= w - 1 {
			to[bits.TrailingZeros64(w)] = data[n]
			n++
		}
	}
}
