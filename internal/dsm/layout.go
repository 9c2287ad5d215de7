package dsm

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
)

// Layout says how the bytes of an area form elements. The bytes from DataOffset on are elements of
// DType; those before it are the file's own header and are never merged. It comes from the explicit
// type in the Spec, with offset 0, or from the header. If the header tells of elements of several types, Parts has
// them, and DType is DTypeAuto. The zero Layout is that of untyped bytes.
type Layout struct {
	DType      DType
	DataOffset int64
	Parts      Parts
	// Complex says that each two elements are a complex number, in a file without Parts. Complex numbers add up as their halves do, but
	// none is the smaller one.
	Complex bool
}

// Part is a range of bytes of an area whose elements have one type. With DTypeAuto they are untyped bytes, of which the
// last one that was stored stays by any rule.
type Part struct {
	From, To int64
	DType    DType
	Opaque   bool // elements that only the rule last can merge; DType is DTypeAuto
}

// Parts is what follows the header of an area: adjacent parts in order, each as a byte for its type and the number of its bytes as
// a uvarint. It is a string so that layouts can be compared.
type Parts string

// MaxParts bounds the parts of a layout: what a layout takes in the catalog is then less than 50 KiB.
const MaxParts = 4096

const opaquePart = 0x80

// LayoutOf returns the layout that has these parts, which are in order. Bytes between them are untyped, and so are those behind them,
// unless all parts are of one type: then what follows is, too.
func LayoutOf(parts []Part) (Layout, error) {
	l := layoutOf(parts)
	return l, l.Check()
}

func layoutOf(parts []Part) Layout {
	var all []Part
	for _, p := range parts {
		if p.From == p.To {
			continue
		}
		if n := len(all); n > 0 && all[n-1].To < p.From {
			all = appendPart(all, Part{From: all[n-1].To, To: p.From})
		}
		all = appendPart(all, p)
	}
	if len(all) > 0 && all[0].untyped() {
		all = all[1:] // like a header
	}
	switch {
	case len(all) == 0:
		return Layout{}
	case len(all) == 1 && !all[0].Opaque:
		return Layout{DType: all[0].DType, DataOffset: all[0].From}
	}
	l := Layout{DataOffset: all[0].From}
	var b []byte
	for _, p := range all {
		kind := byte(p.DType)
		if p.Opaque {
			kind = opaquePart
		}
		b = binary.AppendUvarint(append(b, kind), uint64(p.To-p.From))
	}
	l.Parts = Parts(b)
	return l
}

func appendPart(all []Part, p Part) []Part {
	if n := len(all); n > 0 && all[n-1].To == p.From && all[n-1].DType == p.DType && all[n-1].Opaque == p.Opaque {
		all[n-1].To = p.To
		return all
	}
	return append(all, p)
}

func (p Part) untyped() bool { return p.DType == DTypeAuto && !p.Opaque }

// All yields the parts of a layout that has any, in order, without the header.
func (l Layout) All() iter.Seq[Part] {
	return func(yield func(Part) bool) {
		at := l.DataOffset
		for b := []byte(l.Parts); len(b) > 1; {
			size, n := binary.Uvarint(b[1:])
			if n <= 0 || size > MaxAreaSize {
				return
			}
			p := Part{From: at, To: at + int64(size), DType: DType(b[0])}
			if b[0] == opaquePart {
				p.DType, p.Opaque = DTypeAuto, true
			}
			if !yield(p) {
				return
			}
			at, b = p.To, b[1+n:]
		}
	}
}

// Check returns what is wrong with a layout, or nil.
func (l Layout) Check() error {
	switch {
	case !l.DType.Valid():
		return fmt.Errorf("unknown element type %d", l.DType)
	case l.DataOffset < 0 || l.DataOffset%int64(l.DType.Size()) != 0:
		return fmt.Errorf("header of %d bytes is no multiple of the %d bytes of an element", l.DataOffset, l.DType.Size())
	case l.Complex && (l.Parts != "" || l.DType != DTypeF32 && l.DType != DTypeF64):
		return fmt.Errorf("complex numbers of %v", l.DType)
	case l.Parts == "":
		return nil
	case l.DType != DTypeAuto:
		return fmt.Errorf("elements of %v in an area with parts", l.DType)
	}
	parts := slices.Collect(l.All())
	if len(parts) > MaxParts {
		return fmt.Errorf("the header tells of %d parts of other types than their neighbours: the most is %d", len(parts), MaxParts)
	}
	for _, p := range parts {
		if !p.DType.Valid() || p.To > MaxAreaSize {
			return fmt.Errorf("elements of type %d at %d to %d", p.DType, p.From, p.To)
		}
		if n := int64(p.DType.Size()); p.From%n != 0 || p.To%n != 0 {
			return fmt.Errorf("elements of %v begin at byte %d, which is no multiple of their size of %d bytes", p.DType, p.From, n)
		}
	}
	// Equal layouts are equal strings, and a string has nothing but parts.
	if layoutOf(parts) != l {
		return fmt.Errorf("parts %x are not in the one format for them", string(l.Parts))
	}
	return nil
}

// CheckRule refuses a rule by which elements that the header tells of cannot be merged.
func (l Layout) CheckRule(rule MergeRule) error {
	if l.Complex && (rule == MergeMin || rule == MergeMax) {
		return fmt.Errorf("merge=%v: complex numbers have no order, so they can only be merged by last, sum and mean", rule)
	}
	if rule == MergeLast {
		return nil
	}
	for p := range l.All() {
		if p.Opaque {
			return fmt.Errorf("merge=%v: the elements from byte %d on, such as complex numbers and floats of 8 bits, can only be merged by last", rule, p.From)
		}
	}
	return nil
}

// CheckEnd refuses a size of an area that ends within an element.
func (l Layout) CheckEnd(size int64) error {
	if l.Parts == "" {
		if n := (size - l.DataOffset) % int64(l.DType.Size()); n != 0 {
			return fmt.Errorf("the size of %d bytes (header %d) is no multiple of the element size %d of %s", size, l.DataOffset, l.DType.Size(), l.DType)
		}
		return nil
	}
	for p := range l.All() {
		if size > p.From && size < p.To && size%int64(p.DType.Size()) != 0 {
			return fmt.Errorf("the size of %d bytes ends within an element of %v", size, p.DType)
		}
	}
	return nil
}
