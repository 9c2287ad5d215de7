package pages

import (
	"math/bits"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// blockSize is the stretch of a page that is compared in one go. Most blocks of
// most pages are equal, and the vectorised comparison of the runtime skips one in 10 ns.
const blockSize = 512

// mask is a set of the units of a page: unit i, at byte i*unit, is bit i%64 of
// word i/64. A page has 4096/unit of them.
type mask [dsm.PageSize / 64]uint64

// lanes are the constants that find the units that are not zero in a word of
// eight bytes, without a branch. See nonzero.
type lanes struct {
	low    uint64 // all bits of every lane but its highest
	down   int    // shifts the highest bit of a lane to its lowest
	fill   uint64 // times a lane's lowest bit: all bits of the lane
	gather uint64 // times the lowest bits of the lanes: their bits at the top,
	top    int    // and from there to the bottom
	per    int    // lanes of a word
}

var lanesOf = [9]lanes{
	1: {0x7f7f7f7f7f7f7f7f, 7, 0xff, 0x0102040810204080, 56, 8},
	2: {0x7fff7fff7fff7fff, 15, 0xffff, 1<<60 | 1<<45 | 1<<30 | 1<<15, 60, 4},
	4: {0x7fffffff7fffffff, 31, 0xffffffff, 1<<62 | 1<<31, 62, 2},
	8: {0x7fffffffffffffff, 63, ^uint64(0), 1 << 63, 63, 1},
}

// nonzero returns the lowest bit of each lane of x that is not zero: adding low
// carries into the highest bit exactly when one of the lower bits is set.
func (l *lanes) nonzero(x uint64) uint64 {
	return ((x&l.low + l.low | x) &^ l.low) >> (l.down & 63)
}

// words views a page, or a part of it, as words of eight bytes.
func words(b []byte) []uint64 { return view[uint64](b) }

// view returns b as a slice of elements of type T. b may be unaligned.
func view[T any](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// diff sets m, which is empty, to the units of section s in which the pages base
// and working differ, and reports whether there are any. Each word of working
// that may hold a difference is read once, compared and left in snap; words of
// snap without one are undefined.
func (m *mask) diff(s section, base, working []byte, snap *[dsm.PageSize]byte) bool {
	l := lanesOf[s.unit]
	var (
		any   uint64
		chunk = 64 / l.per // words of eight bytes to a word of the mask
		sw    = words(snap[:])
	)
	for from := s.from &^ (blockSize - 1); from < s.to; from += blockSize {
		b, w := base[from:from+blockSize], working[from:from+blockSize]
		if string(b) == string(w) {
			continue
		}
		bw, ww, out := words(b), words(w), sw[from/8:from/8+blockSize/8]
		for o := 0; o < len(ww); o += chunk {
			var acc uint64
			bc, wc, oc := bw[o:o+chunk], ww[o:o+chunk], out[o:o+chunk]
			for i := range wc {
				v := wc[i]
				if x := v ^ bc[i]; x != 0 {
					oc[i] = v
					acc |= l.nonzero(x) * l.gather >> (l.top & 63) << (i * l.per & 63)
				}
			}
			at := (from/8 + o) / chunk
			m[at] = acc
			any |= acc
		}
	}
	if any == 0 {
		return false
	}
	if s.from == 0 && s.to == dsm.PageSize {
		return true
	}
	u0, u1 := s.units()
	m.keep(u0, u1)
	return *m != mask{}
}

// keep takes all units but [from, to) out of m.
func (m *mask) keep(from, to int) {
	for i := range m {
		lo, hi := max(from-i*64, 0), min(to-i*64, 64)
		if lo >= hi {
			m[i] = 0
			continue
		}
		m[i] &= span(lo, hi)
	}
}

// set puts the units [from, to) into m.
func (m *mask) set(from, to int) {
	for from < to {
		i := from / 64
		end := min(to, i*64+64)
		m[i] |= span(from-i*64, end-i*64)
		from = end
	}
}

// span returns the bits [lo, hi), lo < hi <= 64.
func span(lo, hi int) uint64 { return ^uint64(0) >> (64 - hi + lo) << lo }

// count returns the number of units in m and of runs of adjacent ones.
func (m *mask) count() (units, runs int) {
	var carry uint64
	for _, w := range m {
		if w == 0 {
			carry = 0
			continue
		}
		units += bits.OnesCount64(w)
		runs += bits.OnesCount64(w &^ (w<<1 | carry))
		carry = w >> 63
	}
	return units, runs
}

// next returns the first run of units at or after i; start is past every unit if
// there is none.
func (m *mask) next(i int) (start, end int) {
	const past = len(m) * 64
	w := i / 64
	if i >= past {
		return past, past
	}
	x := m[w] >> (i & 63) << (i & 63)
	for x == 0 {
		if w++; w == len(m) {
			return past, past
		}
		x = m[w]
	}
	start = w*64 + bits.TrailingZeros64(x)
	x = ^m[w] >> (start & 63) << (start & 63)
	for x == 0 {
		if w++; w == len(m) {
			return start, past
		}
		x = ^m[w]
	}
	return start, w*64 + bits.TrailingZeros64(x)
}

// appendRuns adds the runs of m, of units at byte off of the area, to r.
func (m *mask) appendRuns(r *Runs, off int64, unit int) {
	for start, end := m.next(0); start < len(m)*64; start, end = m.next(end) {
		r.Add(off+int64(start*unit), int64((end-start)*unit))
	}
}

// bytes views m as bytes: unit i is bit i%8 of byte i/8.
func (m *mask) bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(m)), len(m)*8) }
