package uffd

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probe makes a userfaultfd and a memory for each thing that it tries, because a handshake can be
// done only once and a range registered only once.
func probe() Features {
	var f Features
	fd, full, err := create()
	if err != nil {
		no := Feature{Reason: fmt.Sprintf("userfaultfd(2): %v", err)}
		if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) {
			no.Reason += "; the kernel has none, or a sandbox forbids it"
		}
		return Features{Async: no, Dropped: no, Tables: no, Sync: no, Poison: no, Missing: no, Unmap: no, Remove: no, Kernel: no, Swap: swap()}
	}
	has, err := handshake(fd, 0)
	closeFD(fd)
	if err != nil {
		has = 0
	}
	f.Kernel = Feature{full, ""}
	if !full {
		f.Kernel.Reason = "neither CAP_SYS_PTRACE nor vm.unprivileged_userfaultfd=1: in mode sync, read(2) into a tracked page can fail with EFAULT"
	}
	f.Unmap = bit(has, featureEventUnmap|featureEventRemap, "needs Linux 4.11")
	f.Remove = bit(has, featureEventRemove, "needs Linux 4.11")
	f.Async = bit(has, featureWPAsync|featureWPShmem|featureEventUnmap|featureEventRemap, "needs Linux 6.7")
	f.Dropped = Feature{Reason: "mode async does not work"}
	f.Tables = f.Dropped
	if f.Async.OK {
		f.Async, f.Dropped, f.Tables = tryAsync()
	}
	f.Sync = bit(has, featureWPShmem|featureEventUnmap|featureEventRemap, "needs Linux 5.19")
	if f.Sync.OK {
		f.Sync = tried(trySync())
	}
	f.Missing = bit(has, featureMissingShmem|featureWPShmem, "needs Linux 5.19")
	if f.Missing.OK {
		f.Missing = tried(tryMissing(f.Async.OK, 0, (*scratch).fillOne))
	}
	f.Poison = bit(has, featureMissingShmem|featureWPShmem|featurePoison, "needs Linux 6.6")
	if f.Poison.OK {
		f.Poison = tried(tryMissing(f.Async.OK, featurePoison, (*scratch).poisonOne))
	}
	f.Swap = swap()
	return f
}

func bit(has, want uint64, since string) Feature {
	if has&want != want {
		return Feature{Reason: since}
	}
	return Feature{OK: true}
}

func tried(err error) Feature {
	if err != nil {
		return Feature{Reason: err.Error()}
	}
	return Feature{OK: true}
}

func step(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// swap reads /proc/swaps: a line of headings, then one for each swap area.
func swap() Feature {
	text, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return Feature{OK: true, Reason: fmt.Sprintf("cannot be read, so taken as on: %v", err)}
	}
	var names []string
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if f := strings.Fields(line); i > 0 && len(f) > 0 {
			names = append(names, f[0])
		}
	}
	return Feature{OK: len(names) > 0, Reason: strings.Join(names, " ")}
}

// scratch is a userfaultfd and a small shared memory that is registered with it.
type scratch struct {
	fd, pagemap int
	mem         []byte
	tables      bool // scan with the second question
}

func newScratch(pages int, features, mode uint64) (_ *scratch, err error) {
	s := &scratch{fd: -1, pagemap: -1}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	memfd, err := unix.MemfdCreate("dsmfs-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, step("memfd_create", err)
	}
	defer closeFD(memfd)
	if err := unix.Ftruncate(memfd, int64(pages)*int64(pageSize)); err != nil {
		return nil, step("ftruncate", err)
	}
	if s.mem, err = unix.Mmap(memfd, 0, pages*int(pageSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, step("mmap", err)
	}
	if s.pagemap, err = unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, step("/proc/self/pagemap", err)
	}
	if s.fd, _, err = create(); err != nil {
		return nil, step("userfaultfd", err)
	}
	if _, err = handshake(s.fd, features); err != nil {
		return nil, step("UFFDIO_API", err)
	}
	if err = register(s.fd, s.addr(), uint64(len(s.mem)), mode); err != nil {
		return nil, step("UFFDIO_REGISTER", err)
	}
	return s, nil
}

func (s *scratch) addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.mem)))) }

// close closes the userfaultfd first, so that nothing after that can wait for a handler.
func (s *scratch) close() {
	for _, fd := range []int{s.fd, s.pagemap} {
		if fd >= 0 {
			closeFD(fd)
		}
	}
	if s.mem != nil {
		// It was mapped above, so it can be unmapped.
		_ = unix.Munmap(s.mem)
	}
}

// closeFD closes a descriptor of a kind whose close cannot fail.
func closeFD(fd int) { _ = unix.Close(fd) }

