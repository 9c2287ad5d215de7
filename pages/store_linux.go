package pages

import (
	"fmt"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Store keeps pages apart from the memory of any area, outside of the Go heap: pieces of the arena that all areas share, so that one with a single
// page takes no more. Pages that are all zero need not be kept. The zero value is ready for use; the lock of its owner guards it.
type Store struct {
	pages map[dsm.PageIndex]piece
}

// Page returns the bytes of page p for changing them; they are all zero if it was not kept. Like the Go heap, it does not return if there is no
// memory: the node stays within its budget because growth is refused.
func (s *Store) Page(p dsm.PageIndex) []byte {
	x, ok := s.pages[p]
	if !ok {
		var err error
		if _, x, err = smallCopies.take(dsm.PageSize); err != nil {
			panic(fmt.Sprintf("no memory for a page of a copy: %v", err))
		}
		if s.pages == nil {
			s.pages = make(map[dsm.PageIndex]piece)
		}
		s.pages[p] = x
	}
	return x.mem()
}

// Look returns the bytes of page p for reading.
func (s *Store) Look(p dsm.PageIndex) []byte {
	if x, ok := s.pages[p]; ok {
		return x.mem()
	}
	return zeroPage
}

// Settle frees the memory of page p if it is all zero.
func (s *Store) Settle(p dsm.PageIndex) {
	if x, ok := s.pages[p]; ok && allZero(x.mem()) {
		s.Drop(p)
	}
}

// Drop frees the memory of page p. From then on it is all zero.
func (s *Store) Drop(p dsm.PageIndex) {
	if x, ok := s.pages[p]; ok {
		delete(s.pages, p)
		give(x)
	}
}

func give(x piece) {
	if err := smallCopies.give(x); err != nil {
		panic(fmt.Sprintf("giving a page of a copy back: %v", err))
	}
}

// Bytes returns the memory that the pages take.
func (s *Store) Bytes() int64 { return int64(len(s.pages)) * dsm.PageSize }

// Close frees all pages.
func (s *Store) Close() {
	for _, x := range s.pages {
		give(x)
	}
	s.pages = nil
}
