package harness

import (
	"errors"
	"os"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const stuckSize = 4096

// StuckWrite has this process write(2) to a descriptor, from a page that is not there. It returns when the kernel waits for the page, and that is until
// let is called, or the test ends.
func StuckWrite(t *testing.T, fd int, off int64) (let func()) {
	t.Helper()
	uffd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skipf("userfaultfd for faults of the kernel: %v", errno)
	}
	mem, err := unix.MmapPtr(-1, 0, nil, stuckSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	ioctl := func(request uintptr, arg unsafe.Pointer) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uffd, request, uintptr(arg)); errno != 0 {
			t.Errorf("ioctl %#x: %v", request, errno)
		}
	}
	at := uint64(uintptr(mem))
	ioctl(0xc018aa3f, unsafe.Pointer(&[3]uint64{0xaa}))                           // UFFDIO_API
	ioctl(0xc020aa00, unsafe.Pointer(&[4]uint64{at, stuckSize, 1 /* MISSING */})) // UFFDIO_REGISTER
	wrote := make(chan error, 1)
	go func() {
		_, err := unix.Pwrite(fd, unsafe.Slice((*byte)(mem), stuckSize), off)
		wrote <- os.NewSyscallError("pwrite", err)
	}()
	let = sync.OnceFunc(func() {
		ioctl(0xc020aa04, unsafe.Pointer(&[4]uint64{at, stuckSize})) // UFFDIO_ZEROPAGE
		if err := errors.Join(<-wrote, unix.Close(int(uffd)), unix.MunmapPtr(mem, stuckSize)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(let)
	if n, err := unix.Read(int(uffd), make([]byte, 32)); n != 32 || err != nil { // a struct uffd_msg
		t.Fatalf("%d bytes: %v", n, err)
	}
	return let
}
