package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// background mounts at a node's mount point without staying in the foreground, as people do.
func background(n *harness.Node, more ...string) harness.Result {
	return n.CLI(append([]string{"mount", n.Mount, "--hold=off", "--listen", n.Address, "--name", n.Name, "--memory", "64M", "--state", n.State()}, more...)...)
}

// done fails the test unless the command went well.
func done(t *testing.T, what string, res harness.Result) {
	t.Helper()
	if res.Err != nil {
		t.Fatalf("%s: %v\n%s%s", what, res.Err, res.Stdout, res.Stderr)
	}
}

// TestMountPointIsMade: mount makes the directory, and it goes with the mount, however that ends.
func TestMountPointIsMade(t *testing.T) {
	c := cluster(t, harness.Options{})
	n := c.Declare()
	gone := func(how string) {
		t.Helper()
		if !harness.Eventually(limit, func() bool { _, err := os.Lstat(n.Mount); return os.IsNotExist(err) }) {
			t.Errorf("%s: %s is left", how, n.Mount)
		}
	}
	if err := os.Remove(n.Mount); err != nil {
		t.Fatal(err)
	}
	done(t, "mount", background(n))
	done(t, "umount", n.CLI("umount", n.Mount))
	gone("dsmfs umount")

	done(t, "mount", background(n))
	done(t, "umount(8)", n.Run(limit, "umount", n.Mount))
	gone("umount(8)")

	done(t, "mount", background(n))
	pid, err := os.ReadFile(filepath.Join(n.State(), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	done(t, "kill", n.Run(limit, "kill", "-KILL", strings.TrimSpace(string(pid))))
	dead := func() bool { return n.Run(limit, "stat", "-f", n.Mount).Err != nil }
	if !harness.Eventually(limit, dead) {
		t.Fatal("the mount is not dead")
	}
	done(t, "umount", n.CLI("umount", n.Mount))
	gone("umount of a dead mount")

	refuses(t, background(n, "--join", "127.0.0.1:1"), "join")
	gone("a mount that failed")

	if err := os.Mkdir(n.Mount, 0o755); err != nil {
		t.Fatal(err)
	}
	done(t, "mount", background(n))
	done(t, "umount", n.CLI("umount", n.Mount))
	if _, err := os.Stat(n.Mount); err != nil {
		t.Errorf("a directory that was there before: %v", err)
	}
}

// TestRemount mounts right after an unmount, by dsmfs and by umount(8), which comes back before the node has
// left: alone and as one of two, with stores to publish.
func TestRemount(t *testing.T) {
	for _, others := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d others", others), func(t *testing.T) {
			c := nodes(t, others)
			n := c.Declare()
			var join []string
			if others > 0 {
				join = []string{"--join", c.Node(1).Address}
			}
			for i := range 5 {
				done(t, fmt.Sprint("mount ", i), background(n, join...))
				done(t, "store", n.Run(limit, "dd", "if=/dev/urandom", "of="+filepath.Join(n.Mount, "f"), "bs=1M", "count=20", "status=none"))
				if i%2 == 0 {
					var res harness.Result
					harness.Eventually(limit, func() bool { // a file that was just closed is open in the daemon's child for a moment
						res = n.Run(limit, "umount", n.Mount)
						return !strings.Contains(string(res.Stderr), "busy")
					})
					done(t, "umount(8)", res)
				} else {
					done(t, "umount", n.CLI("umount", n.Mount))
				}
			}
			done(t, "the last mount", background(n, join...))
			done(t, "umount", n.CLI("umount", n.Mount))
		})
	}
}

