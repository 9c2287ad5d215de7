package uffd

// piece is a part of a range that is still mapped: the addresses [start, end) of the process show
// the area from off on.
type piece struct {
	start, end uint64
	off        int64
}

// within returns the part of [from, to) that is in the piece, as an offset in the area and a
// length. The length is 0 or less if there is none.
func (p piece) within(from, to uint64) (off, n int64) {
	from, to = max(from, p.start), min(to, p.end)
	return p.off + int64(from-p.start), int64(to) - int64(from)
}

// addresses returns the addresses of the bytes [from, to) of the area that are in the piece; start
// is not below end if there are none.
func (p piece) addresses(from, to int64) (start, end uint64) {
	from, to = max(from, p.off), min(to, p.off+int64(p.end-p.start))
	return p.start + uint64(from-p.off), p.start + uint64(to-p.off)
}

// without removes [from, to) from the pieces and calls gone for each part that it removed.
func without(pieces []piece, from, to uint64, gone func(piece)) []piece {
	var left []piece
	for _, p := range pieces {
		off, n := p.within(from, to)
		if n <= 0 {
			left = append(left, p)
			continue
		}
		start := p.start + uint64(off-p.off)
		end := start + uint64(n)
		gone(piece{start, end, off})
		if p.start < start {
			left = append(left, piece{p.start, start, p.off})
		}
		if end < p.end {
			left = append(left, piece{end, p.end, off + n})
		}
	}
	return left
}
