package procs

import (
	"bufio"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is a process that a test ends, if it has been told how.
func TestMain(m *testing.M) {
	switch os.Getenv("PROCS_TEST_ENDS") {
	case "":
		os.Exit(m.Run())
	case "exits":
		os.Exit(0)
	case "fails":
		os.Exit(77) // which is 77<<8 as a status
	default:
		os.Stdout.WriteString("ready\n")
		select {}
	}
}

// TestKilled: a process that is killed is told from one that exits, while it is a zombie and when it is reaped. It has several threads.
func TestKilled(t *testing.T) {
	for how, want := range map[string]bool{"exits": false, "fails": false, "lives": false, "TERM": true, "KILL": true} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "PROCS_TEST_ENDS="+how)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			p, err := Open(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			switch how {
			case "lives", "TERM", "KILL":
				if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				if p.Killed() {
					t.Error("it lives, and is said to be killed")
				}
				if how != "lives" {
					if err := cmd.Process.Signal(unix.SignalNum("SIG" + how)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if how != "lives" {
				if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
					t.Fatal(err)
				}
				if got := p.Killed(); got != want {
					t.Errorf("a zombie was killed: %v, want %v", got, want)
				}
				_ = cmd.Wait() // the error is how it has ended
			}
			if how != "lives" && !knows(p) {
				t.Skip("the kernel does not say how a process has ended that is reaped: Linux 6.15 does")
			}
			if got := p.Killed(); got != want {
				t.Errorf("killed: %v, want %v", got, want)
			}
			if how == "lives" {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		})
	}
}

func knows(p *Process) bool {
	_, gone := reaped(p.fd)
	return gone
}
