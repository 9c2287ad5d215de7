package uffd

import (
	"runtime"
	"unsafe"
)

// regionsAtOnce bounds what one PAGEMAP_SCAN returns: 24 KiB of regions.
const regionsAtOnce = 1024

// scanner runs PAGEMAP_SCAN on the memory of a process; one goroutine at a time.
type scanner struct {
	pagemap int  // a descriptor of /proc/PID/pagemap
	tables  bool // ask for missing page tables too
	regions []pageRegion
}

// scan calls found with each run of addresses in [start, end) that is not write-protected, that is,
// was stored to since it was armed. It arms each page in the same step. EPERM: part of the range is
// not registered for WP_ASYNC. After an error it is not known what was armed: all of it must be
// compared.
//
// It asks for the pages that are PAGE_IS_WRITTEN and nothing else. For exactly this question Linux
// has a special path (pagemap_scan_pmd_entry, from 6.7) that takes everything not write-protected
// for written, including an empty entry of a page table: a page that was stored to and then dropped
// without an event, by MADV_DONTNEED or by reclaim to swap. For other questions many kernels do not
// report an empty entry, which would lose that store. (A protected page that is dropped leaves a
// marker, not an empty entry; so does a page that was armed and never touched.)
//
// A page table that is missing as a whole counts as written only in kernels with a fix of 2026
// (6.18.44 has it). Linux 6.14 and later free a page table when MADV_DONTNEED has emptied it, that
// is, when all of its 512 pages had been stored to. If Probe finds that the fix is missing, a
// second question asks for what is neither present nor swapped: empty entries and missing tables.
// That costs 0.14 ms for 256 MiB. A page that changes from one to the other between the two
// questions (another thread drops it and touches it again) is then found by the next scan.
func (s *scanner) scan(start, end uint64, found func(from, to uint64)) error {
	written := scanArg{mask: pageIsWritten, returnWhich: pageIsWritten}
	if err := s.ask(written, start, end, found); err != nil || !s.tables {
		return err
	}
	const nowhere = pageIsPresent | pageIsSwapped
	return s.ask(scanArg{inverted: nowhere, mask: nowhere}, start, end, found)
}

// ask runs one question over [start, end) and arms what it finds.
func (s *scanner) ask(a scanArg, start, end uint64, found func(from, to uint64)) error {
	if s.regions == nil {
		s.regions = make([]pageRegion, regionsAtOnce)
	}
	a.size = uint64(unsafe.Sizeof(a))
	a.flags = scanWPMatching | scanCheckWPAsync
	a.vec = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.regions))))
	a.vecLen = uint64(len(s.regions))
	a.end = end
	for start < end {
		a.start, a.walkEnd = start, 0
		n, err := ioctl(s.pagemap, ioctlPagemapScan, unsafe.Pointer(&a))
		if err != nil {
			return err
		}
		for _, r := range s.regions[:n] {
			found(r.start, r.end)
		}
		start = a.walkEnd
	}
	runtime.KeepAlive(s.regions)
	return nil
}

// asynchronous returns nil if all that is mapped in [start, end) is registered for WP_ASYNC, and
// EPERM if some of it is not. It changes nothing.
func (s *scanner) asynchronous(start, end uint64) error {
	a := scanArg{flags: scanCheckWPAsync, start: start, end: end, mask: pageIsWritten, returnWhich: pageIsWritten}
	a.size = uint64(unsafe.Sizeof(a))
	_, err := ioctl(s.pagemap, ioctlPagemapScan, unsafe.Pointer(&a))
	return err
}
