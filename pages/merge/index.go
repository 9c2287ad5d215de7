package merge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// The index of a delta says which units changed, for each section of each page. A page has one
// section, or more if the file's header or a part of another type ends within it. The formats are
//
//	none                                       0
//	all                                        1
//	runs   2   u16 count   count * (u16 start, u16 length)
//	mask   3   one bit for each unit, lowest first, in whole bytes of the mask of the page
//
// in little-endian order, with units counted from the start of the page. The shortest one is used:
// a page of bytes of which every second one changed takes 513 bytes of index.
const (
	tagNone = iota // only in a page of several sections
	tagAll
	tagRuns
	tagMask
)

var (
	errShort  = errors.New("index ends early")
	errRuns   = errors.New("runs of the index are out of order or range")
	errMasked = errors.New("mask of the index is empty or out of range")
)

// maskBytes returns which bytes of the page's mask belong to the section.
func (s section) maskBytes() (from, to int) {
	u0, u1 := s.units()
	return u0 / 8, (u1 + 7) / 8
}

// appendIndex appends the index of section s, whose changed units are m, and returns the number of
// units. m is not empty.
func (d *Delta) appendIndex(m *mask, s section) (count int) {
	u0, u1 := s.units()
	from, to := s.maskBytes()
	count, runs := m.count()
	switch {
	case count == u1-u0:
		d.Index = append(d.Index, tagAll)
	case 2+4*runs <= to-from:
		d.Index = append(d.Index, tagRuns)
		d.Index = binary.LittleEndian.AppendUint16(d.Index, uint16(runs))
		d.Index = slices.Grow(d.Index, 4*runs)
		for start, end := range m.runs() {
			d.Index = binary.LittleEndian.AppendUint32(d.Index, uint32(start)|uint32(end-start)<<16)
		}
	default:
		d.Index = append(d.Index, tagMask)
		d.Index = append(d.Index, m.bytes()[from:to]...)
	}
	return count
}

// appendRun appends the index of section s, of which the units in the bytes [lo, hi) of the page have changed.
func (d *Delta) appendRun(s section, lo, hi int) {
	lo, hi = max(lo, s.from), min(hi, s.to)
	switch {
	case lo >= hi:
		d.Index = append(d.Index, tagNone)
	case lo == s.from && hi == s.to:
		d.Index = append(d.Index, tagAll)
	default:
		d.Index = append(d.Index, tagRuns)
		d.Index = binary.LittleEndian.AppendUint16(d.Index, 1)
		d.Index = binary.LittleEndian.AppendUint32(d.Index, uint32(lo/s.unit)|uint32((hi-lo)/s.unit)<<16)
	}
}

// decode sets m, which is empty, to the changed units of section s. It returns the number of bytes
// of the index and of units. The index must be valid.
func (m *mask) decode(index []byte, s section) (used, count int) {
	u0, u1 := s.units()
	switch index[0] {
	case tagAll:
		m.set(u0, u1)
		return 1, u1 - u0
	case tagRuns:
		n := int(binary.LittleEndian.Uint16(index[1:]))
		for r := index[3 : 3+4*n]; len(r) > 0; r = r[4:] {
			start, length := runAt(r)
			m.set(start, start+length)
			count += length
		}
		return 3 + 4*n, count
	case tagMask:
		from, to := s.maskBytes()
		copy(m.bytes()[from:to], index[1:])
		return 1 + to - from, m.len()
	}
	return 1, 0
}

// checkIndex is decode for an index that has not been checked.
func checkIndex(index []byte, s section) (used, count int, err error) {
	if len(index) == 0 {
		return 0, 0, errShort
	}
	u0, u1 := s.units()
	switch index[0] {
	case tagNone:
		return 1, 0, nil
	case tagAll:
		return 1, u1 - u0, nil
	case tagRuns:
		if len(index) < 3 {
			return 0, 0, errShort
		}
		used = 3 + 4*int(binary.LittleEndian.Uint16(index[1:]))
		if len(index) < used {
			return 0, 0, errShort
		}
		free := u0 // the next run starts here or later
		for r := index[3:used]; len(r) > 0; r = r[4:] {
			start, length := runAt(r)
			if start < free || length == 0 || start+length > u1 {
				return 0, 0, errRuns
			}
			free = start + length + 1
			count += length
		}
		if count == 0 {
			return 0, 0, errRuns
		}
		return used, count, nil
	case tagMask:
		from, to := s.maskBytes()
		used = 1 + to - from
		if len(index) < used {
			return 0, 0, errShort
		}
		var m mask
		copy(m.bytes()[from:to], index[1:])
		count = m.len()
		below, above := m[u0/64]&(1<<(u0%64)-1), m[(u1-1)/64]>>((u1-1)%64)>>1
		if count == 0 || below|above != 0 { // a section's mask has other bits only in its first and last byte
			return 0, 0, errMasked
		}
		return used, count, nil
	}
	return 0, 0, fmt.Errorf("unknown index tag %d", index[0])
}

// runAt reads a run of the index.
func runAt(r []byte) (start, length int) {
	return int(binary.LittleEndian.Uint16(r)), int(binary.LittleEndian.Uint16(r[2:]))
}
