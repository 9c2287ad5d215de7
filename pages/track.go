package pages

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Source finds what a program stores into its own mapping of a working copy. internal/uffd has an
// implementation; it does not need the lock of the area.
type Source interface {
	// Scan reports what was stored since the last Scan, as runs of bytes of the area. It continues
	// to watch from before it looked, so no store is missed. It cannot tell of stores before the first
	// Scan or while disarmed, nor of those in memory that was unmapped. Such ranges are reported as
	// suspect, and must be compared. After an error the Source cannot be used any more.
	Scan(stored, suspect func(off, n int64)) error
	// Disarm lets the program store at full speed, without being watched; Arm ends that.
	Disarm() error
	Arm() error
}

// Tracking knows which mappings of one area programs of this node have for writing, and finds what
// was stored into them: from each mapping's Source, or by comparing with the base copy.
//
// A store to a watched page costs a fault of 1.6 to 2.9 us (K19). Comparing a page costs 0.6 us
// (K24), whether it was stored to or not. So a mapping is compared if its program stores to a large
// part of it each round, until a round finds little. A mapping of few pages is always compared: with
// the system calls of a scan, and a fault for each page stored to, that is cheaper.
//
// Its user calls it under a lock of its own, not that of the area: Scan may wait for the program's
// mmap_lock, which a thread may have that waits for a READ.
type Tracking struct {
	mappings map[*Mapping]struct{}
	sum      TrackingStats
}

// Mapping is a part of an area that a program has mapped for writing.
type Mapping struct {
	source  Source // nil: always compare
	off, n  int64
	compare bool // do not ask the source
	dense   int  // consecutive rounds that found much
	small   bool // stays compared
}

// TrackingStats counts what was done.
type TrackingStats struct {
	Mappings  int // now
	Comparing int // how many of them are compared now
	Scans     uint64
	Compared  uint64 // pages
	Found     uint64 // pages reported by a Source
	// CompareTime is what comparing whole mappings took.
	CompareTime time.Duration
}

// A round is dense or sparse by the share of a mapping's pages in it. In between nothing changes.
const (
	denseShare  = 4  // more than a quarter
	sparseShare = 16 // less than a sixteenth
	// denseRounds consecutive dense rounds make comparing worthwhile.
	denseRounds = 2
	// leastDense is how many pages a mapping must have: few cost nothing either way.
	leastDense = 64
	// fewPages is how many pages a mapping has at most that is always compared. Scanning them takes
	// five system calls, as long as comparing about 24 (K40).
	fewPages = 24
)

// Add adds a mapping of [off, off+n). Without a source it is always compared.
func (t *Tracking) Add(s Source, off, n int64) *Mapping {
	if t.mappings == nil {
		t.mappings = make(map[*Mapping]struct{})
	}
	few := n <= fewPages*dsm.PageSize
	m := &Mapping{source: s, off: off, n: n, compare: s == nil || few && s.Disarm() == nil}
	m.small = few && m.compare
	t.mappings[m] = struct{}{}
	return m
}

// Remove removes a mapping. What was stored last must be found by comparing it once more.
func (t *Tracking) Remove(m *Mapping) { delete(t.mappings, m) }

// Empty reports whether nothing is mapped for writing.
func (t *Tracking) Empty() bool { return len(t.mappings) == 0 }

// Brief reports whether Collect takes little time and asks no Source.
func (t *Tracking) Brief() bool {
	for m := range t.mappings {
		if !m.small {
			return false
		}
	}
	return len(t.mappings) <= fewMappings
}

// fewMappings bounds what Brief takes for little.
const fewMappings = 4

// Range returns the part of the area that is mapped.
func (m *Mapping) Range() (off, n int64) { return m.off, m.n }

// Collect reports what was stored since the last Collect. stored is called for ranges of bytes that
// were stored to. compared is called for ranges that must be compared with the base copy, and
// returns how many pages it looked at and how many of these had changed.
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
			m.compareWith(t, compared) // stores made after the Scan
		}
	}
}

// compareWith compares the whole mapping, and returns to its source if little of it changed.
func (m *Mapping) compareWith(t *Tracking, compared func(off, n int64) (looked, changed int)) {
	began := time.Now()
	looked, changed := compared(m.off, m.n)
	t.sum.CompareTime += time.Since(began)
	t.sum.Compared += uint64(looked)
	if m.source != nil && m.compare && !m.small && changed*sparseShare < looked+sparseShare && m.source.Arm() == nil {
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
