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

// scan calls found with each run of addresses in [start, end) that is not
// write-protected, which is what was stored to since it was armed, and arms it, in
// one step for each page. EPERM: part of it is not registered for WP_ASYNC.
// After an error what was armed is not known: all of it must be compared.
//
// It asks for the pages that are PAGE_IS_WRITTEN and nothing else. For exactly
// this question Linux takes a path of its own (pagemap_scan_pmd_entry, from 6.7)
// that calls written whatever is not write-protected, also an empty entry of a page
// table: a page that was stored to and then dropped with no event, by MADV_DONTNEED or
// by reclaim to swap. In the path for other questions many kernels say nothing of an
// empty entry, which would lose that store. (The entry of a protected page that is
// dropped is a marker, not empty; so is that of a page never touched, once it was armed.)
//
// A page table that is missing as a whole is written only for kernels with a fix of
// 2026 (6.18.44 has it). Linux 6.14 and later frees one when MADV_DONTNEED has
// emptied it, that is when all of its 512 pages had been stored to. Where Probe
// finds no fix, a second question asks for what is neither present nor swapped: an
// empty entry or a missing table. That costs 0.14 ms for 256 MiB, and there a page that
// goes from one to the other between the questions (another thread drops it and
// touches it again) is found by the next scan.
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

// asynchronous reports with nil that all that is mapped in [start, end) is registered
// for WP_ASYNC, with EPERM that some of it is not. It changes nothing.
func (s *scanner) asynchronous(start, end uint64) error {
	a := scanArg{flags: scanCheckWPAsync, start: start, end: end, mask: pageIsWritten, returnWhich: pageIsWritten}
	a.size = uint64(unsafe.Sizeof(a))
	_, err := ioctl(s.pagemap, ioctlPagemapScan, unsafe.Pointer(&a))
	return err
}
