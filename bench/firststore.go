package main

import (
	"fmt"
	"math/rand/v2"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// armedMemory is the yardstick of the first store to a page after a publish: a memfd of which
// this process itself has the kernel note stores (WP_ASYNC), and nothing else.
type armedMemory struct {
	mem  []byte
	uffd int
}

// The ioctls of include/uapi/linux/userfaultfd.h that it takes.
const (
	uffdAPI          = 0xC018AA3F
	uffdRegister     = 0xC020AA00
	uffdWriteProtect = 0xC018AA06
	featuresAsync    = 1<<15 | 1<<13 | 1<<12 // WP_ASYNC, WP_UNPOPULATED, WP_HUGETLBFS_SHMEM
)

func newArmedMemory(s *stage, size int) (*armedMemory, error) {
	fd, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // the mapping stays
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	m := &armedMemory{}
	if m.mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	s.Cleanup(func() { _ = unix.Munmap(m.mem) }) // fails for no mapping of ours
	if m.uffd, err = harness.Userfaultfd(); err != nil {
		return nil, err
	}
	s.Cleanup(func() { _ = unix.Close(m.uffd) }) // nothing is written to it
	for i := range words(m.mem) {
		words(m.mem)[i] = uint64(i)
	}
	if err := m.ioctl(uffdAPI, &[4]uint64{0xAA, featuresAsync}); err != nil {
		return nil, fmt.Errorf("UFFDIO_API: %w", err)
	}
	if err := m.ioctl(uffdRegister, &[4]uint64{m.addr(), uint64(size), 2}); err != nil {
		return nil, fmt.Errorf("UFFDIO_REGISTER: %w", err)
	}
	return m, m.arm()
}

func (m *armedMemory) addr() uint64 { return uint64(uintptr(unsafe.Pointer(&m.mem[0]))) }

func (m *armedMemory) ioctl(request uintptr, arg *[4]uint64) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(m.uffd), request, uintptr(unsafe.Pointer(arg))); e != 0 {
		return e
	}
	return nil
}

// arm protects all of it.
func (m *armedMemory) arm() error {
	return m.ioctl(uffdWriteProtect, &[4]uint64{m.addr(), uint64(len(m.mem)), 1})
}

// firstStores stores to every eighth page, few enough that tracking goes on; nanoseconds for each.
func firstStores(b []byte) float64 {
	const step = 8 * page / 8
	w, v := words(b), rand.Uint64()
	at := rand.IntN(8) * page / 8
	began := time.Now()
	n := 0
	for i := at; i < len(w); i += step {
		w[i] = v
		n++
	}
	return float64(time.Since(began)) / float64(n)
}

func attachFirstRow(o options) ([]line, error) {
	size := o.pick(256*mib, 32*mib)
	l := line{Name: "first store to a page after a publish, attached", Unit: "ns", Measure: "a bare program with WP_ASYNC", Bound: 1.2}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2, Memory: "2G"}, o.rounds, func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		a, _, err := attached(c, size)
		if err != nil {
			return nil, nil, err
		}
		bare, err := newArmedMemory(s, size)
		if err != nil {
			return nil, nil, err
		}
		return func() (float64, error) {
				ns := firstStores(a.Mem)
				_, err := a.Call(harness.PublishOp)
				return ns, err
			}, func() (float64, error) {
				ns := firstStores(bare.mem)
				return ns, bare.arm()
			}, nil
	})
}
