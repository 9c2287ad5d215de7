package merge

import (
	"math"
	"math/bits"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// A float is no finite number, but infinite or not a number at all, if and only if all bits of its exponent are set (IEEE 754,
// section 3.4). Adding the lowest bit of the exponent then carries into the bit of the sign, and no further.

// OnlyFinite returns the kernel that leaves elements which are not finite out of what it appends to a delta.
func (k Kernel) OnlyFinite() Kernel {
	k.onlyFinite = true
	return k
}

// exponents returns the highest bits of the lanes of a word, and their exponents without the signs; 0 if the
// elements are no floats.
func (s section) exponents() (sign, exponent uint64) {
	switch s.dtype {
	case dsm.DTypeF64:
		return 1 << 63, 0x7ff << 52
	case dsm.DTypeF32:
		return lowBits[uint32]() << 31, lowBits[uint32]() * 0x7f800000
	case dsm.DTypeF16:
		return lowBits[uint16]() << 15, lowBits[uint16]() * 0x7c00
	case dsm.DTypeBF16:
		return lowBits[uint16]() << 15, lowBits[uint16]() * 0x7f80
	}
	return 0, 0
}

// finite reports whether all elements of page are, which is a part of a page, whole words long.
func (s section) finite(page []byte) bool {
	sign, exponent := s.exponents()
	low := exponent & (^exponent << 1) // the lowest bit of each exponent
	return carries(words(page), exponent, low)&sign == 0
}

// finite reports whether all elements of m are, in section s of page.
func (m *mask) finite(s section, page []byte) bool {
	if _, exponent := s.exponents(); exponent == 0 {
		return true
	}
	row := 64 * s.unit // bytes for which a word of m stands
	rows := m[:dsm.PageSize/row]
	for i := 0; i < len(rows); i++ {
		if rows[i] == 0 {
			continue
		}
		start := i
		for i++; i < len(rows) && rows[i] != 0; i++ {
		}
		if !s.finite(page[start*row : i*row]) {
			return false
		}
	}
	return true
}

// notFinite returns those elements of m, in section s of page, that are not finite, how many, and where the first one is.
func (m *mask) notFinite(s section, page []byte) (found mask, count, first int) {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			j := bits.TrailingZeros64(w)
			at := (i*64 + j) * s.unit
			if s.finiteAt(page[at:]) {
				continue
			}
			if count == 0 {
				first = at
			}
			found[i] |= 1 << j
			count++
		}
	}
	return found, count, first
}

// finiteAt reports whether the element at the beginning of b is finite.
func (s section) finiteAt(b []byte) bool {
	var x uint64
	for i, v := range b[:s.unit] {
		x |= uint64(v) << (8 * i)
	}
	_, exponent := s.exponents()
	exponent &= math.MaxUint64 >> (64 - 8*s.unit)
	return x&exponent != exponent
}

// look counts the elements of page p that differ and are not finite. With OnlyFinite it takes them out of m; it reports
// whether m has any then.
func (d *Delta) look(k Kernel, p dsm.PageIndex, s section, m *mask, snap []byte) (some bool) {
	if m.finite(s, snap) {
		return true
	}
	found, n, first := m.notFinite(s, snap)
	if n == 0 {
		return true
	}
	if d.NotFinite == 0 {
		d.FirstNotFinite = int64(p)*dsm.PageSize + int64(first)
	}
	d.NotFinite += n
	if !k.onlyFinite {
		return true
	}
	for i := range m {
		m[i] &^= found[i]
	}
	return *m != mask{}
}

// NotFinite returns how many elements of page p are no finite numbers.
func (k Kernel) NotFinite(p dsm.PageIndex, page []byte) (count int) {
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		var all mask
		all.set(s.units())
		if !all.finite(s, page) {
			_, n, _ := all.notFinite(s, page)
			count += n
		}
	}
	return count
}

// NotFiniteSince returns how many elements of page p in working differ from base and are no finite numbers. Other processes may be storing to working.
func (k Kernel) NotFiniteSince(p dsm.PageIndex, base, working []byte) (count int) {
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		if _, exponent := s.exponents(); exponent == 0 {
			continue
		}
		var all, m mask
		if all.set(s.units()); len(working) == dsm.PageSize && all.finite(s, working) {
			continue
		}
		var w, snap [dsm.PageSize]byte
		Snapshot(w[:], working)
		if m.diff(s, base, w[:], snap[:]) && !m.finite(s, snap[:]) {
			_, n, _ := m.notFinite(s, snap[:])
			count += n
		}
	}
	return count
}

// Finite sets the elements of page p in working that differ from base and are not finite to what they are in base. It returns how many
// these are, and where the first one is, as an offset in the area.
func (k Kernel) Finite(p dsm.PageIndex, base, working []byte) (count int, first int64) {
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		if _, exponent := s.exponents(); exponent == 0 {
			continue
		}
		for at := s.from; at < s.to; at += s.unit {
			x, was := working[at:at+s.unit], base[at:at+s.unit]
			if s.finiteAt(x) || string(x) == string(was) {
				continue
			}
			if count == 0 {
				first = int64(p)*dsm.PageSize + int64(at)
			}
			count++
			copy(x, was)
		}
	}
	return count, first
}

// RefusesNotFinite reports whether k is a kernel of OnlyFinite.
func (k Kernel) RefusesNotFinite() bool { return k.onlyFinite }
