package uffd

// piece is a part of a range that is still mapped: addresses [start, end) of the
// process show the area from off on.
type piece struct {
	start, end uint64
	off        int64
}

// within cuts [from, to) to the piece and returns the offset of its begin.
// The length is 0 or less if they do not meet.
func (p piece) within(from, to uint64) (off, n int64) {
	from, to = max(from, p.start), min(to, p.end)
	return p.off + int64(from-p.start), int64(to) - int64(from)
}

// addresses are those of the bytes [from, to) of the area. The first is not
// below the second if they are not in the piece.
func (p piece) addresses(from, to int64) (start, end uint64) {
	from, to = max(from, p.off), min(to, p.off+int64(p.end-p.start))
	return p.start + uint64(from-p.off), p.start + uint64(to-p.off)
}

// cut takes [from, to) out of the pieces and tells gone of the parts that it took.
func cut(pieces []piece, from, to uint64, gone func(piece)) []piece {
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
