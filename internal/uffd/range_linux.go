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
// The promise: every store that was made through the mapping before a Scan began is in the Stores
// of that Scan or of an earlier one. It holds through munmap, mremap, MADV_DONTNEED, reclaim, exit,
// exec and SIGKILL of the process.
//
// All methods may be called by any goroutine at any time. Methods that look at what was stored, or
// change what is tracked, take the lock of the Range, under which the userfaultfd is also read.
// That makes the promise exact: the kernel lets a munmap go on when its event is read, so when a
// process has seen munmap return, its event has been handled.
type Range struct {
	uffd    int // valid until file is closed, which happens after closed is set
	file    *os.File
	raw     syscall.RawConn
	pagemap int
	process *process
	mode    Mode
	off     int64          // offset in the memfd, in bytes, of the range given to Track
	length  int64          // its length, in bytes
	watcher sync.WaitGroup // the goroutines that read events, or call Missing

	missing  func(off int64) // Config.Missing
	memory   memory          // with missing
	readOnly bool            // Config.ReadOnly
	waits    waits

	gone         chan struct{}
	goneOnce     func() // closes gone and unmapped
	unmapped     chan struct{}
	unmappedOnce func() // closes unmapped

	// mapped has the pieces that are mapped. The slice is never changed; it is replaced under the
	// lock, and Wake reads it without.
	mapped atomic.Pointer[[]piece]

	mu struct {
		lockrank.Mutex
		state   state
		failure error   // why state is failed
		events  int     // how often the pieces have changed
		missed  []int64 // offsets for which Missing must be called
		suspect []Run
		scanner scanner
		noted   pageSet // Sync: pages that were stored to since the last Scan
		batch   [64]message
	}
}

// state is the state of the pieces' protection.
type state uint8

const (
	armed    state = iota
	disarmed       // by Disarm: in each Scan all that is mapped is suspect
	failed         // tracking failed: like disarmed, for good
	dead           // the memory is gone: there is nothing more to find
	closed
)

// newRange returns the Range of a mapping. As nothing of it has been checked yet, it allocates
// nothing in proportion to the length that the process gave.
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

// Gone is closed when the process has ended, or its memory was seen to be gone (exec). One Scan
// after that returns what is suspect because of it.
func (r *Range) Gone() <-chan struct{} { return r.gone }

// Failure returns why nothing is tracked any more though the mapping may still exist, or nil. Each
// Scan then returns the whole as Suspect. Reasons, meant for people, are a program that undid the
// registration, or a kernel that fails.
func (r *Range) Failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.failure
}

// Arm starts tracking again after Disarm. The next Scan returns the whole as Suspect. It is an
// error to call it on a closed Range. After a failure, and in mode Compare, it does nothing.
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

// Disarm removes the protection, so that stores cost nothing. Until Arm, each Scan returns all that
// is mapped as Suspect. Use it for areas most of whose pages are stored to between two scans:
// comparing is then cheaper than a fault for each page.
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

// Close ends the tracking and waits until nothing uses the userfaultfd. Threads of the process that
// wait for this package go on. Stores that were not scanned are forgotten: a caller that needs them
// scans before, or compares after.
//
// With Missing it first poisons every mapped page that is a hole of the memfd: a thread that waits
// for one, or touches it later, gets SIGBUS and never a zero. Pages that are there can still be
// used. So nothing may be punched out of the memfd any more, during Close or after it, as long as
// the process has the mapping; where that cannot be promised, the Range must be kept until
// Unmapped. Missing must not call Close.
//
// If a thread of the process does not end a munmap within two seconds nothing can be poisoned. Then
// Close fails with errs.Timeout and the Range stays as it was.
func (r *Range) Close() error {
	if already, err := r.shut(); already || err != nil {
		return err
	}
	// Closing wakes the watcher, which needs the lock in order to end.
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

// releaseLocked unregisters the mapping, which wakes threads that wait in a fault, and reads the
// events that threads wait for. If something fails the process is gone.
func (r *Range) releaseLocked() {
	r.drainLocked()
	for _, p := range r.pieces() {
		_ = unregister(r.uffd, p.start, p.end-p.start)
	}
	r.drainLocked()
}

// failLocked gives up tracking: the process runs freely and all is suspect. Where pages can be
// missing the mapping stays registered, because otherwise the process would read zeroes. Protection
// that cannot be removed here is removed by the kernel at the store.
func (r *Range) failLocked(err error) {
	if r.mu.state > disarmed {
		return
	}
	r.mu.state, r.mu.failure = failed, err
	if r.missing == nil {
		r.releaseLocked()
		return
	}
	for _, p := range r.pieces() {
		_ = protect(r.uffd, p.start, p.end-p.start, false)
	}
}

// deafLocked gives up because events cannot be read: nobody would serve a missing page.
func (r *Range) deafLocked(err error) {
	if r.mu.state > disarmed {
		return
	}
	r.failLocked(err)
	if r.missing != nil {
		// Threads block for ever on what cannot be poisoned, but read no zero.
		_, _ = r.tryPoisonHolesLocked()
	}
}

// dieLocked records that the memory of the process is gone.
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

// pieces returns what is mapped.
func (r *Range) pieces() []piece { return *r.mapped.Load() }

func (r *Range) setPiecesLocked(pieces []piece) {
	r.mapped.Store(&pieces)
	if len(pieces) == 0 {
		r.unmappedOnce()
	}
}

// protectAllLocked sets or removes the protection of all that is mapped.
func (r *Range) protectAllLocked(on bool) { r.protectLocked(r.off, r.length, on) }

// protectLocked sets or removes the protection of those pages of the area that are mapped. If that
// fails, either the tracking has failed or the process is dead, and nothing waits.
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
			// It was within a munmap or mremap that has ended.
		case r.mu.events == events:
			// The pieces are what is mapped, so the process itself must have unregistered it.
			if !memoryLives(r.pagemap) {
				r.dieLocked()
				return
			}
			r.failLocked(errs.E(errs.Other, "protect mapping", "UFFDIO_WRITEPROTECT: %w", err))
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

// settleTime bounds how long a thread of the process may take from the beginning of a munmap to its
// event, and from the event until it runs again. It only needs to be scheduled; SIGSTOP does not
// stop it there. Linux before 6.12 forgets to end the state after an mremap that failed.
const settleTime = 2 * time.Second

// settleLocked reads events until the process is not within a munmap or mremap, and reports whether
// the range is still tracked. So every munmap that began earlier is known when it returns.
func (r *Range) settleLocked() bool {
	if r.mu.state > disarmed {
		return false
	}
	if err := r.quietLocked(); err != nil {
		r.failLocked(err)
	}
	return r.mu.state <= disarmed
}

// quietLocked does so in every state.
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
		// An event ends the wait; but the thread makes none when it has gone on after its event.
		wait := unix.Timespec{Nsec: int64(100 * time.Microsecond)}
		_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(r.uffd), Events: unix.POLLIN}}, &wait, nil)
	}
	return nil
}
