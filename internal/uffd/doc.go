// Package uffd finds the pages that another process stores to, in its mapping of a memfd that both
// share. The process makes a userfaultfd, does nothing with it and sends it over a Unix socket.
// Track takes it, and Scan returns what was stored to since the Scan before. The process needs no
// further help and does not see it.
//
// With Config.Missing it also serves pages that are not there: a thread that touches a hole of the
// memfd waits until the page has been filled (Filler) and the thread woken.
//
// The package owns the userfaultfd, and the knowledge of which pages were stored to. It never looks
// at the bytes: the caller compares Suspect pages with what it had.
//
// # Modes
//
// Async (Linux 6.7): a store to an armed page faults into the kernel, which removes the protection
// and goes on. PAGEMAP_SCAN on /proc/PID/pagemap tells which pages are unprotected and protects
// them again, in one step for each page. Sync (Linux 5.19): the fault is sent to this process,
// which records the page and lets the store go on; the store waits for this process. Measured on
// Linux 6.18, 2 cores, 256 MiB that is all there:
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
// Such stores are not found; the caller must learn of them by other means: write(2) to the memfd,
// ftruncate, fallocate and MADV_REMOVE; stores through another mapping; stores by a device or by
// another process into pages that were pinned before a Scan (RDMA, O_DIRECT reads, io_uring buffers
// that are still under way while Scan runs); stores of a forked child, because its mapping is not
// registered (clients map with MADV_DONTFORK).
//
// # What the page table can lose
//
// A page that was stored to and leaves the page table without an event (reclaim to swap,
// MADV_DONTNEED, huge pages that come and go, page tables that are freed) is found all the same;
// scanner explains why, and Features.Dropped proves it on this kernel. So EVENT_REMOVE is not
// needed, and madvise does not wait for this process. munmap and mremap do wait until their event
// has been read. What they took away is Suspect. That is exact, because events are read under the
// lock of the Range.
//
// # Missing pages
//
//	program                  kernel                    this process
//	touches a hole    ->     the thread waits    ->    Missing(off)
//	                                                   ... fetches the page ...
//	                         the page is there   <-    Filler.Fill
//	tries again       <-     the thread goes on  <-    Range.Wake
//
// Only holes of the memfd are missing. A page that is swapped out, or not in this program's page
// table, is not. If anybody touches a hole in a mapping that is not registered, the hole is filled
// with a zero page for everybody. So this process never reads or writes a hole through a mapping;
// but a program that has mapped the memfd without Track can do such damage.
//
// A thread that cannot be served gets SIGBUS by Poison, never a zero. The poison is an entry in the
// program's page table. It stays there when the mapping is unregistered, the userfaultfd closed and
// the page filled (TestCloseMissing, on Linux 6.18), until the program uses MADV_DONTNEED on the
// page, unmaps it or ends; mremap takes it along. But once the mapping is not registered any more,
// a page that was not poisoned, or whose poison was removed, reads zero. So a Range is kept as long
// as the mapping exists, or everything is poisoned before it is closed (Range.Close).
//
// UFFDIO_POISON refuses a page that has an entry, even if the entry is only the mark of write
// protection, so that is removed first. For the same reason a page that the program has touched
// cannot be poisoned.
//
// Missing works with Async and Compare; Config explains why not with Sync.
//
// If tracking fails the mapping stays registered and missing pages are still served. If this
// process is killed, a Guard, a process that has copies of the descriptors, poisons what is not
// there.
//
// Measured as above: a missing page that a goroutine here fills and wakes takes 17 us (p50, as the
// program sees it); a Filler takes 2.3 us for a single page and 1.5 us in runs of 64 or more.
//
// # Privilege
//
// The process needs none. With USER_MODE_ONLY everything works, but in Sync system calls of the
// process that store into an armed page fail with EFAULT, and in every mode so do those that touch
// a missing page. This process must be allowed to inspect the other one (ptrace(2),
// PTRACE_MODE_READ): it has the same user, or CAP_SYS_PTRACE.
//
// A process that keeps a copy of its userfaultfd can read its events away, unregister the mapping
// or clear O_NONBLOCK. By that it can lose its own stores and stop its own threads, but it cannot
// stop this process: reads never wait, and other waits for it are bounded.
//
// # Concurrency
//
// A Range may be used by any goroutine. While its lock (uffd.Range) is held nothing is called but
// system calls, which may wait for the memory map of the process; see Range.Scan. Events are read
// under the lock, so Missing is called late while a Scan waits. Wake does not take the lock. It
// first removes the pages from the waits, which have a lock of their own for that, and then reads
// the pieces, a slice that is replaced and never changed. Each Range has one goroutine that waits
// for events and calls Missing, and one that waits for the end of the process.
package uffd
