package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestThreads: which threads of a daemon that was killed the next one waits for.
func TestThreads(t *testing.T) {
	stat := func(state string, flags int) string {
		return fmt.Sprintf("12 (a) b) %s 1 2 3 0 -1 %d 0 0", state, flags)
	}
	write := func(number, fd int) string {
		return fmt.Sprintf("%d %#x 0xc000 0x10 0x0 0x0 0x0 0x7ffe 0x4a\n", number, fd)
	}
	for _, c := range []struct {
		what, stat, call string
		does             thread
	}{
		{"runs", stat("R", 0), "running\n", runs},
		{"sleeps, and a signal wakes it", stat("S", 0), write(unix.SYS_READ, 5), runs},
		{"has ended", stat("Z", exiting), "", over},
		{"has just ended", stat("X", 0), "", over},
		{"ends, and waits in that", stat("D", exiting|64), write(unix.SYS_PWRITE64, 3), waits},
		{"waits for a page that only the next daemon brings", stat("D", 64), write(unix.SYS_WRITE, 4), waits},
		{"the same in several parts", stat("D", 64), write(unix.SYS_WRITEV, 4), waits},
		{"writes to the log", stat("D", 0), write(unix.SYS_WRITE, 2), runs},
		{"writes to what is held", stat("D", 0), write(unix.SYS_PWRITE64, 4), runs},
		{"touches what is held", stat("D", 0), "-1 0x7ffe 0x4a\n", runs},
		{"has just gone on", stat("D", 0), "running\n", runs},
		{"waits, and the kernel does not say where", stat("D", 0), "", waits},
		{"is none", "", "", over},
	} {
		if got := threadOf(c.stat, c.call, func(fd string) bool { return fd == "4" }); got != c.does {
			t.Errorf("one that %s: %v, want %v", c.what, got, c.does)
		}
	}
	if got := mostOf(os.Getpid()); got != runs {
		t.Errorf("this process: %v", got)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if got := mostOf(ended.Process.Pid); got != over {
		t.Errorf("a process that has ended: %v", got)
	}
}

// TestStuckThreadThatIsNotListed: the kernel's list of the threads of a process that ends may lack one which is stuck. The next daemon does not wait for that all the same.
func TestStuckThreadThatIsNotListed(t *testing.T) {
	looks := []thread{runs, over, waits, over}
	look := func() thread {
		if len(looks) == 0 {
			return waits
		}
		next := looks[0]
		looks = looks[1:]
		return next
	}
	dead := make(chan struct{})
	go func() {
		defer close(dead)
		(&keeper{}).awaitDeath(1, look, func() {}, nil)
	}()
	select {
	case <-dead:
	case <-time.After(time.Minute):
		t.Error("a daemon that cannot end is waited for")
	}
}
