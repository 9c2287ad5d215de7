package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// finding is what doctor reports about one thing.
type finding struct {
	what  string
	ok    bool
	needs bool   // nothing can be mounted without it
	text  string // what is there; or what is missing, what to do, and what works without it
}

// examine checks everything that a mount depends on.
func examine() []finding {
	kernel := kernelRelease()
	return []finding{
		fuseFinding(kernel),
		deviceFinding(),
		privilegeFinding(),
		memfdFinding(),
		writebackFinding(),
		trackingFinding(),
		passthroughFinding(),
	}
}

// checkMachine returns an error if this machine cannot mount at all: what is missing, and how to
// get it.
func checkMachine() error {
	var missing []string
	for _, f := range examine() {
		if f.needs && !f.ok {
			missing = append(missing, f.what+": "+f.text)
		}
	}
	if missing == nil {
		return nil
	}
	return fail(exitMachine, "this machine cannot mount: %s (dsmfs doctor lists all it found)", strings.Join(missing, "; "))
}

func doctorVerb(p *program, args []string) error {
	f := p.flags("doctor")
	if err := parse(f, args, 0, 0, ""); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "dsmfs %s, %s, on Linux %s\n\n", programVersion(), runtime.Version(), kernelRelease())
	for _, x := range slices.Concat(examine(), advise()) {
		mark := "ok     "
		switch {
		case !x.ok && x.needs:
			mark = "MISSING"
		case !x.ok:
			mark = "without"
		}
		fmt.Fprintf(p.out, "%s  %-22s %s\n", mark, x.what, x.text)
	}
	if err := checkMachine(); err != nil {
		fmt.Fprintln(p.out, "\nThis machine cannot mount.")
		return &exitError{exitMachine, errPrinted}
	}
	fmt.Fprintln(p.out, "\nThis machine can mount.")
	return nil
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func fuseFinding(kernel string) finding {
	f := finding{what: "FUSE in the kernel", needs: true, ok: true, text: "there (" + kernel + ")"}
	if text, err := os.ReadFile("/proc/filesystems"); err == nil && !strings.Contains(string(text), "\tfuse\n") {
		// The module may exist but not be loaded; opening the device loads it.
		f.ok = openFuse() == nil
		f.text = "kernel " + kernel + " has no module fuse loaded: try modprobe fuse; a kernel without it cannot mount anything in user space"
		if f.ok {
			f.text = "loaded on demand"
		}
	}
	return f
}

func openFuse() error {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func deviceFinding() finding {
	f := finding{what: "/dev/fuse", needs: true}
	switch err := openFuse(); {
	case err == nil:
		f.ok, f.text = true, "can be opened"
	case errors.Is(err, unix.ENOENT):
		f.text = "no such device: load the kernel module (modprobe fuse), or in a container give it the device (--device /dev/fuse)"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		f.text = "permission denied: mount as root, or let this user open the device; in a container give it the device (--device /dev/fuse)"
	default:
		f.text = err.Error() + ": the kernel module fuse does not work"
	}
	return f
}

func privilegeFinding() finding {
	f := finding{what: "right to mount", needs: true, ok: true}
	if os.Geteuid() == 0 {
		f.text = "root"
		return f
	}
	path, err := exec.LookPath("fusermount3")
	if err != nil {
		f.ok = false
		f.text = "neither root nor fusermount3: mount as root, or install the package fuse3"
		return f
	}
	f.text = path + "; without root only this user can use the mount, and write-back is throttled"
	return f
}

func memfdFinding() finding {
	f := finding{what: "memfd_create", needs: true}
	fd, err := unix.MemfdCreate("dsmfs-doctor", unix.MFD_CLOEXEC)
	if err != nil {
		f.text = err.Error() + ": areas have nowhere to live"
		return f
	}
	_ = unix.Close(fd) // nothing in it
	f.ok, f.text = true, "there"
	return f
}

func writebackFinding() finding {
	f := finding{what: "write-back limits", ok: true, text: "can be set: stores into mappings run at memory speed"}
	if os.Geteuid() != 0 || unix.Access("/sys/class/bdi", unix.W_OK) != nil {
		f.ok = false
		f.text = "cannot be set: it takes root and a writable /sys; programs that store much into mappings are slower, and as correct"
	}
	return f
}

// trackingFinding is about how stores of attached programs are found, best way first.
func trackingFinding() finding {
	features := uffd.Probe()
	mode, err := uffd.Choose(features, "")
	f := finding{what: "stores of attached", ok: err == nil && mode == uffd.Async}
	switch {
	case err != nil:
		f.text = err.Error()
	case f.ok:
		f.text = "tracked by the kernel (userfaultfd WP_ASYNC and PAGEMAP_SCAN)"
	case mode == uffd.Sync:
		f.text = "tracked by write faults, which stop the program for some microseconds each: " + features.Async.Reason
	default:
		f.text = "found by comparing memory, which costs time even when nothing is stored: " + features.Async.Reason + "; " + features.Sync.Reason
	}
	return f
}

// passthroughFinding is about files with user.dsm.access=direct.
func passthroughFinding() finding {
	f := finding{what: "FUSE passthrough", ok: true, text: "there: plain opens of files with user.dsm.access=direct get the memory itself"}
	if err := fs.ProbePassthrough(); err != nil {
		f.ok = false
		f.text = "not there: files with user.dsm.access=direct are served through the page cache like all others: " + err.Error()
	}
	return f
}
