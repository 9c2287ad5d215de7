package pages

import (
	"github.com/cespare/xxhash/v2"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Sums computes sums of pages, with which nodes find out that they have the same bytes. Two other pages have the same sum once in 2^64. Who may store to a file can make pages that have it more often, also without the seed: then other nodes keep the one that they have for the other.
// The zero value is not ready: see NewSums.
type Sums struct {
	digest *xxhash.Digest
	zero   uint64 // the sum of a page of zeroes
	Seed   uint64
}

// NewSums returns what computes sums with a seed.
func NewSums(seed uint64) *Sums {
	s := &Sums{digest: xxhash.NewWithSeed(seed), Seed: seed}
	s.zero = s.of(zeroPage)
	return s
}

func (s *Sums) of(page []byte) uint64 {
	s.digest.ResetWithSeed(s.Seed)
	_, _ = s.digest.Write(page) // never fails
	return s.digest.Sum64()
}

// Base returns the sum of Base(p). A page without memory gets none.
func (s *Sums) Base(a *Area, p dsm.PageIndex) uint64 {
	if a.HasTwin(p) || a.base.takes(p) {
		return s.of(a.Base(p))
	}
	return s.zero
}

// Home returns the sum of the home's bytes of page p of an extent that is homed here, likewise.
func (s *Sums) Home(a *Area, p dsm.PageIndex) uint64 {
	if a.base.takes(p) {
		return s.of(a.Home(p))
	}
	return s.zero
}
