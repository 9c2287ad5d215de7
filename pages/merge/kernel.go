package merge

import (
	"cmp"
	"math"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/invariants"
)

// Kernel says how the elements of one area merge: the rule, the type of the elements, or of each part of them, and where the
// file's own header ends. The bytes of the header always merge as bytes by the rule last. A Kernel
// is an immutable value; the zero Kernel merges all bytes by the rule last.
//
// A kernel does not know the size of the area, so that a delta means the same on two nodes of which
// only one has applied a growth yet. Pages are whole, and bytes past the end of the area are zero.
// So an incomplete element at the end merges as if it were filled up with zeroes. With last that
// gives the same result as merging its bytes, unless two nodes race for different bytes of that
// element. With other rules it would change the missing bytes, so for these such sizes are refused
// elsewhere.
type Kernel struct {
	op    op
	mean  bool      // a round divides: see ApplyStaged
	dtype dsm.DType // DTypeAuto: untyped bytes
	head  int64     // length of the header, a multiple of the element size
	parts []part    // what follows the header, if it is not all of one type

	onlyFinite bool // see OnlyFinite
}

// part is a range of bytes of the area up to end, whose bounds are multiples of the element size.
type part struct {
	end   int64
	dtype dsm.DType
}

// op is what happens to an element that two nodes have changed.
type op uint8

const (
	opLast op = iota // the value published last
	opSum            // the sum of the differences
	opMin            // the first in the order of rank
	opMax
)

// KernelFor returns the kernel of an area. It fails with errs.Invalid if the rule needs a type and
// there is none, or if the elements of some part cannot be merged by it.
func KernelFor(rule dsm.MergeRule, l dsm.Layout) (Kernel, error) {
	const what = "merge kernel"
	if !rule.Valid() {
		return Kernel{}, errs.E(errs.Invalid, what, "unknown merge rule %d", rule)
	}
	if err := cmp.Or(l.Check(), l.CheckRule(rule)); err != nil {
		return Kernel{}, errs.E(errs.Invalid, what, "%w", err)
	}
	if rule != dsm.MergeLast && l.DType == dsm.DTypeAuto && l.Parts == "" {
		return Kernel{}, errs.E(errs.Invalid, what, "merge=%v needs user.dsm.dtype, or a header of an .npy or .safetensors file", rule)
	}
	k := Kernel{op: opOf(rule), mean: rule == dsm.MergeMean, dtype: l.DType, head: l.DataOffset}
	for p := range l.All() {
		k.parts = append(k.parts, part{p.To, p.DType})
	}
	return k, nil
}

func opOf(rule dsm.MergeRule) op {
	switch rule {
	case dsm.MergeSum, dsm.MergeMean:
		return opSum
	case dsm.MergeMin:
		return opMin
	case dsm.MergeMax:
		return opMax
	}
	return opLast
}

// section is a part of a page whose elements merge alike. Its bounds are multiples of unit. Units
// are counted from the start of the page.
type section struct {
	from, to int // bytes in the page
	unit     int // bytes of an element
	op       op
	dtype    dsm.DType
}

// units returns the range of the section's elements.
func (s section) units() (from, to int) { return s.from / s.unit, s.to / s.unit }

// sections appends the parts of page p to s: its header, its elements, or both.
func (k Kernel) sections(p dsm.PageIndex, s []section) []section {
	if k.parts != nil {
		return k.partsOf(p, s)
	}
	unit := k.dtype.Size()
	head := 0
	if unit > 1 || k.op != opLast {
		head = int(min(max(k.head-int64(p)*dsm.PageSize, 0), dsm.PageSize))
	}
	if head > 0 {
		s = append(s, section{from: 0, to: head, unit: 1})
	}
	if head < dsm.PageSize {
		s = append(s, section{from: head, to: dsm.PageSize, unit: unit, op: k.op, dtype: k.dtype})
	}
	return s
}

// partsOf is sections for an area of several parts.
func (k Kernel) partsOf(p dsm.PageIndex, s []section) []section {
	start := int64(p) * dsm.PageSize
	next, _ := slices.BinarySearchFunc(k.parts, start, func(p part, at int64) int { return cmp.Compare(p.end, at+1) })
	at := 0
	add := func(end int64, dtype dsm.DType) {
		if to := int(min(end-start, dsm.PageSize)); to > at {
			x := section{from: at, to: to, unit: dtype.Size(), dtype: dtype}
			if dtype != dsm.DTypeAuto {
				x.op = k.op
			}
			s = append(s, x)
			at = to
		}
	}
	add(k.head, dsm.DTypeAuto)
	for _, x := range k.parts[next:] {
		if at == dsm.PageSize {
			return s
		}
		add(x.end, x.dtype)
	}
	add(math.MaxInt64, dsm.DTypeAuto)
	return s
}

// few is room for the sections of nearly every page.
type few [3]section

