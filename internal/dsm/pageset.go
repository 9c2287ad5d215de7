package dsm

import (
	"iter"
	"math/bits"
)

// PageSet is a set of the pages of one extent: page i is bit i%64 of word i/64.
type PageSet [ExtentPages / 64]uint64

// AllPages is the set of every page of an extent.
var AllPages = PageSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}

// Has reports whether page i is in the set.
func (s *PageSet) Has(i int) bool { return s[i/64]>>(i%64)&1 != 0 }

// Add puts page i into the set.
func (s *PageSet) Add(i int) { s[i/64] |= 1 << (i % 64) }

// Remove takes page i out of the set.
func (s *PageSet) Remove(i int) { s[i/64] &^= 1 << (i % 64) }

// Empty reports whether no page is in the set.
func (s *PageSet) Empty() bool { return *s == PageSet{} }

// Len returns the number of pages in the set.
func (s *PageSet) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Or returns the union.
func (s PageSet) Or(t PageSet) PageSet {
	for i := range s {
		s[i] |= t[i]
	}
	return s
}

// And returns the intersection.
func (s PageSet) And(t PageSet) PageSet {
	for i := range s {
		s[i] &= t[i]
	}
	return s
}

// Minus returns the pages of s that are not in t.
func (s PageSet) Minus(t PageSet) PageSet {
	for i := range s {
		s[i] &^= t[i]
	}
	return s
}

// All yields the pages in increasing order.
func (s PageSet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range s {
			for ; w != 0; w &= w - 1 {
				if !yield(i*64 + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// Runs yields the runs [from, to) of adjacent pages in increasing order.
func (s PageSet) Runs() iter.Seq2[int, int] {
	return func(yield func(from, to int) bool) {
		for from := s.next(0, 0); from < ExtentPages; {
			to := s.next(from, ^uint64(0))
			if !yield(from, to) {
				return
			}
			from = s.next(to, 0)
		}
	}
}

// Next returns the first page from i on that is in the set, ExtentPages if there is none.
func (s *PageSet) Next(i int) int {
	if i >= ExtentPages {
		return ExtentPages
	}
	return s.next(i, 0)
}

// next returns the first page from i on that is in the set, or, with flip all ones,
// that is not.
func (s *PageSet) next(i int, flip uint64) int {
	for w := i / 64; w < len(s); w++ {
		if x := (s[w] ^ flip) >> (i % 64); x != 0 {
			return i + bits.TrailingZeros64(x)
		}
		i = (w + 1) * 64
	}
	return ExtentPages
}

// Range returns the pages [from, to).
func Range(from, to int) PageSet {
	var s PageSet
	for w := range s {
		lo, hi := max(from-w*64, 0), min(to-w*64, 64)
		if lo < hi {
			s[w] = ^uint64(0) << lo & (^uint64(0) >> (64 - hi))
		}
	}
	return s
}
