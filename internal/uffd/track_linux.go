package uffd

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// Config describes a mapping of a memfd in another process.
type Config struct {
	// UFFD is a userfaultfd that the process made and has not used. Track takes it over, even when
	// it fails.
	UFFD int
	// PidFD is a pidfd of the process. It stays the caller's.
	PidFD int
	// Addr and Length are where the process has mapped the memfd, and Off is the offset in the
	// memfd of what is at Addr. All are multiples of the page size.
	Addr, Length uint64
	Off          int64
	// Dev and Ino identify the memfd, as fstat returns them.
	Dev, Ino uint64
	// Mode is Async or Sync. With Missing it is Async or Compare, which tracks nothing.
	//
	// Sync with Missing would lose stores. If a program touches a page at the moment when the page is punched out of the memfd, the page can lose its protection.
	// A later store to it makes no fault, so nobody learns of it. (In Async a page without protection counts as stored to.) The goroutine that punches would have
	// to protect the page again. That takes the lock of the memory map of the process, so it might wait for the program.
	Mode Mode

	// Missing, if set, is called when a thread of the process waits for a page that is a hole of
	// the memfd, with the page's offset in the memfd. It is called with no lock held, perhaps
	// before Track returns. It must not block, because all other faults of the Range wait for it.
	//
	// It is called once for each page, however many threads wait, until Wake or Poison covers the
	// page; a thread that begins to wait after that causes another call. So each call must be
	// followed by a Wake or Poison that begins after it, even if the page is there: a thread can
	// begin to wait just when the page is filled. A page that was filled can be missing again,
	// because of the program's own MADV_REMOVE or fallocate.
	Missing func(off int64)
	// Memfd is a descriptor of the memfd, needed with Missing. It stays the caller's.
	Memfd int
	// ReadOnly, with Missing and Compare, is for a program that only reads: Scan finds nothing. The
	// mapping may have any protection, and be shared or private, but mprotect must be able to make
	// it writable: it is of a descriptor that is open for writing, or MAP_PRIVATE.
	ReadOnly bool
}

const opTrack = "track mapping"

// Track begins to track the stores through a mapping. It trusts nothing that the process says: it
// reads from the kernel what is at the address, before and after it registers the userfaultfd, and
// whether the registration belongs to that process. The first Scan returns the whole range as
// Suspect, so that stores made before Track are found too.
//
// Errors: Invalid if what the process sent is wrong, Busy if the range has another userfaultfd, Access if this process may not inspect the
// other one, Unsupported if the kernel lacks what the mode needs.
func Track(c Config) (*Range, error) {
	r, err := track(c)
	if err != nil {
		closeFD(c.UFFD)
		return nil, err
	}
	return r, nil
}

