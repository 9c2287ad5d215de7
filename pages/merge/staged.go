package merge

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Staged is what several deltas make together of one page, before it is merged: Fold adds a delta, ApplyStaged merges
// the result. It is dense, because the parts of a round mostly are: there is room for all elements of the page, and a
// set of those that some delta has changed. One page at a time stays in the processor's caches from the first part to the
// home's copy: an extent at a time did not, and took twice as long.
//
// All deltas must be of one kernel, which is that of all calls. The zero Staged is empty.
type Staged struct {
	// The elements are in the type in which they add up, in one of three arrays: with their own size, twice and four times that. The
	// index of an element is that in the page. Only what sets has is defined.
	arrays [3][]byte
	sets   []staged // of each section
}

// staged says which elements of a section are there.
type staged struct {
	mask
	all bool // all of them, as mask says too
}

// Reset empties s. It keeps its memory for the next page.
func (s *Staged) Reset() { s.sets = s.sets[:0] }

// array returns the array of elements that take times as much as in the page.
func (s *Staged) array(times int) []byte {
	a := &s.arrays[times/2]
	if *a == nil {
		*a = make([]byte, times*dsm.PageSize)
	}
	return *a
}

// wide returns how many times the size of an element its sum has. Halves add up as f32, and are rounded once. What is
// divided in the end must not wrap before: integers of 8 and 16 bits add up as i32, those of 32 bits as i64. There is
// nothing wider for 64 bits.
func (k Kernel) wide(s section) int {
	if s.op != opSum {
		return 1
	}
	switch s.dtype {
	case dsm.DTypeF16, dsm.DTypeBF16:
		return 2
	case dsm.DTypeF64, dsm.DTypeF32, dsm.DTypeI64, dsm.DTypeU64:
		return 1
	}
	if !k.mean {
		return 1
	}
	return max(4/s.unit, 2)
}

// Fold adds what d has of page p of the area to s, which has nothing of any other page. It adds up the differences (sum, mean), keeps the
// better values (min, max), or takes those of d (last): so of two nodes that changed an element, the one whose delta is folded last wins. d must
// come from AppendDelta or AppendDense, or have passed Validate; s keeps nothing of it.
func (k Kernel) Fold(s *Staged, d *Delta, p dsm.PageIndex) {
	_, i := p.Extent()
	if !d.Pages.Has(i) {
		return
	}
	at := d.at[rank(&d.Pages, i)]
	index, data := d.Index[at.index:], d.Data[at.data:]
	var buf few
	secs := k.sections(p, buf[:0])
	if len(s.sets) == 0 {
		s.sets = slices.Grow(s.sets, len(secs))[:len(secs)]
		clear(s.sets)
	}
	for j, x := range secs {
		set, wide := &s.sets[j], k.wide(x)
		if index[0] == tagAll && wide == 1 && x.foldAll(s.array(1), set, data) {
			index, data = index[1:], data[x.to-x.from:]
			continue
		}
		var m mask
		used, count := m.decode(index, x)
		if count > 0 {
			x.fold(wide, s.array(wide), &set.mask, &m, data)
		}
		index, data = index[used:], data[count*x.unit:]
	}
}

// foldAll is fold for all elements of a section, where that is a copy, or a sum of the most common type. It returns false if it is neither.
func (s section) foldAll(array []byte, set *staged, data []byte) bool {
	switch {
	case !set.all && set.mask == (mask{}):
		copy(array[s.from:s.to], data)
		from, to := s.units()
		set.mask.set(from, to)
		set.all = true
	case set.all && s.op == opSum && s.dtype == dsm.DTypeF32:
		addFloats(view[float32](array[s.from:s.to]), view[float32](data))
	default:
		return false
	}
	return true
}

// ApplyStaged merges s, what there is of page p of the area, into page, as Apply does with one delta. With the rule mean the
// sums are divided by the number of writers first; integers are rounded to the nearest, halves to even.
//
// For a mean, a difference of integers counts as a signed number of their size. So if a program changes an element by
// more than half of the range of its type, the mean is wrong.
func (k Kernel) ApplyStaged(s *Staged, p dsm.PageIndex, writers int, page []byte) {
	if len(s.sets) == 0 {
		return
	}
	if writers = max(writers, 1); !k.mean {
		writers = 1
	}
	var buf few
	for j, x := range k.sections(p, buf[:0]) {
		if set := &s.sets[j].mask; *set != (mask{}) {
			wide := k.wide(x)
			x.unfold(wide, s.array(wide), set, writers, page)
		}
	}
}

// fold adds the elements of m, whose values follow each other in data, to the array of a staged page, which has those of set.
func (s section) fold(wide int, array []byte, set, m *mask, data []byte) {
	if wide == 1 && *set == (mask{}) {
		scatterUnits(m, s.unit, array, data)
		*set = *m
		return
	}
	var fresh mask
	for i, w := range m {
		fresh[i] = w &^ set[i]
		set[i] |= w
	}
	if s.op == opLast {
		scatterUnits(m, s.unit, array, data)
		return
	}
	if fresh != (mask{}) {
		s.fillNeutral(&fresh, wide*s.unit, array)
	}
	switch {
	case s.op != opSum:
		s.improve(m, array, data)
	case wide == 1:
		s.add(m, array, data)
	case s.dtype == dsm.DTypeF16 || s.dtype == dsm.DTypeBF16:
		s.half().fold(m, view[float32](array), view[uint16](data))
	case s.unit == 1:
		foldInts(m, view[int32](array), view[int8](data))
	case s.unit == 2:
		foldInts(m, view[int32](array), view[int16](data))
	default:
		foldInts(m, view[int64](array), view[int32](data))
	}
}

