package uffd

import (
	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// Scan appends to s what was stored to since the last Scan, and arms it again.
//
// A store made while Scan runs is in this Scan or in the next. Nothing is reported twice as Suspect, with two exceptions: a range that is disarmed or has
// failed is Suspect as a whole in each Scan, and every range is in the first Scan after Track or Arm. No thread of the process is stopped, and one that is
// stopped does not stop Scan. The only error is that the range is closed.
//
// # Deadlocks
//
// Scan waits for the lock of the memory map of the process. A thread of the process that holds that
// lock may be waiting for a file of a FUSE mount, so the caller must not hold anything that
// answering such a request needs.
func (r *Range) Scan(s *Stores) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.state == closed {
		return errClosed("scan")
	}
	r.drainLocked()
	if r.mu.state == armed {
		if r.mode == Async {
			r.scanAsyncLocked(s)
		} else {
			r.scanSyncLocked(s)
		}
	}
	// A mapping that was removed before it was scanned left no trace in the scan. But its event is
	// there now, or the whole memory is gone.
	r.settleLocked()
	if !memoryLives(r.pagemap) {
		r.dieLocked()
	}
	if r.mu.state == disarmed || r.mu.state == failed {
		r.suspectAllLocked()
	}
	s.Suspect = append(s.Suspect, r.mu.suspect...)
	r.mu.suspect = r.mu.suspect[:0]
	return nil
}

func (r *Range) scanAsyncLocked(s *Stores) {
	for _, p := range r.pieces() {
		err := r.mu.scanner.scan(p.start, p.end, func(from, to uint64) {
			off, n := p.within(from, to)
			s.Written = extend(s.Written, off, n)
		})
		if err == nil {
			continue
		}
		if !memoryLives(r.pagemap) {
			r.dieLocked()
			return
		}
		// It is not known what was armed before the error.
		r.suspectLocked(p.off, int64(p.end-p.start))
		events := r.mu.events
		if err == unix.EPERM && r.settleLocked() && r.mu.events != events {
			continue // something else was mapped there; the next scan arms what is left
		}
		r.failLocked(errs.E(errs.Other, "scan mapping", "PAGEMAP_SCAN: %w", err))
		return
	}
}

// scanSyncLocked removes a page from noted, protects it and reports it, in this order, so that a
// store after that is noted again.
func (r *Range) scanSyncLocked(s *Stores) {
	page := int64(pageSize)
	r.mu.noted.runs(r.length/page, func(from, to int64) {
		off, n := r.off+from*page, (to-from)*page
		r.mu.noted.removeRun(from, to)
		r.protectLocked(off, n, true)
		s.Written = extend(s.Written, off, n)
	})
}
