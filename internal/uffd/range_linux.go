package uffd

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Range is a mapping in another process whose stores are tracked.
//
// The promise: every store that was made through the mapping before a Scan began
// is in the Stores of that Scan or of an earlier one. It holds through munmap,
// mremap, MADV_DONTNEED, reclaim, exit, exec and SIGKILL of the process.
//
// All methods may be called by any goroutine at any time. Those that look at what was stored,
// or change what is tracked, take the lock of
// the Range, under which the userfaultfd is also read. That makes the promise exact:
// the kernel lets a munmap go on when its event is read, so a process that has
// seen munmap return finds that the event has been taken in.
type Range struct {
	uffd    int // valid until file is closed, which is after closed is set
	file    *os.File
	raw     syscall.RawConn
	pagemap int
	process *process
	mode    Mode
	off     int64          // in the memfd, in bytes, of what Track was called for
	length  int64          // of that, in bytes
	watcher sync.WaitGroup // the goroutines that read events, or call Missing

	missing  func(off int64) // Config.Missing
	memory   memory          // with missing
	readOnly bool            // Config.ReadOnly
	waits    waits

	gone         chan struct{}
	goneOnce     func() // closes gone and unmapped
	unmapped     chan struct{}
	unmappedOnce func() // closes unmapped

	// mapped are the pieces, a slice that does not change: Wake reads it without the lock,
	// under which it is replaced.
	mapped atomic.Pointer[[]piece]

	mu struct {
		lockrank.Mutex
		state   state
		lost    error   // why state is lost
		events  int     // how often the pieces changed
		missed  []int64 // offsets that Missing must be called for
		suspect []Run
		scanner scanner
		noted   pageSet // Sync: pages that were stored to since the last Scan
		batch   [64]message
	}
}

// state is what the protection of the pieces is.
type state uint8

const (
	armed    state = iota
	disarmed       // by Disarm: all that is mapped is suspect in each Scan
	lost           // tracking failed: like disarmed, for good
	dead           // the memory is gone: nothing more to find
	closed
)

// newRange returns the Range of a mapping of which nothing is checked yet, so it
// allocates nothing of the length that the process said.
func newRange(c Config) *Range {
	r := &Range{
		uffd: c.UFFD, pagemap: -1, mode: c.Mode, off: c.Off, length: int64(c.Length),
		missing: c.Missing, memory: memory{-1, c.Dev, c.Ino}, readOnly: c.ReadOnly, gone: make(chan struct{}), unmapped: make(chan struct{}),
	}
	r.unmappedOnce = sync.OnceFunc(func() { close(r.unmapped) })
	r.goneOnce = sync.OnceFunc(func() {
		close(r.gone)
		r.unmappedOnce()
	})
	r.mu.Init("uffd.Range")
	r.waits.init()
	r.mapped.Store(&[]piece{{c.Addr, c.Addr + c.Length, c.Off}})
	r.suspectAllLocked()
	if r.mode == Compare {
		r.mu.state = disarmed
	}
	return r
}

// Mode returns how stores are found.
func (r *Range) Mode() Mode { return r.mode }

// Gone is closed when the process has ended, or its memory was seen to be gone
// (exec). One Scan after that returns what is suspect because of it.
func (r *Range) Gone() <-chan struct{} { return r.gone }

// Lost returns why nothing is tracked any more though the mapping may still be
// there, or nil. Each Scan then returns the whole as Suspect. It is for people: a
// program that undid the registration itself, or a kernel that fails.
func (r *Range) Lost() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.lost
}

// Arm starts tracking again after Disarm. The next Scan returns the whole as Suspect.
// It is an error to call it on a range that is closed; where tracking is lost, and in
// mode Compare, it does nothing.
func (r *Range) Arm() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.mu.state {
	case closed:
		return errClosed("arm")
	case disarmed:
		if r.mode == Compare {
			break
		}
		r.mu.state = armed
		clear(r.mu.noted)
		r.drainLocked()
		r.protectAllLocked(true)
		r.suspectAllLocked()
	}
	return nil
}

// Disarm takes the protection away, so that stores cost nothing. Until Arm, each Scan
// returns all that is mapped as Suspect. It is for areas of which most pages
// are stored to between two scans: comparing is cheaper than a fault for each page.
func (r *Range) Disarm() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.mu.state {
	case closed:
		return errClosed("disarm")
	case armed:
		r.mu.state = disarmed
		r.drainLocked()
		r.protectAllLocked(false)
	}
	return nil
}

// Close ends the tracking and waits until nothing uses the userfaultfd. Threads
// of the process that wait for this package go on. What was stored to and not scanned is
// forgotten: a caller that needs it scans before, or compares after.
//
// With Missing it first poisons every mapped page that is a hole of the memfd: who
// waits for one, or touches it later, gets SIGBUS and never a zero. Pages that are there can be
// used on. So nothing may be punched out of the memfd any more, neither while Close
// runs nor after it, as long as the process has the mapping; where that cannot be promised
// the Range is kept until Unmapped. Close must not be called by Missing. If a thread of the process does not
// end a munmap within two seconds nothing can be poisoned: Close then fails with errs.Timeout
// and the Range is as before.
func (r *Range) Close() error {
	if already, err := r.shut(); already || err != nil {
		return err
	}
	// Closing wakes the watcher, which must be able to take the lock to end.
	err := r.file.Close()
	r.process.close()
	r.watcher.Wait()
	closeFD(r.pagemap)
	if r.memory.fd >= 0 {
		closeFD(r.memory.fd)
	}
	if err != nil {
		return errs.E(errs.Other, "close userfaultfd", "%w", err)
	}
	return nil
}

