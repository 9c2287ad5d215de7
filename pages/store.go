package pages

import "github.com/dsmfs/dsmfs/internal/dsm"

// Store keeps pages apart from the memory of any area, outside of the Go heap. Pages that are all zero need not be kept. The zero
// value is ready for use; the lock of its owner guards it.
type Store struct {
	frames frames
	pages  map[dsm.PageIndex]frame
}

// Page returns the bytes of page p for changing them; they are all zero if it was not kept.
func (s *Store) Page(p dsm.PageIndex) []byte {
	f, ok := s.pages[p]
	if !ok {
		f = s.frames.take()
		clear(f.mem)
		if s.pages == nil {
			s.pages = make(map[dsm.PageIndex]frame)
		}
		s.pages[p] = f
	}
	return f.mem
}

// Look returns the bytes of page p for reading.
func (s *Store) Look(p dsm.PageIndex) []byte {
	if f, ok := s.pages[p]; ok {
		return f.mem
	}
	return zeroPage
}

// Settle frees the memory of page p if it is all zero.
func (s *Store) Settle(p dsm.PageIndex) {
	if f, ok := s.pages[p]; ok && allZero(f.mem) {
		s.Drop(p)
	}
}

// Drop frees the memory of page p. From then on it is all zero.
func (s *Store) Drop(p dsm.PageIndex) {
	if f, ok := s.pages[p]; ok {
		delete(s.pages, p)
		s.frames.put(f)
	}
}

// Bytes returns the memory that the pages take.
func (s *Store) Bytes() int64 { return s.frames.bytes() }

// Close frees all pages.
func (s *Store) Close() {
	s.frames.close()
	s.pages = nil
}
