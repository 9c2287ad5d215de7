package coherence

import "github.com/dsmfs/dsmfs/internal/dsm"

// readahead guesses from the pages that programs wait for which ones they will want next. It
// follows several streams at once, each forwards or backwards with a fixed stride. Pages that were
// read ahead cause no fault, so a stream shows only where it runs out of pages.
//
// A stream starts at the second fault if that follows another directly, or at the third with the
// same stride. Each time it runs out, it is read ahead twice as far as before, as Linux does for
// files, up to the window for which the caller has room. A program that only reads is faster than
// any network, so it always waits at the front, and the window is what is under way meanwhile.
type readahead struct {
	streams [8]stream
	clock   uint64
}

// stream is a sequence of faults.
type stream struct {
	last   int64 // page of the last fault
	front  int64 // first page, in the direction of the stream, that was not asked for; 0: the stream is empty
	stride int64 // in pages; 0: not known yet
	size   int   // pages that were read ahead last time
	used   uint64
}

// farthest is the longest stride that is followed.
const farthest = dsm.ExtentPages

// firstAhead is how many pages the first readahead of a stream takes.
const firstAhead = 8

// next records a wait for the bytes [off, off+n), and returns which pages to read ahead: count
// pages, at most window: first, first+stride and so on.
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
			return 0, 1, 0 // two random faults are sometimes near each other
		}
	}
	s.last = end
	if ahead := (s.front - end) * sign(s.stride); ahead <= 0 { // the program has overtaken the readahead
		s.front = end + s.stride
	}
	// Pages that are on their way already count. Else a program that waits for each message would always ask for as much as the last one brought, and the messages
	// would never grow.
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

// find returns the stream to which a wait for page p belongs: one that was expected to come by it,
// or one without a stride whose last fault is near; otherwise the least recently used one, emptied.
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