// AppendDelta appends to d the elements of page p whose bits differ between working and base: their
// values (last, min, max), or the differences (sum, mean; integers wrap, floats are rounded to the type). p must be
// in d's extent, after all pages that d has.
//
// changed reports whether any element differs. inexact reports whether the result of Apply on base is
// for some element not bitwise the value in working: a sum is rounded, or the value in base is the smaller one. Then this node
// needs the result back from the home.
//
// d counts those of the elements that are no finite numbers; a kernel of OnlyFinite leaves them out.
//
// A word of working with a difference is read only once: the bytes sent are the bytes compared,
// even if another process stores to them meanwhile.
func (k Kernel) AppendDelta(d *Delta, p dsm.PageIndex, base, working []byte) (changed, inexact bool) {
	if string(base) == string(working) {
		return false, false
	}
	e, i := p.Extent()
	if invariants.Enabled { // to find out takes a twentieth of the time of a page
		invariants.Check(e == d.Extent && !d.hasFrom(i), "page %d appended to the delta of extent %d that has %x", p, d.Extent, d.Pages)
	}
	at := pageAt{index: len(d.Index), data: len(d.Data)}
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		some, off := false, false
		if s.op == opSum {
			some, off = d.appendSum(k, p, s, base, working)
		} else {
			some, off = d.appendValues(k, p, s, base, working)
		}
		changed, inexact = changed || some, inexact || off
	}
	if !changed {
		d.Index = d.Index[:at.index]
		return false, false
	}
	d.Pages.Add(i)
	d.at = append(d.at, at)
	return changed, inexact
}

// AppendDense appends to d the elements of page p from byte lo on, of which values has the differences, if nearly all of these differ from zero, all are finite,
// and they add up (sum, mean). Otherwise it does nothing and returns false: AppendDelta then finds those that differ. An element that is zero
// costs bytes, but to look for it would cost more time than all the others together. If values lies right behind d.Data, in the same memory, it stays there;
// otherwise it is copied to there.
func (k Kernel) AppendDense(d *Delta, p dsm.PageIndex, lo int, values []byte) bool {
	var buf few
	secs, hi := k.sections(p, buf[:0]), lo+len(values)
	if !mostlyNonzero(values) {
		return false
	}
	for _, s := range secs {
		if from, to := max(s.from, lo), min(s.to, hi); from < to {
			if s.op != opSum || (to-from)%8 != 0 || !s.finite(values[from-lo:to-lo]) {
				return false
			}
		}
	}
	_, i := p.Extent()
	if invariants.Enabled {
		invariants.Check(!d.hasFrom(i), "page %d appended to the delta of extent %d that has %x", p, d.Extent, d.Pages)
	}
	d.at = append(d.at, pageAt{index: len(d.Index), data: len(d.Data)})
	for _, s := range secs {
		d.appendRun(s, lo, hi)
	}
	if n := len(d.Data); cap(d.Data)-n >= len(values) && &d.Data[:n+1][n] == &values[0] {
		d.Data = d.Data[:n+len(values)]
	} else {
		d.Data = append(d.Data, values...)
	}
	d.Pages.Add(i)
	return true
}

// mostlyNonzero looks at a few words.
func mostlyNonzero(values []byte) bool {
	const looks = 16
	w := words(values)
	n, of := 0, 0
	for i := 0; i < len(w); i += max(len(w)/looks, 1) {
		if of++; w[i] != 0 {
			n++
		}
	}
	return n > of*3/4
}

// appendValues is AppendDelta for a section whose values are sent. The compared bytes are read straight
// into the buffer that is sent, and moved together there: a page that was stored to all over is
// written once and not twice.
func (d *Delta) appendValues(k Kernel, p dsm.PageIndex, s section, base, working []byte) (changed, inexact bool) {
	var m mask
	at := len(d.Data)
	snap := d.growData(dsm.PageSize)
	count := 0
	if m.diff(s, base, working, snap) && d.look(k, p, s, &m, snap) {
		if s.op != opLast {
			inexact = s.worse(&m, base, snap)
		}
		from := len(d.Index)
		count = d.appendIndex(&m, s)
		switch {
		case count*s.unit == dsm.PageSize: // all is where it belongs
		case d.Index[from] == tagRuns:
			gatherRuns(d.Index[from:], s.unit, snap)
		default:
			gatherUnits(&m, s.unit, snap)
		}
	} else {
		d.Index = append(d.Index, tagNone)
	}
	d.Data = d.Data[:at+count*s.unit]
	return count > 0, inexact
}

// appendSum is AppendDelta for a section with the rule sum.
func (d *Delta) appendSum(k Kernel, p dsm.PageIndex, s section, base, working []byte) (changed, inexact bool) {
	var (
		m    mask
		snap [dsm.PageSize]byte
	)
	if !m.diff(s, base, working, snap[:]) || !d.look(k, p, s, &m, snap[:]) {
		d.Index = append(d.Index, tagNone)
		return false, false
	}
	count := d.appendIndex(&m, s)
	return true, s.subtract(&m, base, snap[:], d.growData(count*s.unit))
}

