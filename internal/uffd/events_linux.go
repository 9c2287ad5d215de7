package uffd

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// watch reads the userfaultfd whenever there is something to read, until it is closed. Threads of
// the process wait for that in munmap, in mremap and, in Sync, in their first store to a page.
func (r *Range) watch() {
	defer r.watcher.Done()
	// The error means that the file was closed; this is how watching ends.
	var missed []int64
	_ = r.raw.Read(func(uintptr) bool {
		end := false
		missed, end = r.take(missed[:0])
		r.call(missed)
		return end
	})
}

// take reads all messages that are there and returns the missing pages among them, reusing the
// memory of done.
func (r *Range) take(done []int64) (missed []int64, end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.state == closed {
		return nil, true
	}
	r.readLocked()
	missed, r.mu.missed = r.mu.missed, done
	return missed, false
}

// drainLocked reads and handles all messages that are there.
func (r *Range) drainLocked() {
	r.readLocked()
	r.handOnLocked()
}

func (r *Range) readLocked() {
	const size = int(unsafe.Sizeof(message{}))
	buf := unsafe.Slice((*byte)(unsafe.Pointer(&r.mu.batch)), len(r.mu.batch)*size)
	for r.mu.state != closed {
		n, err := readNoWait(r.uffd, buf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return
		case err != nil:
			r.deafLocked(errs.E(errs.Other, "read userfaultfd", "%w", err))
			return
		}
		for i := range r.mu.batch[:n/size] {
			r.handleLocked(&r.mu.batch[i])
		}
	}
}

// readNoWait never waits, whatever the flags of the file are: the process may have kept a copy of
// the descriptor and could clear O_NONBLOCK, which would stop this goroutine while it holds the
// lock. Kernels without RWF_NOWAIT here are older than 6.10.
func readNoWait(fd int, buf []byte) (int, error) {
	n, err := unix.Preadv2(fd, [][]byte{buf}, -1, unix.RWF_NOWAIT)
	if err == unix.EOPNOTSUPP {
		return unix.Read(fd, buf)
	}
	return n, err
}

func (r *Range) handleLocked(m *message) {
	switch m.event {
	case eventPagefault:
		if addr := m.args[1] &^ (pageSize - 1); m.args[0]&faultWP != 0 {
			r.storedLocked(addr)
		} else {
			r.missingLocked(addr)
		}
	case eventUnmap:
		r.unmappedLocked(m.args[0], m.args[1])
	case eventRemap:
		r.movedLocked(m.args[0], m.args[1], m.args[2])
	}
}

// storedLocked records the page and lets the thread go on. If the protection cannot be removed now,
// because the process is within a munmap, the thread faults again.
func (r *Range) storedLocked(addr uint64) {
	if off, ok := r.offset(addr); ok && r.mode == Sync {
		r.mu.noted.add(r.page(off))
	}
	if protect(r.uffd, addr, pageSize, false) != nil {
		// This fails only if the process is gone.
		_ = wake(r.uffd, addr, pageSize)
	}
}

// unmappedLocked removes addresses from the range. Nobody knows what was stored there before.
func (r *Range) unmappedLocked(start, end uint64) {
	r.mu.events++
	r.setPiecesLocked(without(r.pieces(), start, end, func(p piece) { r.suspectLocked(p.off, int64(p.end-p.start)) }))
	r.strandedLocked(start, end)
}

// movedLocked follows the mapping to its new address. The kernel keeps registration and protection
// of what moved, but this code does not rely on that: all of it becomes suspect, and in Sync noted,
// so that the next Scan protects it.
func (r *Range) movedLocked(from, to, length uint64) {
	r.mu.events++
	var moved []piece
	left := without(r.pieces(), from, from+length, func(p piece) {
		moved = append(moved, piece{p.start - from + to, p.end - from + to, p.off})
	})
	r.setPiecesLocked(append(left, moved...))
	r.strandedLocked(from, from+length)
	for _, p := range moved {
		n := int64(p.end - p.start)
		r.suspectLocked(p.off, n)
		if r.mode == Sync {
			r.mu.noted.addRun(r.page(p.off), r.page(p.off+n))
		}
	}
}

// offset returns the offset in the area of what is mapped at the address.
func (r *Range) offset(addr uint64) (off int64, ok bool) {
	for _, p := range r.pieces() {
		if off, n := p.within(addr, addr+pageSize); n > 0 {
			return off, true
		}
	}
	return 0, false
}

// page returns the index in noted of the page at an offset of the area.
func (r *Range) page(off int64) int64 { return (off - r.off) / int64(pageSize) }
