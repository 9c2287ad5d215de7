package main

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRuns: which threads of a daemon that was killed the next one waits for.
func TestRuns(t *testing.T) {
	stat := func(state string, flags int) string {
		return fmt.Sprintf("12 (a) b) %s 1 2 3 0 -1 %d 0 0", state, flags)
	}
	write := func(number, fd int) string {
		return fmt.Sprintf("%d %#x 0xc000 0x10 0x0 0x0 0x0 0x7ffe 0x4a\n", number, fd)
	}
	for _, c := range []struct {
		what, stat, call string
		runs             bool
	}{
		{"runs", stat("R", 0), "running\n", true},
		{"sleeps, and a signal wakes it", stat("S", 0), write(unix.SYS_READ, 5), true},
		{"has ended", stat("Z", exiting), "", false},
		{"has just ended", stat("X", 0), "", false},
		{"ends, and waits in that", stat("D", exiting|64), write(unix.SYS_PWRITE64, 3), false},
		{"waits for a page that only the next daemon brings", stat("D", 64), write(unix.SYS_WRITE, 4), false},
		{"the same in several parts", stat("D", 64), write(unix.SYS_WRITEV, 4), false},
		{"writes to the log", stat("D", 0), write(unix.SYS_WRITE, 2), true},
		{"writes to what is held", stat("D", 0), write(unix.SYS_PWRITE64, 4), true},
		{"touches what is held", stat("D", 0), "-1 0x7ffe 0x4a\n", true},
		{"has just gone on", stat("D", 0), "running\n", true},
		{"waits, and the kernel does not say where", stat("D", 0), "", false},
		{"is none", "", "", false},
	} {
		if got := runs(c.stat, c.call, func(fd string) bool { return fd == "4" }); got != c.runs {
			t.Errorf("one that %s: runs %v", c.what, got)
		}
	}
	if !someRun(os.Getpid()) {
		t.Error("this process does not run")
	}
}
