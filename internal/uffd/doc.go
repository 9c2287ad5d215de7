// Package uffd finds the pages that another process stores to, in its mapping of a
// memfd that both share. The process makes a userfaultfd, does nothing with it and sends
// it over a Unix socket; Track takes it, and Scan tells what was stored to since
// the Scan before. The process needs no further help and notices nothing.
//
// With Config.Missing it also serves pages that are not there: a thread that touches
// a hole of the memfd waits until the page is filled (Filler) and it is woken.
//
// It owns the userfaultfd, and the fact of which pages were stored to. It never
// looks at the bytes: what is Suspect the caller compares with what it had.
//
// # Modes
//
// Async (Linux 6.7): a store to a page that was armed faults into the kernel, which
// takes the protection away and goes on; PAGEMAP_SCAN on /proc/PID/pagemap tells which pages
// are unprotected and protects them, each in one step. Sync (Linux 5.19): the fault is sent to
// this process, which notes the page and lets the store go on; a store waits for
// this process as long as that takes. Measured on Linux 6.18, 2 cores, 256 MiB that is all there:
//
//	                    Async     Sync
//	scan, nothing new   0.06 ms   0.003 ms
//	scan, 4096 pages    0.3 ms    3.8 ms
//	scan, all pages     3.3 ms    -
//	first store         0.9 us    12 us
//	Disarm and Arm      11 ms     -
//
// # What is not a store through the mapping
//
// It is not found, and whoever does it says so by other means: write(2) to the
// memfd, ftruncate, fallocate and MADV_REMOVE; stores through another mapping; stores by a
// device or by another process into pages that were pinned before a Scan (RDMA,
// O_DIRECT reads, io_uring buffers that are still under way while Scan runs); the
// child of a fork, as its mapping is not registered (clients map with MADV_DONTFORK).
//
// # What the page table can lose
//
// A page that was stored to and leaves the page table with no event (reclaim to swap,
// MADV_DONTNEED, huge pages that come and go, page tables that are freed) is found
// all the same; see scanner for why, and Features.Dropped for the proof on this kernel. So
// EVENT_REMOVE is not asked for, and madvise does not wait for this process.
// munmap and mremap do wait until it has read their event: what they took away is
// Suspect, which is exact because events are read under the lock of the Range.
//
// # Missing pages
//
//	program                  kernel                    this process
//	touches a hole    ->     the thread waits    ->    Missing(off)
//	                                                   ... fetches the page ...
//	                         the page is there   <-    Filler.Fill
//	tries again       <-     the thread goes on  <-    Range.Wake
//
// Only holes of the memfd are missing: what is swapped out, or not in the page table of this
// program, is not. A hole that anybody touches in a mapping that is not registered is
// filled with a zero page, for all: this process never reads or writes a hole through a mapping, and a
// program that has mapped the memfd and not asked for Track can plant one.
//
// Who cannot be served gets SIGBUS by Poison, never a zero. The poison is an entry in the
// program's page table. It stays there when the mapping is unregistered, the userfaultfd
// closed and the page filled (TestCloseMissing, on Linux 6.18), until the program does
// MADV_DONTNEED on the page, unmaps it or ends; mremap takes it along.
// But a page that was not poisoned, and a poison that was taken away, reads zero once the mapping is
// not registered any more. So a Range is kept as long as the mapping, or everything is poisoned
// before it is closed (Range.Close).
//
// UFFDIO_POISON refuses a page that has an entry, also if that is but the mark of
// write-protection, so that is taken away before. For the same reason a page that
// the program has touched cannot be poisoned.
//
// Missing goes with Async and Compare; why not with Sync, Config says.
//
// Where tracking is lost the mapping stays registered and missing pages are served on. If this
// process is killed a Guard, a process that has copies of the descriptors, poisons what is not there.
//
// Measured as above: a missing page that a goroutine here fills and wakes, 17 us (p50, seen
// by the program); Filler, 2.3 us for a page alone and 1.5 us in runs of 64 or more.
//
// # Privilege
//
// The process needs none: with USER_MODE_ONLY everything works, but in Sync its system calls
// that store into an armed page fail with EFAULT, and in every mode those that touch a missing page. This process must be allowed to look
// into the other one (ptrace(2), PTRACE_MODE_READ): the same user, or CAP_SYS_PTRACE.
//
// A process that keeps a copy of its userfaultfd can read its events away, unregister the
// mapping or clear O_NONBLOCK. By that it can lose its own stores and stop its own threads, but
// not this process: reads never wait, and waits for it are bounded.
//
// # Concurrency
//
// A Range may be used by any goroutine. While its lock (uffd.Range) is held nobody is called,
// but system calls that wait for the memory map of the process; see Range.Scan. Events are read
// under it, so Missing is called late when a Scan waits so. Wake does not take it: it reads the
// pieces, a slice that is replaced and never changed, after it has taken the pages out of the waits
// (a lock that is held for that only). One goroutine of each Range waits for events and calls Missing, one
// waits for the end of the process.
package uffd