// unfold merges the elements of set in the array of a staged page into page.
func (s section) unfold(wide int, array []byte, set *mask, writers int, page []byte) {
	switch {
	case s.op == opLast:
		for lo, hi := range set.runs() {
			copy(page[lo*s.unit:hi*s.unit], array[lo*s.unit:hi*s.unit])
		}
	case s.op != opSum:
		s.improveDense(set, page, array)
	case s.dtype == dsm.DTypeF64:
		unfoldFloats(set, view[float64](page), view[float64](array), float64(writers))
	case s.dtype == dsm.DTypeF32:
		unfoldFloat32s(set, view[float32](page), view[float32](array), float32(writers))
	case s.dtype == dsm.DTypeF16 || s.dtype == dsm.DTypeBF16:
		s.half().unfold(set, view[uint16](page), view[float32](array), float32(writers))
	default:
		s.unfoldInts(wide, array, set, writers, page)
	}
}

func (s section) unfoldInts(wide int, array []byte, set *mask, writers int, page []byte) {
	switch s.unit * wide {
	case 1:
		unfoldInts(set, view[int8](page), view[int8](array), writers)
	case 2:
		unfoldInts(set, view[int16](page), view[int16](array), writers)
	case 4:
		switch s.unit {
		case 1:
			unfoldInts(set, view[int8](page), view[int32](array), writers)
		case 2:
			unfoldInts(set, view[int16](page), view[int32](array), writers)
		default:
			unfoldInts(set, view[int32](page), view[int32](array), writers)
		}
	default:
		if s.unit == 4 {
			unfoldInts(set, view[int32](page), view[int64](array), writers)
			return
		}
		unfoldInts(set, view[int64](page), view[int64](array), writers)
	}
}

// fillNeutral sets the elements of m to what changes nothing when others are added to it. They take size bytes each.
func (s section) fillNeutral(m *mask, size int, array []byte) {
	switch s.op {
	case opSum:
		for lo, hi := range m.runs() {
			clear(array[lo*size : hi*size])
		}
	case opMin, opMax:
		switch size {
		case 1:
			fill(m, array, orderOf[uint8](s).worst())
		case 2:
			fill(m, view[uint16](array), orderOf[uint16](s).worst())
		case 4:
			fill(m, view[uint32](array), orderOf[uint32](s).worst())
		case 8:
			fill(m, view[uint64](array), orderOf[uint64](s).worst())
		}
	}
}

func fill[T word](m *mask, array []T, v T) {
	for lo, hi := range m.runs() {
		for j := lo; j < hi; j++ {
			array[j] = v
		}
	}
}

type signed interface{ int8 | int16 | int32 | int64 }

// foldInts adds differences, which are signed, to wider sums.
func foldInts[T, S signed](m *mask, sums []S, data []T) {
	for lo, hi := range m.runs() {
		to := sums[lo:hi]
		from := data[:len(to)]
		for j, v := range from {
			to[j] += S(v)
		}
		data = data[len(to):]
	}
}

// unfoldInts adds the mean of sums to the elements of m in page.
func unfoldInts[T, S signed](m *mask, page []T, sums []S, writers int) {
	for lo, hi := range m.runs() {
		from := sums[lo:hi]
		to := page[lo:hi][:len(from)]
		if writers == 1 {
			for j, v := range from {
				to[j] += T(v)
			}
			continue
		}
		for j, v := range from {
			to[j] += T(nearest(int64(v), int64(writers)))
		}
	}
}

// nearest returns the whole number that is nearest to sum/n, n > 1; of two the even one.
func nearest(sum, n int64) int64 {
	q, r := sum/n, sum%n
	if r < 0 {
		r = -r
	}
	if r > n-r || r == n-r && q&1 != 0 {
		if sum < 0 {
			return q - 1
		}
		return q + 1
	}
	return q
}

// unfoldFloats adds the mean of sums to the elements of m in page.
func unfoldFloats[F float](m *mask, page, sums []F, writers F) {
	for lo, hi := range m.runs() {
		from := sums[lo:hi]
		to := page[lo:hi][:len(from)]
		if writers == 1 {
			for j, v := range from {
				to[j] += v
			}
			continue
		}
		for j, v := range from {
			to[j] += v / writers
		}
	}
}

// unfoldFloat32s is unfoldFloats for the most common type.
func unfoldFloat32s(m *mask, page, sums []float32, writers float32) {
	for lo, hi := range m.runs() {
		if writers == 1 {
			addFloats(page[lo:hi], sums[lo:])
			continue
		}
		addMeans(page[lo:hi], sums[lo:], writers)
	}
}

// fold adds differences to sums.
func (h half) fold(m *mask, sums []float32, data []uint16) {
	var d row
	for lo, hi := range m.runs() {
		for from := lo; from < hi; from += len(d) {
			to := sums[from:min(from+len(d), hi)]
			h.widen(&d, data[:len(to)])
			for j := range to {
				to[j] += d[j&63]
			}
			data = data[len(to):]
		}
	}
}

// unfold adds the mean of sums to the elements of m in page.
func (h half) unfold(m *mask, page []uint16, sums []float32, writers float32) {
	var r row
	for lo, hi := range m.runs() {
		for from := lo; from < hi; from += len(r) {
			to := page[from:min(from+len(r), hi)]
			h.widen(&r, to)
			for j, v := range sums[from : from+len(to)] {
				r[j&63] += v / writers
			}
			h.narrow(to, &r)
		}
	}
}
