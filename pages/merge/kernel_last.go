package merge

import (
	"encoding/binary"
	"math/bits"
)

// word is an element that is only moved.
type word interface {
	uint8 | uint16 | uint32 | uint64
}

// mergeLast merges incoming into working by the rule last: units of working that equal base take
// the incoming value. The three slices are parts of pages at equal offsets, which need not be word
// boundaries.
func mergeLast(unit int, base, working, incoming []byte) {
	switch unit {
	case 1:
		mergeWords[uint8](base, working, incoming)
	case 2:
		mergeWords[uint16](base, working, incoming)
	case 4:
		mergeWords[uint32](base, working, incoming)
	case 8:
		mergeWords[uint64](base, working, incoming)
	}
}

func mergeWords[T word](base, working, incoming []byte) {
	b, w, n := words(base), words(working), words(incoming)
	b, n = b[:len(w)], n[:len(w)]
	for i, v := range w {
		low := nonzero[T](v ^ b[i])
		own := low * uint64(^T(0)) // all bits of the lanes that were stored to
		w[i] = v&own | n[i]&^own
	}
	// The rest is shorter than a word: the section does not end at a word boundary.
	done := len(w) * 8
	be, we, ne := view[T](base[done:]), view[T](working[done:]), view[T](incoming[done:])
	for i := range we {
		if we[i] == be[i] {
			we[i] = ne[i]
		}
	}
}

// gatherUnits moves the units of m together at the start of page; what follows them is undefined.
// No unit is overwritten before it was read, because units only move down.
func gatherUnits(m *mask, unit int, page []byte) {
	switch unit {
	case 1:
		gatherBytes(m, page)
	case 2:
		gather(m, view[uint16](page))
	case 4:
		gather(m, view[uint32](page))
	case 8:
		gather(m, view[uint64](page))
	}
}

// scatterUnits is the inverse of gatherUnits: it copies data, one unit after the other, to the
// units of m in page. data may be longer.
func scatterUnits(m *mask, unit int, page, data []byte) {
	switch unit {
	case 1:
		scatterBytes(m, page, data)
	case 2:
		scatter(m, view[uint16](page), view[uint16](data))
	case 4:
		scatter(m, view[uint32](page), view[uint32](data))
	case 8:
		scatter(m, view[uint64](page), view[uint64](data))
	}
}

// longRuns reports whether the units of a mask word form runs that are long enough for a call of
// copy each.
func longRuns(w uint64) bool { return bits.OnesCount64(w) >= 8*bits.OnesCount64(w&^(w<<1)) }

// gatherRuns is gatherUnits within a page, for units whose index consists of runs. Such pages were
// stored to all over, with few equal units in between; a copy for each run is faster than a look at
// every unit.
func gatherRuns(index []byte, unit int, page []byte) {
	n := 0
	for r := index[3:]; len(r) > 0; r = r[4:] {
		start, length := runAt(r)
		n += copy(page[n:], page[start*unit:(start+length)*unit])
	}
}

// scatterRuns is scatterUnits for units whose index consists of runs; index and data may be longer.
// It returns how much of both it used.
func scatterRuns(index []byte, unit int, page, data []byte) (used, size int) {
	used = 3 + 4*int(binary.LittleEndian.Uint16(index[1:]))
	for r := index[3:used]; len(r) > 0; r = r[4:] {
		start, length := runAt(r)
		size += copy(page[start*unit:(start+length)*unit], data[size:])
	}
	return used, size
}

func gather[T word](m *mask, page []T) {
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
				n += copy(page[n:], from[s:s+c])
				w &^= span(s, s+c)
			}
			continue
		}
		for ; w != 0; w &= w - 1 {
			page[n] = from[bits.TrailingZeros64(w)]
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