// shut poisons and unregisters, once.
func (r *Range) shut() (already bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.state == closed {
		return true, nil
	}
	if r.missing != nil {
		if err := r.sealLocked(); err != nil {
			return false, err
		}
	}
	r.releaseLocked()
	r.mu.state = closed
	return false, nil
}

func errClosed(op string) error {
	return errs.E(errs.Closed, op, "the mapping is not tracked any more")
}

// releaseLocked unregisters the mapping, which wakes threads that wait in a fault,
// and reads the events that threads wait for. What fails is gone already.
func (r *Range) releaseLocked() {
	r.drainLocked()
	for _, p := range r.pieces() {
		_ = unregister(r.uffd, p.start, p.end-p.start)
	}
	r.drainLocked()
}

// loseLocked gives the tracking up: the process runs freely and all is suspect. Where
// pages can be missing the mapping stays registered, as else the process would read
// zeroes; protection that cannot be taken away the kernel takes away at the store.
func (r *Range) loseLocked(err error) {
	if r.mu.state > disarmed {
		return
	}
	r.mu.state, r.mu.lost = lost, err
	if r.missing == nil {
		r.releaseLocked()
		return
	}
	for _, p := range r.pieces() {
		_ = protect(r.uffd, p.start, p.end-p.start, false)
	}
}

// deafLocked gives up when events cannot be read: nobody would serve a missing page.
func (r *Range) deafLocked(err error) {
	if r.mu.state > disarmed {
		return
	}
	r.loseLocked(err)
	if r.missing != nil {
		// What cannot be poisoned blocks for ever, but reads no zero.
		_, _ = r.tryPoisonHolesLocked()
	}
}

// dieLocked notes that the memory of the process is gone.
func (r *Range) dieLocked() {
	if r.mu.state == closed || r.mu.state == dead {
		return
	}
	r.suspectAllLocked()
	r.mu.state = dead
	r.setPiecesLocked(nil)
	r.goneOnce()
}

func (r *Range) suspectAllLocked() {
	for _, p := range r.pieces() {
		r.suspectLocked(p.off, int64(p.end-p.start))
	}
}

func (r *Range) suspectLocked(off, n int64) {
	if !r.readOnly {
		r.mu.suspect = extend(r.mu.suspect, off, n)
	}
}

// pieces are what is mapped.
func (r *Range) pieces() []piece { return *r.mapped.Load() }

func (r *Range) setPiecesLocked(pieces []piece) {
	r.mapped.Store(&pieces)
	if len(pieces) == 0 {
		r.unmappedOnce()
	}
}

// protectAllLocked sets or takes away the protection of all that is mapped.
func (r *Range) protectAllLocked(on bool) { r.protectLocked(r.off, r.length, on) }

// protectLocked sets or takes away the protection of those pages of the area that are
// mapped. If that fails, the tracking is lost or the process dead, and nothing waits.
func (r *Range) protectLocked(off, n int64, on bool) {
	for r.mu.state <= disarmed {
		events := r.mu.events
		err := r.tryProtectLocked(off, n, on)
		switch {
		case err == nil:
			return
		case !r.settleLocked():
			return
		case err == unix.EAGAIN:
			// It was within a munmap or mremap, and is not now.
		case r.mu.events == events:
			// The pieces are what is mapped, so it was unregistered behind our back.
			if !memoryLives(r.pagemap) {
				r.dieLocked()
				return
			}
			r.loseLocked(errs.E(errs.Other, "protect mapping", "UFFDIO_WRITEPROTECT: %w", err))
		}
	}
}

func (r *Range) tryProtectLocked(off, n int64, on bool) error {
	for _, p := range r.pieces() {
		if start, end := p.addresses(off, off+n); start < end {
			if err := protect(r.uffd, start, end-start, on); err != nil {
				return err
			}
		}
	}
	return nil
}

// settleTime bounds how long a thread of the process may take between the begin
// of a munmap and its event, and from the event back to running. It needs no more than
// to be scheduled; it is also not stopped there by SIGSTOP. Linux before 6.12
// forgets to end the state after an mremap that failed.
const settleTime = 2 * time.Second

// settleLocked reads events until the process is within no munmap or mremap, and
// reports whether the range is still tracked. So every munmap that began before is
// known when it returns.
func (r *Range) settleLocked() bool {
	if r.mu.state > disarmed {
		return false
	}
	if err := r.quietLocked(); err != nil {
		r.loseLocked(err)
	}
	return r.mu.state <= disarmed
}

// quietLocked does so whatever the state is.
func (r *Range) quietLocked() error {
	var deadline time.Time
	for r.mu.state < dead {
		r.drainLocked()
		if !changing(r.uffd) {
			break
		}
		if !memoryLives(r.pagemap) {
			r.dieLocked()
			break
		}
		now := time.Now()
		if deadline.IsZero() {
			deadline = now.Add(settleTime)
		} else if now.After(deadline) {
			return errs.E(errs.Timeout, "protect mapping", "the process does not end a munmap or mremap")
		}
		// An event ends the wait; that the thread has gone on after it makes none.
		wait := unix.Timespec{Nsec: int64(100 * time.Microsecond)}
		_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(r.uffd), Events: unix.POLLIN}}, &wait, nil)
	}
	return nil
}