// TestUmountOfOneThatLeaves: after umount(8) dsmfs umount waits for the daemon and does not hurry it.
func TestUmountOfOneThatLeaves(t *testing.T) {
	c := cluster(t, harness.Options{})
	n := c.Declare()
	done(t, "mount", background(n))
	text, err := os.ReadFile(filepath.Join(n.State(), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatal(err)
	}
	if err := harness.Stop(pid); err != nil {
		t.Fatal(err)
	}
	done(t, "umount(8)", n.Run(limit, "umount", "-l", n.Mount))
	refuses(t, n.CLI("umount", n.Mount, "--timeout", "200ms"), "has not left")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	const noMount = 11 // it has left meanwhile
	if res := n.CLI("umount", n.Mount); res.Err != nil && res.Code != noMount {
		t.Errorf("umount: %v %s", res.Err, res.Stderr)
	}
	log, err := os.ReadFile(filepath.Join(n.State(), "log"))
	if err != nil || strings.Contains(string(log), "without order") || !strings.Contains(string(log), "msg=left") {
		t.Errorf("the log of the node, which is not to be hurried: %v\n%s", err, log)
	}
}

// TestLogStays: the log of a mount is there when the mount is not any more, and goes on with the next one.
func TestLogStays(t *testing.T) {
	c := cluster(t, harness.Options{})
	n := c.Declare()
	name := strings.NewReplacer("-", `\x2d`, "/", "-").Replace(strings.Trim(n.Mount, "/"))
	usual := filepath.Join("/var/log/dsmfs", name+".log")
	t.Cleanup(func() { _ = os.Remove(usual) })
	for _, x := range []struct {
		log   string
		flags []string
	}{{usual, nil}, {filepath.Join(n.State(), "log"), []string{"--state", n.State()}}} {
		for i := range 2 {
			done(t, "mount", n.CLI(append([]string{"mount", n.Mount, "--listen", n.Address, "--memory", "64M"}, x.flags...)...))
			if got := report[row](t, n, "status")["config"].(map[string]any)["log_file"]; got != x.log {
				t.Errorf("status shows the log %v, want %s", got, x.log)
			}
			state := filepath.Join("/run/dsmfs", name)
			if linked, err := os.ReadFile(filepath.Join(state, "log")); err != nil || !strings.Contains(string(linked), "msg=mounted") {
				t.Errorf("%s/log: %q, %v", state, linked, err)
			}
			done(t, "umount", n.CLI("umount", n.Mount))
			if _, err := os.Lstat(state); !os.IsNotExist(err) {
				t.Errorf("%s is left: %v", state, err)
			}
			text, err := os.ReadFile(x.log)
			if got := strings.Count(string(text), "msg=left"); err != nil || got != i+1 {
				t.Errorf("the log has %d ends after %d mounts, %v:\n%s", got, i+1, err, text)
			}
		}
	}
}

// TestKilledBeforeItHasLeft: umount says so.
func TestKilledBeforeItHasLeft(t *testing.T) {
	n := cluster(t, harness.Options{}).Declare()
	done(t, "mount", background(n))
	pid := n.Daemon()
	if err := harness.Stop(pid); err != nil {
		t.Fatal(err)
	}
	done(t, "umount(8)", n.Run(limit, "umount", "-l", n.Mount))
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := n.Command(ctx, harness.Binary(), "umount", n.Mount)
	var says strings.Builder
	cmd.Stderr = &says
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waits := func() bool {
		for _, text := range fdInfo(cmd.Process.Pid) {
			if strings.Contains(text, fmt.Sprintf("Pid:\t%d\n", pid)) {
				return true
			}
		}
		return false
	}
	if !harness.Eventually(limit, waits) {
		t.Error("umount does not wait for the daemon")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	const leave = 13
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != leave || !strings.Contains(says.String(), "was killed before it had left") {
		t.Errorf("umount of a node whose daemon is killed: %v: %s", err, says.String())
	}
}

// fdInfo returns what the kernel says of the descriptors of a process.
func fdInfo(pid int) (all []string) {
	dir := fmt.Sprintf("/proc/%d/fdinfo", pid)
	list, _ := os.ReadDir(dir)
	for _, fd := range list {
		if text, err := os.ReadFile(filepath.Join(dir, fd.Name())); err == nil {
			all = append(all, string(text))
		}
	}
	return all
}
