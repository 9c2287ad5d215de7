package pagetest

import (
	"errors"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// KilledAtStore calls f, which ends at its first store to a page of a mapping, as a process would that is killed there. It returns an error if f does not store to the page.
func KilledAtStore(page []byte, f func()) error {
	if err := unix.Mprotect(page, unix.PROT_READ); err != nil {
		return os.NewSyscallError("mprotect", err)
	}
	ended := faults(f)
	if err := unix.Mprotect(page, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return os.NewSyscallError("mprotect", err)
	}
	if !ended {
		return errors.New("nothing was stored to the page")
	}
	return nil
}

func faults(f func()) (ended bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { ended = recover() != nil }()
	f()
	return false
}
