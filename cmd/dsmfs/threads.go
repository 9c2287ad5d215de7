package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// someRun reports whether a thread of a process that is being killed runs or can go on.
func someRun(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(tasks, func(task string) bool {
		stat, err := os.ReadFile(filepath.Join(task, "stat"))
		if err != nil {
			return false // it has ended
		}
		call, err := os.ReadFile(filepath.Join(task, "syscall"))
		if err != nil {
			call = nil
		}
		return runs(string(stat), string(call), func(fd string) bool {
			to, err := os.Readlink(filepath.Join(task, "fd", fd))
			return err == nil && to == "/dev/fuse"
		})
	})
}

// exiting is the flag of a thread that is ending (PF_EXITING of include/linux/sched.h): it comes back to no program.
const exiting = 4

// runs reports whether a thread runs or can go on, by its files stat and syscall in /proc. isDevice says whether a descriptor is that of /dev/fuse.
//
// A thread that waits beyond the reach of signals does the rest of its system call, and no more. It counts as running, for the call may write to what is held. But
// a notice to the kernel may wait for a request that only the next daemon will answer: that is a write to /dev/fuse, which does no harm.
func runs(stat, call string, isDevice func(fd string) bool) bool {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // what follows the name, which is in brackets
	if len(fields) < 7 || fields[0] == "Z" || fields[0] == "X" {
		return false
	}
	if fields[0] != "D" {
		return true
	}
	if flags, err := strconv.ParseUint(fields[6], 10, 64); err != nil || flags&exiting != 0 {
		return false
	}
	words := strings.Fields(call)
	if len(words) < 2 { // running, or unknown
		return len(words) > 0
	}
	number, err := strconv.Atoi(words[0])
	if err != nil || number != unix.SYS_WRITE && number != unix.SYS_WRITEV {
		return true
	}
	fd, err := strconv.ParseUint(words[1], 0, 32)
	return err != nil || !isDevice(strconv.FormatUint(fd, 10))
}
