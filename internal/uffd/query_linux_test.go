package uffd

import (
	"errors"
	"math"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestQueryIsAsInText: the kernel's answer about one mapping is the line of /proc/PID/maps.
func TestQueryIsAsInText(t *testing.T) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	fd, err := unix.MemfdCreate("query", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fd)
	const size = 8 << 12
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 2<<12, size-2<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	start := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	for _, at := range []uint64{start, start + 4096} {
		got, err := query(int(maps.Fd()), at)
		if errors.Is(err, unix.ENOTTY) {
			t.Skip("the kernel is older than 6.11")
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.Open("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		want, err := afterInText(text)(at)
		text.Close()
		if err != nil || got != want || got.perms != "rw-s" || got.off != 2<<12 {
			t.Errorf("at %#x: %+v, in text %+v, %v", at, got, want, err)
		}
	}
	if m, err := query(int(maps.Fd()), math.MaxUint64-4096); !errors.Is(err, unix.ENOENT) {
		t.Errorf("behind all mappings: %+v, %v", m, err)
	}
}
