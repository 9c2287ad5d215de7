package merge

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/invariants"
)

// Kernel says how the elements of one area merge: the rule, the type of the elements, and where the
// file's own header ends. The bytes of the header always merge as bytes by the rule last. A Kernel
// is an immutable value; the zero Kernel merges all bytes by the rule last.
//
// A kernel does not know the size of the area, so that a delta means the same on two nodes of which
// only one has applied a growth yet. Pages are whole, and bytes past the end of the area are zero.
// So an incomplete element at the end merges as if it were filled up with zeroes. With last that
// gives the same result as merging its bytes, unless two nodes race for different bytes of that
// element. With sum it would carry into the missing bytes, so for sum such sizes are refused
// elsewhere.
type Kernel struct {
	sum   bool
	dtype dsm.DType // DTypeU8 for untyped bytes; integers as their unsigned type
	head  int64     // length of the header, a multiple of the element size
}

// KernelFor returns the kernel of an area. It fails with errs.Invalid if the rule needs a type and
// there is none, or if the header ends within an element.
func KernelFor(merge dsm.MergeRule, l dsm.Layout) (Kernel, error) {
	const op = "merge kernel"
	switch {
	case merge != dsm.MergeLast && merge != dsm.MergeSum:
		return Kernel{}, errs.E(errs.Invalid, op, "unknown merge rule %d", merge)
	case l.DType > dsm.DTypeU64:
		return Kernel{}, errs.E(errs.Invalid, op, "unknown element type %d", l.DType)
	case merge == dsm.MergeSum && l.DType == dsm.DTypeAuto:
		return Kernel{}, errs.E(errs.Invalid, op, "merge=sum needs user.dsm.dtype or an .npy header")
	case l.DataOffset < 0 || l.DataOffset%int64(l.DType.Size()) != 0:
		return Kernel{}, errs.E(errs.Invalid, op, "header of %d bytes is no multiple of the %d bytes of an element",
			l.DataOffset, l.DType.Size())
	}
	return Kernel{sum: merge == dsm.MergeSum, dtype: arithmetic(l.DType), head: l.DataOffset}, nil
}

// arithmetic maps types that merge by the same operations to one of them: two's complement adds
// alike with and without sign.
func arithmetic(d dsm.DType) dsm.DType {
	switch d {
	case dsm.DTypeAuto, dsm.DTypeI8:
		return dsm.DTypeU8
	case dsm.DTypeI16:
		return dsm.DTypeU16
	case dsm.DTypeI32:
		return dsm.DTypeU32
	case dsm.DTypeI64:
		return dsm.DTypeU64
	}
	return d
}

// section is a part of a page whose elements merge alike. Its bounds are multiples of unit. Units
// are counted from the start of the page.
type section struct {
	from, to int // bytes in the page
	unit     int // bytes of an element
	sum      bool
}

// units returns the range of the section's elements.
func (s section) units() (from, to int) { return s.from / s.unit, s.to / s.unit }

// sections returns the parts of page p: its header, its elements, or both.
func (k Kernel) sections(p dsm.PageIndex) (s [2]section, n int) {
	unit := max(k.dtype.Size(), 1)
	head := 0
	if unit > 1 || k.sum {
		head = int(min(max(k.head-int64(p)*dsm.PageSize, 0), dsm.PageSize))
	}
	if head > 0 {
		s[n] = section{from: 0, to: head, unit: 1}
		n++
	}
	if head < dsm.PageSize {
		s[n] = section{from: head, to: dsm.PageSize, unit: unit, sum: k.sum}
		n++
	}
	return s, n
}