func track(c Config) (_ *Range, err error) {
	end := c.Addr + c.Length
	switch {
	case c.Mode == Sync && c.Missing != nil:
		return nil, errs.E(errs.Invalid, opTrack, "Missing does not go with mode %v: a page that is punched out while it is touched can lose its "+
			"protection, and stores to it would not be found; use %v", Sync, Compare)
	case c.Mode == Compare && c.Missing != nil:
	case c.ReadOnly:
		return nil, errs.E(errs.Invalid, opTrack, "ReadOnly is for mode %v with Missing", Compare)
	case c.Mode != Async && c.Mode != Sync:
		return nil, errs.E(errs.Invalid, opTrack, "mode %v takes no userfaultfd", c.Mode)
	}
	switch {
	case c.Length == 0:
		return nil, errs.E(errs.Invalid, opTrack, "the length is 0")
	case (c.Addr|c.Length|uint64(c.Off))%pageSize != 0:
		return nil, errs.E(errs.Invalid, opTrack, "address %#x, length %#x and offset %#x must be multiples of %d", c.Addr, c.Length, c.Off, pageSize)
	case end < c.Addr || end > math.MaxInt64 || c.Off < 0 || c.Off > math.MaxInt64-int64(c.Length):
		return nil, errs.E(errs.Invalid, opTrack, "address %#x, length %#x and offset %#x are too large", c.Addr, c.Length, c.Off)
	}
	if err := IsUserfaultfd(c.UFFD); err != nil {
		return nil, err
	}
	r := newRange(c)
	if r.process, err = newProcess(c.PidFD); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.process.close()
			for _, fd := range []int{r.pagemap, r.memory.fd} {
				if fd >= 0 {
					closeFD(fd)
				}
			}
		}
	}()
	if r.pagemap, err = unix.Open(fmt.Sprintf("/proc/%d/pagemap", r.process.pid), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, r.lookFailed(err)
	}
	if c.Missing != nil {
		if r.memory.fd, err = reopen(c); err != nil {
			return nil, err
		}
	}
	if err := r.check(c); err != nil {
		return nil, err
	}
	if on, err := r.tracked(c); err != nil { // while nothing was done yet with this one
		return nil, r.lookFailed(err)
	} else if on {
		return nil, errs.E(errs.Busy, opTrack, "a userfaultfd is registered for the range already")
	}
	if err := shake(c.UFFD, c.Mode, c.Missing != nil); err != nil {
		return nil, err
	}
	if c.Mode == Sync {
		r.mu.noted = newPageSet(r.length / int64(pageSize))
	}
	r.mu.scanner = scanner{pagemap: r.pagemap, tables: c.Mode == Async && !Probe().Tables.OK}
	if err := r.begin(c); err != nil {
		return nil, err
	}
	return r, nil
}

// begin registers and arms the mapping, which are the only changes to the process, and starts the
// goroutines. On error the caller closes the userfaultfd, which undoes them.
func (r *Range) begin(c Config) error {
	// In Compare one page is protected for a moment, to see whose memory it is.
	mode, proof := uint64(registerWP), c.Length
	switch {
	case c.Mode == Compare:
		proof = pageSize
	case c.Missing != nil:
		mode |= registerMissing
	}
	if err := register(c.UFFD, c.Addr, c.Length, mode); err != nil {
		return registerFailed(err)
	}
	// From now on every change of the mapping makes an event.
	if err := r.check(c); err != nil {
		return err
	}
	if err := protect(c.UFFD, c.Addr, proof, true); err != nil {
		return errs.E(errs.Invalid, opTrack, "UFFDIO_WRITEPROTECT: %w", err)
	}
	if on, err := r.tracked(c); err != nil {
		return r.lookFailed(err)
	} else if !on {
		return errs.E(errs.Invalid, opTrack, "the userfaultfd is not of process %d", r.process.pid)
	}
	if c.Mode == Compare {
		if err := protect(c.UFFD, c.Addr, proof, false); err != nil {
			return errs.E(errs.Invalid, opTrack, "UFFDIO_WRITEPROTECT: %w", err)
		}
		// This replaces the registration made before.
		if err := register(c.UFFD, c.Addr, c.Length, registerMissing); err != nil {
			return registerFailed(err)
		}
	}
	// The process has this file too and may change the flag, so reading does not rely on it.
	if err := unix.SetNonblock(c.UFFD, true); err != nil {
		return errs.E(errs.Other, opTrack, "O_NONBLOCK: %w", err)
	}
	r.file = os.NewFile(uintptr(c.UFFD), "userfaultfd")
	raw, err := r.file.SyscallConn()
	if err != nil {
		return errs.E(errs.Other, opTrack, "userfaultfd: %w", err)
	}
	r.raw = raw
	r.process.watch(r.goneOnce)
	r.watcher.Add(1)
	go r.watch()
	return nil
}

func registerFailed(err error) error {
	if errors.Is(err, unix.EPERM) {
		return errs.E(errs.Invalid, opTrack, "the mapping can never be made writable (VM_MAYWRITE), and the kernel registers no such: "+
			"map it from a descriptor that is open for writing, for which PROT_READ is enough, or with MAP_PRIVATE")
	}
	return errs.E(errs.Invalid, opTrack, "UFFDIO_REGISTER: %w; is the userfaultfd of the process that has the mapping, and no other registered for it?", err)
}

