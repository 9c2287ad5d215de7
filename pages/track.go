package pages

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Source finds what a program stores into its own mapping of a working copy.
// internal/uffd has one; it needs no lock of the area.
type Source interface {
	// Scan reports what was stored since the last Scan, as runs of bytes of the
	// area, and goes on watching from before it looked: nothing falls between.
	// What it cannot tell, as after an munmap and of the time before the first Scan and before
	// an Arm, it reports as suspect: to be compared. After an error it is of no use.
	Scan(stored, suspect func(off, n int64)) error
	// Disarm lets the program store at full speed, unseen; Arm ends that.
	Disarm() error
	Arm() error
}

// Tracking knows the mappings of one area that programs of this node have for
// writing, and finds out what was stored into them: from each mapping's Source, or
// by comparing with the base copy.
//
// A store to a page that is watched costs a fault of 1.6 to 2.9 us (K19), comparing a page
// 0.6 us (K24), whether it was stored to or not. So a mapping of which a program
// stores to a large part each round is compared, until a round finds little.
//
// Its user calls it under a lock of its own that is not the area's: Scan may wait
// for the program's mmap_lock, which a thread holds that waits for a READ.
type Tracking struct {
	mappings map[*Mapping]struct{}
	sum      TrackingStats
}

// Mapping is a part of an area that a program has mapped for writing.
type Mapping struct {
	source  Source // nil: compare
	off, n  int64
	compare bool // do not ask the source
	dense   int  // rounds in a row that found much
}

// TrackingStats counts what was done.
type TrackingStats struct {
	Mappings  int // now
	Comparing int // of them, those that are compared now
	Scans     uint64
	Compared  uint64 // pages
	Found     uint64 // pages that a Source reported
	// CompareTime is what comparing whole mappings took.
	CompareTime time.Duration
}

// How many of a mapping's pages make a round dense or sparse. Between them it goes on
// as before.
const (
	denseShare  = 4  // more than a quarter
	sparseShare = 16 // less than a sixteenth
	// denseRounds in a row make it worth comparing.
	denseRounds = 2
	// leastDense is how many pages there must be: few cost nothing either way.
	leastDense = 64
)

// Add takes up a mapping of [off, off+n). Without a source it is always compared.
func (t *Tracking) Add(s Source, off, n int64) *Mapping {
	if t.mappings == nil {
		t.mappings = make(map[*Mapping]struct{})
	}
	m := &Mapping{source: s, off: off, n: n, compare: s == nil}
	t.mappings[m] = struct{}{}
	return m
}

// Remove ends a mapping. What was stored last must be found by comparing it once more.
func (t *Tracking) Remove(m *Mapping) { delete(t.mappings, m) }

// Empty reports whether nothing is mapped for writing.
func (t *Tracking) Empty() bool { return len(t.mappings) == 0 }

// Range returns the part of the area that is mapped.
func (m *Mapping) Range() (off, n int64) { return m.off, m.n }

// Collect reports what was stored since the last Collect: ranges of bytes that were
// stored to, or that have to be compared with the base copy. compared is called for the
// latter and returns how many pages it looked at and how many of them had changed.
func (t *Tracking) Collect(stored func(off, n int64), compared func(off, n int64) (looked, changed int)) {
	for m := range t.mappings {
		if m.compare {
			m.compareWith(t, compared)
			continue
		}
		found := 0
		t.sum.Scans++
		err := m.source.Scan(func(off, n int64) {
			found += int((n + dsm.PageSize - 1) / dsm.PageSize)
			stored(off, n)
		}, func(off, n int64) {
			looked, changed := compared(off, n)
			t.sum.Compared += uint64(looked)
			found += changed
		})
		t.sum.Found += uint64(found)
		if err != nil { // the Source was closed: compare from now on
			m.compare = true
			m.compareWith(t, compared)
			continue
		}
		if found < leastDense || int64(found)*dsm.PageSize*denseShare < m.n {
			m.dense = 0
			continue
		}
		if m.dense++; m.dense >= denseRounds && m.source.Disarm() == nil {
			m.compare, m.dense = true, 0
			m.compareWith(t, compared) // what was stored since the Scan
		}
	}
}

// compareWith compares all of the mapping, and goes back to its source if little of it changed.
func (m *Mapping) compareWith(t *Tracking, compared func(off, n int64) (looked, changed int)) {
	began := time.Now()
	looked, changed := compared(m.off, m.n)
	t.sum.CompareTime += time.Since(began)
	t.sum.Compared += uint64(looked)
	if m.source != nil && m.compare && changed*sparseShare < looked+sparseShare && m.source.Arm() == nil {
		m.compare = false
	}
}

// Add adds the counts of o.
func (s *TrackingStats) Add(o TrackingStats) {
	s.Mappings += o.Mappings
	s.Comparing += o.Comparing
	s.Scans += o.Scans
	s.Compared += o.Compared
	s.Found += o.Found
	s.CompareTime += o.CompareTime
}

// Stats returns the counts.
func (t *Tracking) Stats() TrackingStats {
	s := t.sum
	s.Mappings = len(t.mappings)
	for m := range t.mappings {
		if m.compare {
			s.Comparing++
		}
	}
	return s
}
