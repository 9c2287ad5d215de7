package uffd

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

const opPoison = "poison pages"

// Poison makes every touch of the pages [off, off+n), offsets in the memfd, a SIGBUS (EFAULT for a
// system call), except for pages that are in the process's page table: a page that it has touched
// stays as it is. Threads that wait for one of the pages go on. A poisoned page stays poisoned,
// even when it is filled, until the program uses MADV_DONTNEED on it, unmaps it or ends; then it is
// like any other. Poison may wait for a Scan and for the memory map of the process.
//
// Errors: Closed; Invalid for a Range without Missing; Timeout if a thread of the process does not
// end a munmap: then nothing has changed, and the threads still wait.
func (r *Range) Poison(off, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.state == closed:
		return errClosed(opPoison)
	case r.missing == nil:
		return errs.E(errs.Invalid, opPoison, "the Range has no Missing")
	}
	for r.mu.state < dead {
		err := r.tryPoisonLocked(off, n)
		switch {
		case err == nil:
			r.waits.remove(off, off+n)
			r.wakeMapped(r.uffd, off, n)
			return nil
		case !memoryLives(r.pagemap):
			r.dieLocked()
		case !errors.Is(err, unix.EAGAIN):
			return errs.E(errs.Other, opPoison, "UFFDIO_POISON: %w", err)
		}
		if err := r.quietLocked(); err != nil {
			return err
		}
	}
	return nil
}

// tryPoisonLocked poisons page by page, because a run may consist of several mappings.
func (r *Range) tryPoisonLocked(off, n int64) error {
	for _, p := range r.pieces() {
		start, end := p.addresses(off, off+n)
		for ; start < end; start += pageSize {
			if err := poisonRun(r.uffd, start, start+pageSize); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return nil
}

// sealLocked poisons all that is mapped and is a hole of the memfd.
func (r *Range) sealLocked() error {
	for r.mu.state < dead {
		if err := r.quietLocked(); err != nil {
			return err
		}
		again, err := r.tryPoisonHolesLocked()
		switch {
		case errors.Is(err, unix.EAGAIN):
		case !memoryLives(r.pagemap):
			r.dieLocked()
		case err != nil:
			return errs.E(errs.Other, opPoison, "%w", err)
		case !again:
			return nil
		}
	}
	return nil
}

// tryPoisonHolesLocked poisons once; again reports that the mappings have changed meanwhile.
func (r *Range) tryPoisonHolesLocked() (again bool, err error) {
	shown, err := mapped(r.process.pid, r.memory.dev, r.memory.ino)
	if err != nil {
		return false, err
	}
	var at []piece
	for _, p := range r.pieces() {
		without(shown, p.start, p.end, func(q piece) { at = append(at, q) })
	}
	return poisonHoles(r.uffd, r.process.pid, r.memory, at)
}

// memory is a memfd: a descriptor with a file position of its own, and the identity of the file.
type memory struct {
	fd       int
	dev, ino uint64
}

// poisonHoles poisons the holes of the memfd in mappings of it that the process was just seen to
// have. again reports that the process is changing its mappings, or that some are not as they were
// seen: split by mprotect, which makes no event, or unmapped. EAGAIN: the process is within a
// munmap or mremap.
func poisonHoles(fd, pid int, m memory, at []piece) (again bool, err error) {
	lacking := false
	for _, p := range at {
		err := holes(m.fd, p.off, p.off+int64(p.end-p.start), func(from, to int64) error {
			start, end := p.addresses(from, to)
			return poisonRun(fd, start, end)
		})
		switch {
		case errors.Is(err, unix.ENOENT):
			lacking = true
		case err != nil:
			return false, err
		}
	}
	if changing(fd) {
		return true, nil
	}
	if !lacking {
		return false, nil
	}
	now, err := mapped(pid, m.dev, m.ino)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(at, func(p piece) bool { return !slices.Contains(now, p) }), nil
}

// poisonRun poisons [start, end), which lies in one mapping, except for pages with an entry in the
// page table: those that are there, and those that were poisoned before.
func poisonRun(fd int, start, end uint64) error {
	// A mark of write protection is an entry too. A mapping that is not registered for write
	// protection has none.
	if err := protect(fd, start, end-start, false); errors.Is(err, unix.EAGAIN) {
		return err
	}
	for start < end {
		done, err := poison(fd, start, end-start)
		start += done
		switch {
		case err == nil, done > 0:
		case errors.Is(err, unix.EEXIST):
			start += pageSize
		default:
			return err
		}
	}
	return nil
}

// holes calls f with each run of [from, to) that is a hole of the file, or lies past its end.
func holes(fd int, from, to int64, f func(from, to int64) error) error {
	runs := DataRuns
	if _, err := CountPages(fd, from, to); CannotCount(err) {
		runs = seekRuns
	}
	err := runs(fd, from, to, func(data, end int64) error {
		start := from
		from = end
		if start == data {
			return nil
		}
		return f(start, data)
	})
	if err != nil || from >= to {
		return err
	}
	return f(from, to)
}

// seekRuns is DataRuns by lseek(2).
func seekRuns(fd int, from, to int64, f func(from, to int64) error) error {
	for from < to {
		data, err := unix.Seek(fd, from, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= to {
			return nil
		}
		if err != nil {
			return err
		}
		if from, err = unix.Seek(fd, data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if err := f(data, min(from, to)); err != nil {
			return err
		}
	}
	return nil
}
