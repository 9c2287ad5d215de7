package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// thread is what a thread of a process that is being killed still does.
type thread uint8

const (
	over  thread = iota // nothing: it has ended
	waits               // nothing, but it waits in the kernel, beyond the reach of signals, and has not ended
	runs                // something
)

// tasksOf returns the directories in /proc of the threads of a process, none if it has ended.
func tasksOf(pid int) []string {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		panic(err) // the pattern is wrong
	}
	return tasks
}

// mostOf returns what the thread does that does most. A process without threads has ended.
func mostOf(pid int) (most thread) {
	for _, task := range tasksOf(pid) {
		stat, err := os.ReadFile(filepath.Join(task, "stat"))
		if err != nil {
			continue // it has ended
		}
		call, err := os.ReadFile(filepath.Join(task, "syscall"))
		if err != nil {
			call = nil
		}
		most = max(most, threadOf(string(stat), string(call), func(fd string) bool {
			to, err := os.Readlink(filepath.Join(task, "fd", fd))
			return err == nil && to == "/dev/fuse"
		}))
	}
	return most
}

// stopped reports whether a process has stopped, or ended: none of its threads comes back to the program before SIGCONT. When one has stopped, all that are in the kernel
// stop before they come back; those that wait there beyond the reach of signals may be waiting for what the others would do.
func stopped(pid int) bool {
	for range 2 { // the second look sees threads that began during the first
		if !allStopped(pid) {
			return false
		}
	}
	return true
}

// allStopped looks once.
func allStopped(pid int) bool {
	one, wait := false, false
	for _, task := range tasksOf(pid) {
		stat, err := os.ReadFile(filepath.Join(task, "stat"))
		if err != nil {
			continue // it has ended
		}
		switch stateOf(string(stat)) {
		case "T", "t":
			one = true
		case "D":
			wait = true
		case "Z", "X":
		default:
			return false
		}
	}
	return one || !wait
}

// stateOf returns the state of a thread by its file stat in /proc.
func stateOf(stat string) string {
	if fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]); len(fields) > 0 {
		return fields[0]
	}
	return "X"
}

// exiting is the flag of a thread that is ending (PF_EXITING of include/linux/sched.h): it comes back to no program.
const exiting = 4

// threadOf returns what a thread does by its files stat and syscall in /proc. isDevice says whether a descriptor is that of /dev/fuse.
//
// A thread that waits beyond the reach of signals does the rest of its system call, and no more. It counts as running, for the call may write to what is held. But
// a notice to the kernel may wait for a request that only the next daemon will answer: that is a write to /dev/fuse, which does no harm.
func threadOf(stat, call string, isDevice func(fd string) bool) thread {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // what follows the name, which is in brackets
	if len(fields) < 7 || fields[0] == "Z" || fields[0] == "X" {
		return over
	}
	if fields[0] != "D" {
		return runs
	}
	if flags, err := strconv.ParseUint(fields[6], 10, 64); err != nil || flags&exiting != 0 {
		return waits
	}
	words := strings.Fields(call)
	switch len(words) {
	case 0: // unknown
		return waits
	case 1: // it has just gone on
		return runs
	}
	number, err := strconv.Atoi(words[0])
	if err != nil || number != unix.SYS_WRITE && number != unix.SYS_WRITEV {
		return runs
	}
	if fd, err := strconv.ParseUint(words[1], 0, 32); err != nil || !isDevice(strconv.FormatUint(fd, 10)) {
		return runs
	}
	return waits
}