// AppendDelta appends to d the elements of page p whose bits differ between working and base: their
// values (last), or the differences (sum; integers wrap, floats are rounded to the type). p must be
// in d's extent, after all pages that d has.
//
// changed reports whether any element differs. inexact reports whether base plus the difference,
// rounded as Apply rounds it, is for some element not bitwise the value in working; then this node
// needs the result back from the home.
//
// A word of working with a difference is read only once: the bytes sent are the bytes compared,
// even if another process stores to them meanwhile.
func (k Kernel) AppendDelta(d *Delta, p dsm.PageIndex, base, working []byte) (changed, inexact bool) {
	if string(base) == string(working) {
		return false, false
	}
	e, i := p.Extent()
	invariants.Check(e == d.Extent && !d.hasFrom(i), "page %d appended to the delta of extent %d that has %x", p, d.Extent, d.Pages)
	at := pageAt{index: len(d.Index), data: len(d.Data)}
	secs, n := k.sections(p)
	for _, s := range secs[:n] {
		some, off := false, false
		if s.sum {
			some, off = k.appendSum(d, s, base, working)
		} else {
			some = d.appendLast(s, base, working)
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

// appendLast is AppendDelta for a section with the rule last. The compared bytes are read straight
// into the buffer that is sent, and moved together there: a page that was stored to all over is
// written once and not twice.
func (d *Delta) appendLast(s section, base, working []byte) (changed bool) {
	var m mask
	at := len(d.Data)
	snap := d.growData(dsm.PageSize)
	count := 0
	if m.diff(s, base, working, snap) {
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
	return count > 0
}

// appendSum is AppendDelta for a section with the rule sum.
func (k Kernel) appendSum(d *Delta, s section, base, working []byte) (changed, inexact bool) {
	var (
		m    mask
		snap [dsm.PageSize]byte
	)
	if !m.diff(s, base, working, snap[:]) {
		d.Index = append(d.Index, tagNone)
		return false, false
	}
	count := d.appendIndex(&m, s)
	return true, k.subtract(&m, base, snap[:], d.growData(count*s.unit))
}

// Apply merges d into the pages of its extent at the home: last copies, sum adds. page(i) returns
// page i of the extent, writable. d must come from AppendDelta with an equal Kernel, or have passed
// Validate.
func (k Kernel) Apply(d *Delta, page func(i int) []byte) {
	n := 0
	for i := range d.Pages.All() {
		k.applyPage(d, n, i, page(i))
		n++
	}
}

// Overlay merges page i of d into dst, as Apply would. It does nothing if d does not have the page.
func (k Kernel) Overlay(d *Delta, i int, dst []byte) {
	if d.Pages.Has(i) {
		k.applyPage(d, rank(&d.Pages, i), i, dst)
	}
}

// applyPage applies page i of the extent, the n-th page of d.
func (k Kernel) applyPage(d *Delta, n, i int, dst []byte) {
	index, data := d.Index[d.at[n].index:], d.Data[d.at[n].data:]
	secs, ns := k.sections(d.page(i))
	for _, s := range secs[:ns] {
		if index[0] == tagAll && !s.sum {
			copy(dst[s.from:s.to], data)
			index, data = index[1:], data[s.to-s.from:]
			continue
		}
		if index[0] == tagRuns && !s.sum {
			used, size := scatterRuns(index, s.unit, dst, data)
			index, data = index[used:], data[size:]
			continue
		}
		var m mask
		used, count := m.decode(index, s)
		if s.sum {
			k.add(&m, dst, data)
		} else {
			scatterUnits(&m, s.unit, dst, data)
		}
		index, data = index[used:], data[count*s.unit:]
	}
}

// Merge merges the incoming bytes of page p into working, which differs from base by local stores
// that are not published yet: a three-way merge. An element that is bitwise as in base takes the
// incoming value. An element that was stored to keeps its value (last), or becomes incoming plus
// (working minus base) (sum); if incoming is bitwise as base it stays exactly as it is. Neither
// base nor incoming is changed. Unless changed is nil, the ranges of elements of working that did
// change are appended to it, as offsets in the area.
func (k Kernel) Merge(p dsm.PageIndex, base, working, incoming []byte, changed *Runs) {
	secs, n := k.sections(p)
	for _, s := range secs[:n] {
		if changed == nil {
			k.mergeSection(s, base, working, incoming)
			continue
		}
		var (
			m         mask
			old, snap [dsm.PageSize]byte
		)
		copy(old[:], working)
		k.mergeSection(s, base, working, incoming)
		if m.diff(s, old[:], working, snap[:]) {
			m.appendRuns(changed, int64(p)*dsm.PageSize, s.unit)
		}
	}
}

// Overwriting changes base, of page p, so that Merge and StoreShared take the bytes [from, to) of
// stored as stored to, even where they equal base. Two kinds of elements stay as they are: those
// with the rule sum, for which only the difference counts, and those that are only partly within
// the range.
func (k Kernel) Overwriting(p dsm.PageIndex, base, stored []byte, from, to int) {
	secs, n := k.sections(p)
	for _, s := range secs[:n] {
		if s.sum {
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
	secs, n := k.sections(p)
	for _, s := range secs[:n] {
		for at := s.from; at < s.to; at += s.unit {
			if string(stored[at:at+s.unit]) == string(other[at:at+s.unit]) {
				copy(base[at:at+s.unit], other[at:])
			}
		}
	}
}

// mergeSection is Merge for one section. Blocks in which only one side changed anything, nearly
// all, cost a comparison and a copy.
func (k Kernel) mergeSection(s section, base, working, incoming []byte) {
	for from := s.from; from < s.to; {
		to := min(from&^(blockSize-1)+blockSize, s.to)
		b, w, n := base[from:to], working[from:to], incoming[from:to]
		switch {
		case string(w) == string(b):
			copy(w, n)
		case string(n) == string(b):
		case s.sum:
			k.mergeSum(b, w, n)
		default:
			mergeLast(s.unit, b, w, n)
		}
		from = to
	}
}
