package attach

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/uffd"
	"golang.org/x/sys/unix"
)

// verbEnv makes the test binary one of the processes that a test is about; what is
// built with -race would sleep for a second before it ends.
const (
	verbEnv    = "DSMFS_ATTACH_TEST_VERB"
	noRaceWait = "GORACE=atexit_sleep_ms=0"
)

func TestMain(m *testing.M) {
	switch verb := os.Getenv(verbEnv); verb {
	case "":
		os.Exit(m.Run())
	case "guard":
		if err := GuardMain(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "guard:", err)
			os.Exit(1)
		}
	case "guarded":
		guardedMain()
	default:
		panic("unknown verb " + verb)
	}
}

func guardArgv() []string {
	return []string{"/usr/bin/env", verbEnv + "=guard", noRaceWait, os.Args[0]}
}

// guardedMain is a daemon that tracks a mapping of its parent, whose descriptors are 3 to 5: the
// userfaultfd, the process and the memfd.
func guardedMain() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	c := uffd.Config{UFFD: 3, PidFD: 4, Memfd: 5, Mode: uffd.Compare, Missing: func(off int64) { fmt.Println("missing", off) }}
	_, err := fmt.Sscan(os.Args[1], &c.Addr, &c.Length, &c.Dev, &c.Ino)
	must(err)
	g := newGuard(guardArgv(), slog.New(slog.DiscardHandler))
	r, err := uffd.Track(c)
	must(err)
	must(g.Add(r))
	fmt.Println("guard", g.last.Process.Pid)
	_, err = io.Copy(io.Discard, os.Stdin)
	must(err)
	must(r.Close())
	g.Remove(r)
	g.stop()
}

// TestGuardProcess: a system call that waits for a missing page fails when the daemon is
// killed, and the guard of one that ends in order ends before it. This process is the program.
func TestGuardProcess(t *testing.T) {
	if f := uffd.Probe(); !f.Missing.OK || !f.Poison.OK || !f.Kernel.OK {
		t.Skip("no missing pages on demand, or none for system calls")
	}
	for _, kill := range []bool{true, false} {
		t.Run(fmt.Sprint("kill ", kill), func(t *testing.T) {
			page := os.Getpagesize()
			file := func(fd int, err error) *os.File {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				return os.NewFile(uintptr(fd), "")
			}
			memfd := file(unix.MemfdCreate("area", unix.MFD_CLOEXEC))
			defer memfd.Close()
			if err := memfd.Truncate(int64(16 * page)); err != nil {
				t.Fatal(err)
			}
			dev, ino, err := identity(memfd)
			if err != nil {
				t.Fatal(err)
			}
			mem, err := unix.Mmap(int(memfd.Fd()), 0, 16*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			pidfd := file(unix.PidfdOpen(os.Getpid(), 0))
			defer pidfd.Close()
			fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
			if errno != 0 {
				t.Fatal(errno)
			}
			own := os.NewFile(fd, "")
			cmd := exec.Command(os.Args[0], fmt.Sprint(uintptr(unsafe.Pointer(&mem[0])), len(mem), dev, ino))
			cmd.Env = append(os.Environ(), verbEnv+"=guarded", noRaceWait)
			cmd.ExtraFiles, cmd.Stderr = []*os.File{own, pidfd, memfd}, os.Stderr
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = own.Close() // the daemon has it
			lines := bufio.NewReader(out)
			var pid, off int
			if _, err := fmt.Fscanf(lines, "guard %d\n", &pid); err != nil {
				t.Fatal(err)
			}
			guard := file(unix.PidfdOpen(pid, 0))
			defer guard.Close()
			// A system call waits, as a goroutine that waits in a load stops the garbage collector.
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			got := make(chan error)
			go func() {
				_, err := unix.Write(int(w.Fd()), mem[3*page:4*page])
				got <- err
			}()
			if _, err := fmt.Fscanf(lines, "missing %d\n", &off); err != nil || off != 3*page {
				t.Fatal(off, err)
			}
			if kill {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			} else if err := in.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-got; err != unix.EFAULT {
				t.Error("the write ended with ", err)
			}
			if err := cmd.Wait(); (err != nil) != kill {
				t.Error(err)
			}
			fds := []unix.PollFd{{Fd: int32(guard.Fd()), Events: unix.POLLIN}}
			timeout := 30000
			if !kill {
				timeout = 0 // the daemon has waited for it
			}
			n, err := 0, error(unix.EINTR)
			for err == unix.EINTR {
				n, err = unix.Poll(fds, timeout)
			}
			if n != 1 || err != nil {
				t.Error("the guard has not ended: ", n, err)
			}
			if err := unix.Munmap(mem); err != nil {
				t.Error(err)
			}
		})
	}
}
