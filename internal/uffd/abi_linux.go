package uffd

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pageSize is the kernel's unit of tracking.
var pageSize = uint64(os.Getpagesize())

// The rest is include/uapi/linux/userfaultfd.h and the PAGEMAP_SCAN part of
// include/uapi/linux/fs.h, which golang.org/x/sys does not have. The numbers of the ioctls are
// those of the generic encoding (amd64, arm64, riscv64).
const (
	apiVersion = 0xAA

	ioctlAPI          = 0xC018AA3F
	ioctlRegister     = 0xC020AA00
	ioctlUnregister   = 0x8010AA01
	ioctlWake         = 0x8010AA02
	ioctlCopy         = 0xC028AA03
	ioctlWriteProtect = 0xC018AA06
	ioctlPoison       = 0xC020AA08
	ioctlPagemapScan  = 0xC0606610

	userModeOnly = 1 // flag of userfaultfd(2)

	featureEventRemap    = 1 << 2
	featureEventRemove   = 1 << 3
	featureMissingShmem  = 1 << 5
	featureEventUnmap    = 1 << 6
	featureWPShmem       = 1 << 12
	featureWPUnpopulated = 1 << 13
	featurePoison        = 1 << 14
	featureWPAsync       = 1 << 15

	registerMissing = 1 << 0
	registerWP      = 1 << 1

	writeProtect = 1 << 0 // mode of ioctlWriteProtect
	copyDontWake = 1 << 0 // mode of ioctlCopy

	faultWP = 1 << 1 // flag of a page fault; without it the page is missing

	eventPagefault = 0x12
	eventRemap     = 0x14
	eventUnmap     = 0x16

	scanWPMatching   = 1 << 0
	scanCheckWPAsync = 1 << 1

	pageIsWritten = 1 << 1
	pageIsPresent = 1 << 3
	pageIsSwapped = 1 << 4

	pagemapUffdWP = 1 << 57 // bit of an entry of /proc/PID/pagemap
)

type apiArg struct{ api, features, ioctls uint64 }

type registerArg struct{ start, length, mode, ioctls uint64 }

type rangeArg struct{ start, length uint64 }

type writeProtectArg struct{ start, length, mode uint64 }

type poisonArg struct {
	start, length, mode uint64
	updated             int64
}

type copyArg struct {
	dst          uint64
	src          unsafe.Pointer // a pointer, because a slice may be on a stack that moves
	length, mode uint64
	copied       int64
}

// message is struct uffd_msg. The arguments of a page fault are flags and address; those of a remap
// are from, to and length; those of an unmap are start and end.
type message struct {
	event byte
	_     [7]byte
	args  [3]uint64
}

type pageRegion struct{ start, end, categories uint64 }

type scanArg struct {
	size, flags, start, end, walkEnd   uint64
	vec                                uint64
	vecLen, maxPages                   uint64
	inverted, mask, anyOf, returnWhich uint64
}

// ioctl calls the ioctl, again if a signal interrupts it.
func ioctl(fd int, request uintptr, arg unsafe.Pointer) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return -1, errno
		}
	}
}

// create makes a userfaultfd of this process. full reports whether it also stops the kernel's own
// accesses, which takes CAP_SYS_PTRACE or vm.unprivileged_userfaultfd.
func create() (fd int, full bool, err error) {
	for _, flag := range []uintptr{0, userModeOnly} {
		n, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|flag, 0, 0)
		if errno == 0 {
			return int(n), flag == 0, nil
		}
		err = errno
		if !errors.Is(err, unix.EPERM) {
			break
		}
	}
	return -1, false, err
}

// handshake asks for the features and returns what the kernel has. On each userfaultfd it can
// succeed only once.
func handshake(fd int, features uint64) (uint64, error) {
	a := apiArg{api: apiVersion, features: features}
	_, err := ioctl(fd, ioctlAPI, unsafe.Pointer(&a))
	return a.features, err
}

func register(fd int, start, length, mode uint64) error {
	a := registerArg{start: start, length: length, mode: mode}
	_, err := ioctl(fd, ioctlRegister, unsafe.Pointer(&a))
	return err
}

func unregister(fd int, start, length uint64) error {
	a := rangeArg{start, length}
	_, err := ioctl(fd, ioctlUnregister, unsafe.Pointer(&a))
	return err
}

func wake(fd int, start, length uint64) error {
	a := rangeArg{start, length}
	_, err := ioctl(fd, ioctlWake, unsafe.Pointer(&a))
	return err
}

// protect sets or removes write protection. Removing it wakes the threads that wait.
func protect(fd int, start, length uint64, on bool) error {
	a := writeProtectArg{start: start, length: length}
	if on {
		a.mode = writeProtect
	}
	_, err := ioctl(fd, ioctlWriteProtect, unsafe.Pointer(&a))
	return err
}

// poison makes accesses to [start, start+length) fail, and wakes threads that wait there. It stops
// at the first page that has an entry in the page table; done is how far it came. The error is
// EEXIST if that was the first page, EAGAIN otherwise. EAGAIN with nothing done means that the
// process is within a munmap or mremap. ENOENT means that the range is not registered, or is not a
// single mapping.
func poison(fd int, start, length uint64) (done uint64, err error) {
	a := poisonArg{start: start, length: length}
	_, err = ioctl(fd, ioctlPoison, unsafe.Pointer(&a))
	return uint64(max(a.updated, 0)), err
}

// changing reports whether the process is within a munmap or mremap whose event has not been read,
// or has been read but the thread has not gone on. The kernel checks this before it checks the
// range, and an empty range is EINVAL and does nothing.
func changing(fd int) bool { return errors.Is(protect(fd, 0, 0, false), unix.EAGAIN) }

// protected reads whether the page of the pagemap is write-protected by a userfaultfd.
func protected(pagemap int, addr uint64) (bool, error) {
	var e [8]byte
	n, err := unix.Pread(pagemap, e[:], int64(addr/pageSize*8))
	if err == nil && n != len(e) {
		err = unix.ESRCH
	}
	return *(*uint64)(unsafe.Pointer(&e))&pagemapUffdWP != 0, err
}

// memoryLives reports whether the memory that the pagemap describes still exists. Reading the
// pagemap is the one cheap operation that needs a user of that memory: it fails as soon as the
// memory has no user (exit, exec), even before the first mapping of it goes.
func memoryLives(pagemap int) bool {
	var e [8]byte
	n, err := unix.Pread(pagemap, e[:], 0)
	return err == nil && n == len(e)
}