// written returns how many pages PAGEMAP_SCAN says were stored to, and arms them again.
func (s *scratch) written() (pages int, err error) {
	p := scanner{pagemap: s.pagemap, tables: s.tables}
	err = p.scan(s.addr(), s.addr()+uint64(len(s.mem)), func(from, to uint64) { pages += int((to - from) / pageSize) })
	return pages, step("PAGEMAP_SCAN", err)
}

// expect returns an error if written is not want.
func (s *scratch) expect(want int) error {
	got, err := s.written()
	if err == nil && got != want {
		err = fmt.Errorf("PAGEMAP_SCAN said that %d pages were stored to, not %d", got, want)
	}
	return err
}

// twoTables is a number of pages that contains a whole page table (of 512 pages, where pages have 4
// KiB), however it is aligned.
const twoTables = 1024

// tryAsync stores and scans, in pages that are there and in pages that are not. Then it drops what
// was stored to: a page, and whole page tables.
func tryAsync() (async, dropped, tables Feature) {
	s, err := newScratch(twoTables, featureWPAsync|featureWPUnpopulated|featureWPShmem, registerWP)
	if err != nil {
		return tried(err), tried(err), tried(err)
	}
	defer s.close()
	s.mem[0] = 1
	err = step("UFFDIO_WRITEPROTECT", protect(s.fd, s.addr(), uint64(len(s.mem)), true))
	if err == nil {
		err = s.expect(0)
	}
	for range 2 {
		s.mem[0]++
		s.mem[pageSize]++
		if err == nil {
			err = s.expect(2)
		}
	}
	if err != nil {
		return tried(err), tried(err), tried(err)
	}
	lose := func() error {
		for _, pages := range []int{3, twoTables} {
			for i := range pages {
				s.mem[i*int(pageSize)]++
			}
			if err := unix.Madvise(s.mem, unix.MADV_DONTNEED); err != nil {
				return step("madvise", err)
			}
			if err := s.expect(pages); err != nil {
				return fmt.Errorf("pages dropped: %w", err)
			}
		}
		return nil
	}
	yes := Feature{OK: true}
	if lose() == nil {
		return yes, yes, yes
	}
	tables = Feature{Reason: "missing page tables are asked for, which takes time"}
	s.tables = true
	if _, err := s.written(); err != nil {
		return yes, tried(err), tables
	}
	return yes, tried(lose()), tables
}

// trySync asks the page table instead of storing, because a store would stop this thread.
func trySync() error {
	s, err := newScratch(8, featureWPShmem, registerWP)
	if err != nil {
		return err
	}
	defer s.close()
	for _, on := range []bool{true, false, true} {
		if err := protect(s.fd, s.addr(), uint64(len(s.mem)), on); err != nil {
			return step("UFFDIO_WRITEPROTECT", err)
		}
		got, err := protected(s.pagemap, s.addr())
		if err != nil {
			return step("/proc/self/pagemap", err)
		}
		if got != on {
			return fmt.Errorf("UFFDIO_WRITEPROTECT %v: the page table says %v", on, got)
		}
	}
	return nil
}

// tryMissing calls then with pages that are missing, with one additional feature. In Async the same
// userfaultfd serves stores and missing pages; where that does not work missing pages are served in
// Compare.
func tryMissing(async bool, feature uint64, then func(*scratch) error) error {
	features, mode := featureWPShmem|featureMissingShmem|feature, uint64(registerMissing)
	if async {
		features, mode = features|featureWPAsync|featureWPUnpopulated, mode|registerWP
	}
	s, err := newScratch(2, features, mode)
	if err != nil {
		return err
	}
	defer s.close()
	if !async {
		return then(s)
	}
	if err := protect(s.fd, s.addr(), uint64(len(s.mem)), true); err != nil {
		return step("UFFDIO_WRITEPROTECT", err)
	}
	if err := s.expect(0); err != nil {
		return err
	}
	if err := then(s); err != nil {
		return err
	}
	// A page that was filled or poisoned is not protected; the rest is.
	return s.expect(1)
}

// fillOne fills a page, and checks its content.
func (s *scratch) fillOne() error {
	src := make([]byte, pageSize)
	src[7] = 7
	a := copyArg{dst: s.addr(), src: unsafe.Pointer(unsafe.SliceData(src)), length: pageSize}
	if _, err := ioctl(s.fd, ioctlCopy, unsafe.Pointer(&a)); err != nil {
		return step("UFFDIO_COPY", err)
	}
	if s.mem[7] != 7 {
		return fmt.Errorf("UFFDIO_COPY: the page has other bytes")
	}
	return nil
}

// poisonOne poisons a page, and checks that it has an entry in the page table.
func (s *scratch) poisonOne() error {
	if err := poisonRun(s.fd, s.addr(), s.addr()+pageSize); err != nil {
		return step("UFFDIO_POISON", err)
	}
	if _, err := poison(s.fd, s.addr(), pageSize); err != unix.EEXIST {
		return fmt.Errorf("UFFDIO_POISON: the page is not poisoned: %w", err)
	}
	return nil
}
