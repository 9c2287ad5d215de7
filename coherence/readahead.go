package coherence

import "github.com/dsmfs/dsmfs/internal/dsm"

// readahead guesses from the pages that programs wait for which they will want next. It
// follows several streams at once, each forwards or backwards with a fixed stride; what was read ahead
// causes no fault, so a stream shows only where it runs out of pages.
//
// A stream starts at the second fault that follows another, or at the third with one
// stride. Each time it runs out it is read ahead
// twice as far, as Linux does for files, up to the window that the caller has room for: as a
// program that only reads is faster than any network it is always waiting at the front, and the
// window is what is on its way meanwhile.
type readahead struct {
	streams [8]stream
	clock   uint64
}

// stream is a sequence of faults.
type stream struct {
	last   int64 // page of the last fault
	front  int64 // first page, in the direction of the stream, that was not asked for; 0: an empty stream
	stride int64 // in pages; 0: not known yet
	size   int   // pages that were read ahead the last time
	used   uint64
}

// farthest is the longest stride that counts as one.
const farthest = dsm.ExtentPages

// firstAhead is how many pages the first readahead of a stream takes.
const firstAhead = 8

// next takes note of a wait for the bytes [off, off+n), and returns which pages to read
// ahead: count of them, at most window, first, first+stride and so on.
func (r *readahead) next(off int64, n, window int) (first dsm.PageIndex, stride int64, count int) {
	p, end := off/dsm.PageSize, (off+int64(n)-1)/dsm.PageSize
	r.clock++
	s := r.find(p)
	s.used = r.clock
	if delta := p - s.last; s.stride == 0 {
		known := s.front != 0
		s.last, s.front = end, end+1
		if !known {
			return 0, 1, 0
		}
		if s.stride, s.front = delta, end+delta; delta != 1 {
			return 0, 1, 0 // two random faults are near each other at times
		}
	}
	s.last = end
	if ahead := (s.front - end) * sign(s.stride); ahead <= 0 { // it has overtaken
		s.front = end + s.stride
	}
	// What is on its way already counts. A program that waits for each message would else ask for as
	// much as that brought, and messages would stay as small as the first.
	under := int((s.front-end)/s.stride) - 1
	if under > s.size*3/4 {
		return 0, 1, 0
	}
	s.size = min(max(2*s.size, firstAhead), window)
	if count = s.size - under; count <= 0 {
		return 0, 1, 0
	}
	first, stride = dsm.PageIndex(s.front), s.stride
	s.front += int64(count) * s.stride
	return first, stride, count
}

// find returns the stream that a wait for page p belongs to: one that was to come by it, or
// whose last fault is near and that has no stride yet, or the one that was used least lately, emptied.
func (r *readahead) find(p int64) *stream {
	oldest := &r.streams[0]
	var near *stream
	for i := range r.streams {
		s := &r.streams[i]
		if s.used < oldest.used {
			oldest = s
		}
		switch d := p - s.last; {
		case s.used == 0:
		case s.stride != 0 && d*sign(s.stride) > 0 && d%s.stride == 0 && (p-s.front)*sign(s.stride) <= abs(s.stride):
			return s
		case s.stride == 0 && d != 0 && abs(d) <= farthest && (near == nil || near.used < s.used):
			near = s
		}
	}
	if near != nil {
		return near
	}
	*oldest = stream{}
	return oldest
}

func abs(x int64) int64 { return x * sign(x) }

func sign(x int64) int64 {
	if x < 0 {
		return -1
	}
	return 1
}