// reopen returns a descriptor of the memfd with a file position of its own.
func reopen(c Config) (int, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", c.Memfd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, errs.E(errs.Invalid, opTrack, "the memfd: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != c.Dev || st.Ino != c.Ino {
		closeFD(fd)
		return -1, errs.E(errs.Invalid, opTrack, "the memfd is another file than what is said to be mapped")
	}
	return fd, nil
}

// check compares what the process said with what the kernel says is mapped.
func (r *Range) check(c Config) error {
	err := shows(r.process.pid, c.Addr, c.Addr+c.Length, c.Off, c.Dev, c.Ino, c.ReadOnly)
	// As long as it has not ended, its number is its own, and so are the files opened by that
	// number.
	if r.process.ended() || !memoryLives(r.pagemap) {
		return errs.E(errs.Invalid, opTrack, "the process has ended")
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrPermission):
		return r.lookFailed(err)
	}
	return errs.E(errs.Invalid, opTrack, "%w", err)
}

// tracked reports whether the kernel says that the memory of the process is registered (Async) or
// protected (otherwise: only smaps, which is slow to read, shows whose a registration is). Threads
// of the process that store at this moment do no harm: they wait, because nobody reads yet.
func (r *Range) tracked(c Config) (bool, error) {
	if c.Mode != Async {
		return protected(r.pagemap, c.Addr)
	}
	s := scanner{pagemap: r.pagemap}
	err := s.asynchronous(c.Addr, c.Addr+c.Length)
	if errors.Is(err, unix.EPERM) {
		return false, nil
	}
	return err == nil, err
}

// lookFailed returns the error for a failed read of /proc/PID.
func (r *Range) lookFailed(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return errs.E(errs.Access, opTrack, "this process may not look into process %d (ptrace(2), PTRACE_MODE_READ): %w", r.process.pid, err)
	case r.process.ended():
		return errs.E(errs.Invalid, opTrack, "the process has ended")
	}
	return errs.E(errs.Other, opTrack, "process %d: %w", r.process.pid, err)
}

// IsUserfaultfd refuses a descriptor that is not a userfaultfd, with errs.Invalid. It looks at the
// name only, so a file of another kind is not called.
func IsUserfaultfd(fd int) error {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil && name != "anon_inode:[userfaultfd]" {
		err = fmt.Errorf("it is %s", name)
	}
	if err != nil {
		return errs.E(errs.Invalid, opTrack, "the descriptor is no userfaultfd: %w", err)
	}
	return nil
}

// shake does the handshake. None of these features needs a privilege, even on a userfaultfd made
// with USER_MODE_ONLY.
func shake(fd int, mode Mode, missing bool) error {
	features := uint64(featureWPShmem | featureEventUnmap | featureEventRemap)
	if missing {
		features |= featureMissingShmem | featurePoison
	}
	if mode == Async {
		features |= featureWPAsync | featureWPUnpopulated
	}
	if shaken(fd) {
		return errs.E(errs.Invalid, opTrack, "the handshake (UFFDIO_API) of the userfaultfd was done already: send a new one")
	}
	if _, err := handshake(fd, features); err != nil {
		if shaken(fd) {
			return errs.E(errs.Invalid, opTrack, "the handshake (UFFDIO_API) of the userfaultfd was done meanwhile")
		}
		return errs.E(errs.Unsupported, opTrack, "the kernel has not all of mode %v: UFFDIO_API: %w", mode, err)
	}
	return nil
}

// shaken reports whether the handshake of a userfaultfd was done: the second number of "API:
// aa:features:all" in its fdinfo is then not 0.
func shaken(fd int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "API:"); ok {
			fields := strings.Split(strings.TrimSpace(value), ":")
			return len(fields) > 1 && strings.Trim(fields[1], "0") != ""
		}
	}
	return false
}
