package uffd

import "sync"

// Feature says whether something works on this kernel, for this process.
type Feature struct {
	OK     bool
	Reason string // why not, or a detail for people
}

// Features is what Probe found.
type Features struct {
	// Async: WP_ASYNC with PAGEMAP_SCAN, WP_MATCHING and CHECK_WPASYNC works on shared memory.
	Async Feature
	// Dropped: PAGEMAP_SCAN, as this package calls it, reports pages that were stored to and then
	// left the page table without an event, for instance by reclaim to swap.
	Dropped Feature
	// Tables: it reports them at the first question; see scanner.
	Tables  Feature
	Sync    Feature // write faults on shared memory, served by this process
	Poison  Feature // UFFDIO_POISON: SIGBUS instead of a silent zero page, in what Async tracks where that works
	Missing Feature // faults on pages of shared memory that are not there yet, in the same
	Unmap   Feature // EVENT_UNMAP and EVENT_REMAP, which Async and Sync need
	Remove  Feature // EVENT_REMOVE, which nothing here needs
	Kernel  Feature // a userfaultfd of this user may also stop the kernel's own accesses
	Swap    Feature // OK: swap is on
}

// Probe finds out what works, by system calls on a small memory of this process. The first call
// does so, later calls return the same result. No page that it touches can fault into a handler, so
// no thread of this process can stop.
func Probe() Features { return probed() }

var probed = sync.OnceValue(probe)
