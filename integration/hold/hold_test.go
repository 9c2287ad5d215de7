package hold_test

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

var (
	kills = flag.Int("kills", 20, "how often the daemon is killed")
	seed  = flag.Uint64("seed", 0, "of the moments; 0: a new one")
)

// limit bounds waiting for another daemon.
const limit = 60 * time.Second

// longest is the longest time between two kills.
const longest = 300 * time.Millisecond

// held starts a node with --hold.
func held(t *testing.T, flags ...string) *harness.Node {
	t.Helper()
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	return harness.New(t, harness.Options{Nodes: 1, Memory: "256M", Flags: append([]string{"--hold"}, flags...)}).Node(1)
}

// killDaemon kills the daemon that follows the process last, and returns its number.
func killDaemon(t *testing.T, n *harness.Node, last int, after time.Duration, how syscall.Signal) int {
	t.Helper()
	pid := 0
	if !harness.Eventually(limit, func() bool { pid = n.Daemon(); return pid != last && pid != 0 }) {
		log, _ := os.ReadFile(n.LogFile())
		t.Fatalf("no daemon follows %d:\n%s", last, log)
	}
	<-time.After(after)
	if err := syscall.Kill(pid, how); err != nil {
		log, _ := os.ReadFile(n.LogFile())
		t.Fatalf("kill %d: %v\n%s", pid, err, log)
	}
	return pid
}

// TestHeldMountOutlivesItsDaemon: programs of all kinds see no error and lose nothing while the daemon is killed again and again.
func TestHeldMountOutlivesItsDaemon(t *testing.T) {
	n := held(t)
	rnd := seeded(t)
	var all []running
	for _, kind := range kinds {
		all = append(all, start(t, n, kind, "", rnd.Uint64()))
	}
	last := 0
	for range *kills {
		last = killDaemon(t, n, last, time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
	}
	end(t, all, []*harness.Node{n})
	n.Stop()
	if rest := harness.Mounts(filepath.Dir(n.Mount)); len(rest) > 0 {
		t.Errorf("%v are still mounted", rest)
	}
}

// TestHolderGivesUp: daemons that crash again and again are not started for ever. Programs get ENOTCONN then, and do not hang.
func TestHolderGivesUp(t *testing.T) {
	n := held(t)
	c := n.Client()
	words, err := c.Do("open %s rw,creat", filepath.Join(n.Mount, "f"))
	if err != nil {
		t.Fatal(err)
	}
	socket := n.AttachSocket()
	program, err := net.Dial("unixpacket", socket)
	if err != nil {
		t.Fatal(err)
	}
	device := openDevice(t, n.PID()) // as a daemon that cannot end has it
	defer func() { _ = unix.Close(device) }()
	last := 0
	for range 5 {
		last = killDaemon(t, n, last, 0, syscall.SIGABRT)
	}
	n.ExpectDead()
	if _, err := c.Do("pread %s 0 5", words[0]); err == nil || !strings.Contains(err.Error(), "ENOTCONN") && !strings.Contains(err.Error(), "ECONNABORTED") {
		t.Errorf("read after that: %v", err)
	}
	if _, err := net.Dial("unixpacket", socket); !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a program that attaches after that: %v", err)
	}
	if n, err := program.Read(make([]byte, 1)); err == nil {
		t.Errorf("one that had connected reads %d bytes", n)
	}
	_ = program.Close() // the daemon has
	log, err := os.ReadFile(n.LogFile())
	if err != nil || !strings.Contains(string(log), "no other follows it") {
		t.Errorf("the log does not say it (%v):\n%s", err, log)
	}
}

// TestUnmountedWhileNoDaemonServes: the mount is unmounted just after its daemon was killed. No daemon follows, and that is no error.
func TestUnmountedWhileNoDaemonServes(t *testing.T) {
	for range 5 {
		n := held(t)
		killDaemon(t, n, 0, 0, syscall.SIGKILL)
		if err := unix.Unmount(n.Mount, 0); err != nil {
			t.Fatal(err)
		}
		if !harness.Eventually(limit, func() bool { return !n.Running() }) {
			t.Fatal("the holder goes on")
		}
		if log, err := os.ReadFile(n.LogFile()); err != nil || strings.Count(string(log), "mount failed") > 1 {
			t.Errorf("%v; the log:\n%s", err, log)
		}
	}
}

// openDevice returns the connection to the kernel that a process has open, which stays open with it.
func openDevice(t *testing.T, pid int) int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err != nil || to != "/dev/fuse" {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		process, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(process) }()
		device, err := unix.PidfdGetfd(process, fd, 0)
		if err != nil {
			t.Fatal(err)
		}
		return device
	}
	t.Fatal("it does not have /dev/fuse open")
	return -1
}

// TestHoldRefuses: what does not go with --hold is refused in words.
func TestHoldRefuses(t *testing.T) {
	n := held(t)
	res := n.CLI("mount", "--hold", filepath.Join(filepath.Dir(n.Mount), "other"), "--no-mount")
	if res.Err == nil || !strings.Contains(res.Stderr, "does not go with") {
		t.Errorf("--no-mount: %v: %s", res.Err, res.Stderr)
	}
	made := n.Client()
	if _, err := made.Do("open %s rw,creat", filepath.Join(n.Mount, "f")); err != nil {
		t.Fatal(err)
	}
	if res := n.CLI("set", filepath.Join(n.Mount, "f"), "residency=demand"); res.Err != nil {
		t.Errorf("residency=demand: %v: %s", res.Err, res.Stderr)
	}
	made.Must("truncate %s 8192", filepath.Join(n.Mount, "f"))
	if _, err := n.TryAttach("/f", true); err == nil {
		t.Error("a program attaches a file on demand")
	}
}