// Apply merges d into the pages of its extent at the home: last copies, sum and mean add, min and max keep
// the smaller and the larger value. page(i) returns
// page i of the extent, writable. d must come from AppendDelta with an equal Kernel, or have passed
// Validate.
//
// overflowed is how many sums are no finite numbers.
func (k Kernel) Apply(d *Delta, page func(i int) []byte) (overflowed int) {
	n := 0
	for i := range d.Pages.All() {
		overflowed += k.applyPage(d, n, i, page(i))
		n++
	}
	return overflowed
}

// Overlay merges page i of d into dst, as Apply would. It does nothing if d does not have the page.
func (k Kernel) Overlay(d *Delta, i int, dst []byte) {
	if d.Pages.Has(i) {
		k.applyPage(d, rank(&d.Pages, i), i, dst)
	}
}

// applyPage applies page i of the extent, the n-th page of d.
func (k Kernel) applyPage(d *Delta, n, i int, dst []byte) (overflowed int) {
	index, data := d.Index[d.at[n].index:], d.Data[d.at[n].data:]
	var buf few
	for _, s := range k.sections(d.page(i), buf[:0]) {
		if index[0] == tagAll && s.op == opLast {
			copy(dst[s.from:s.to], data)
			index, data = index[1:], data[s.to-s.from:]
			continue
		}
		if index[0] == tagRuns && s.op == opLast {
			used, size := scatterRuns(index, s.unit, dst, data)
			index, data = index[used:], data[size:]
			continue
		}
		var m mask
		used, count := m.decode(index, s)
		switch s.op {
		case opSum:
			s.add(&m, dst, data)
			if !m.finite(s, dst) {
				_, some, _ := m.notFinite(s, dst)
				overflowed += some
			}
		case opLast:
			scatterUnits(&m, s.unit, dst, data)
		default:
			s.improve(&m, dst, data)
		}
		index, data = index[used:], data[count*s.unit:]
	}
	return overflowed
}

// Merge merges the incoming bytes of page p into working, which differs from base by local stores
// that are not published yet: a three-way merge. An element that is bitwise as in base takes the
// incoming value. An element that was stored to keeps its value (last), becomes incoming plus
// (working minus base) (sum, mean), or the smaller or larger one of working and incoming (min, max); if incoming is bitwise as base it stays exactly as it is. Neither
// base nor incoming is changed. Unless changed is nil, the ranges of elements of working that did
// change are appended to it, as offsets in the area.
func (k Kernel) Merge(p dsm.PageIndex, base, working, incoming []byte, changed *Runs) {
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		if changed == nil {
			s.merge(base, working, incoming)
			continue
		}
		var (
			m         mask
			old, snap [dsm.PageSize]byte
		)
		copy(old[:], working)
		s.merge(base, working, incoming)
		if m.diff(s, old[:], working, snap[:]) {
			m.appendRuns(changed, int64(p)*dsm.PageSize, s.unit)
		}
	}
}

// Overwriting changes base, of page p, so that Merge and StoreShared take the bytes [from, to) of
// stored as stored to, even where they equal base. Two kinds of elements stay as they are: those
// with another rule than last, for which only a difference counts, and those that are only partly within
// the range.
func (k Kernel) Overwriting(p dsm.PageIndex, base, stored []byte, from, to int) {
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		if s.op != opLast {
			continue
		}
		lo := max(from, s.from) + s.unit - 1
		for at := lo - lo%s.unit; at+s.unit <= min(to, s.to); at += s.unit {
			base[at] = ^stored[at]
		}
	}
}

// Either prepares a merge of page p whose base is not known: a program has stored on top of base, or on top
// of other. An element that stored has as in other may not have been stored to. So base gets it as well,
// and Merge takes it as unchanged.
func (k Kernel) Either(p dsm.PageIndex, base, other, stored []byte) {
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		for at := s.from; at < s.to; at += s.unit {
			if string(stored[at:at+s.unit]) == string(other[at:at+s.unit]) {
				copy(base[at:at+s.unit], other[at:])
			}
		}
	}
}

// Changed copies the elements of page p that stored does not have as base has them.
func (k Kernel) Changed(p dsm.PageIndex, base, stored, into []byte) {
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		for at := s.from; at < s.to; at += s.unit {
			if string(stored[at:at+s.unit]) != string(base[at:at+s.unit]) {
				copy(into[at:at+s.unit], stored[at:])
			}
		}
	}
}

// merge is Kernel.Merge for one section. Blocks in which only one side changed anything, nearly
// all, cost a comparison and a copy.
func (s section) merge(base, working, incoming []byte) {
	for from := s.from; from < s.to; {
		to := min(from&^(blockSize-1)+blockSize, s.to)
		b, w, n := base[from:to], working[from:to], incoming[from:to]
		switch {
		case string(w) == string(b):
			copy(w, n)
		case string(n) == string(b):
		case s.op == opSum:
			s.mergeSum(b, w, n)
		case s.op == opLast:
			mergeLast(s.unit, b, w, n)
		default:
			s.mergeBetter(b, w, n)
		}
		from = to
	}
}
