package hold_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// hangs is a program that never serves.
const hangs = `package main

import "os"

func main() {
	r, _, _ := os.Pipe()
	_, _ = r.Read(make([]byte, 1))
}
`

// TestOneUpgradeAtATime: who asks for an upgrade while another is under way is told so.
func TestOneUpgradeAtATime(t *testing.T) {
	n := held(t)
	dir, err := os.Open(n.State())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if res := n.CLI("upgrade", n.Mount); res.Err == nil || !strings.Contains(res.Stderr, "another dsmfs upgrade") {
		t.Errorf("while another is under way: %v: %s%s", res.Err, res.Stdout, res.Stderr)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}

	// The one that asked has ended, and what it asked for is under way.
	text, other := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "hangs")
	if err := os.WriteFile(text, []byte(hangs), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", other, text).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(n.State(), "upgrade"), fmt.Appendf(nil, "%d %s", hold.Format, other), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n.PID(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	hanging := 0
	if !harness.Eventually(limit, func() bool { hanging = childOf(n.PID(), other); return hanging != 0 }) {
		t.Fatal("the other program is not started")
	}
	if res := n.CLI("upgrade", n.Mount); res.Err == nil || !strings.Contains(res.Stderr, "another upgrade is under way") {
		t.Errorf("while the other program begins: %v: %s%s", res.Err, res.Stdout, res.Stderr)
	}
	if err := syscall.Kill(hanging, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if res := n.Run(limit, "touch", filepath.Join(n.Mount, "f")); res.Err != nil {
		t.Errorf("the program before does not go on: %v: %s", res.Err, res.Stderr)
	}
	if res := n.CLI("upgrade", n.Mount); res.Err != nil {
		t.Errorf("after that: %v: %s", res.Err, res.Stderr)
	}
}

// childOf returns the child of a process that runs a program, 0 if there is none.
func childOf(pid int, program string) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0
	}
	for _, word := range strings.Fields(string(text)) {
		if to, err := os.Readlink("/proc/" + word + "/exe"); err == nil && to == program {
			child, _ := strconv.Atoi(word)
			return child
		}
	}
	return 0
}

// TestTakeoverWithoutRoom: the filesystem of the state directory is full when the daemon is killed.
func TestTakeoverWithoutRoom(t *testing.T) {
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	n := harness.New(t, harness.Options{Memory: "256M", Flags: []string{"--hold"}}).Declare()
	if err := os.Mkdir(n.State(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", n.State(), "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.State(), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n.Start()
	serves := func() bool {
		text, err := os.ReadFile(filepath.Join(n.State(), "serving"))
		return err == nil && strings.HasPrefix(string(text), fmt.Sprintf("pid %d,", n.Daemon()))
	}
	if !harness.Eventually(limit, serves) { // the last of its files
		t.Fatal("it is not said that the first daemon serves")
	}
	f, err := os.Create(filepath.Join(n.State(), "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 4096); err == nil; {
		_, err = f.Write(b)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.State(), "more"), []byte("x"), 0o600); err == nil {
		t.Fatal("there is room")
	}
	last := killDaemon(t, n, 0, 0, syscall.SIGKILL)
	if !harness.Eventually(limit, func() bool { return n.Daemon() != last }) {
		t.Fatal("the state does not name another daemon")
	}
	if res := n.Run(limit, "touch", filepath.Join(n.Mount, "f")); res.Err != nil {
		t.Errorf("nothing goes on: %v: %s", res.Err, res.Stderr)
	}
	if !harness.Eventually(limit, serves) {
		t.Errorf("it is not said that %d serves", n.Daemon())
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	n.Stop()
}

// TestUpgradeIsRefused where no daemon could follow: of a node that alone has bytes of a file of more than 64 GiB, and of the last one of a cluster. The mounts go on.
func TestUpgradeIsRefused(t *testing.T) {
	nodes := largeCluster(t).Nodes()
	c := nodes[1].Client()
	writes := func(name string, rules ...string) {
		t.Helper()
		path := filepath.Join(nodes[1].Mount, name)
		words, err := c.Do("open %s rw,creat", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Do("close %s", words[0]); err != nil {
			t.Fatal(err)
		}
		for _, rule := range rules {
			if res := nodes[1].CLI("set", path, rule); res.Err != nil {
				t.Fatalf("set: %v: %s", res.Err, res.Stderr)
			}
		}
		if words, err = c.Do("open %s rw", path); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Do("pwrite %s 0 616263", words[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Do("close %s", words[0]); err != nil {
			t.Fatal(err)
		}
	}
	figures := func(n *harness.Node) string {
		return n.Run(limit, "cat", filepath.Join(n.Mount, ".dsm/cluster")).Stdout
	}
	goesOn := func(n *harness.Node) {
		t.Helper()
		if res := n.Run(limit, "cat", filepath.Join(n.Mount, "f")); res.Stdout != "abc" {
			t.Errorf("%s reads %q, %v: %s", n.Name, res.Stdout, res.Err, res.Stderr)
		}
	}
	writes("f", "replicas=1")
	for i := range 64 { // some of them live at the first
		writes(fmt.Sprint("demand", i), "replicas=1", "residency=demand")
	}
	if !strings.Contains(figures(nodes[0]), "ends_with_daemon 0\n") {
		t.Errorf("files on demand end with the daemon:\n%s", figures(nodes[0]))
	}
	makeLarge(t, nodes[1], "large")
	if strings.Contains(figures(nodes[0]), "ends_with_daemon 0\n") {
		t.Errorf("nothing ends with the daemon:\n%s", figures(nodes[0]))
	}
	if res := nodes[0].CLI("upgrade", nodes[0].Mount); res.Err == nil || !strings.Contains(res.Stderr, "end with its daemon") {
		t.Errorf("the node that has a part of a large file: %v: %s%s", res.Err, res.Stdout, res.Stderr)
	}
	goesOn(nodes[0])
	if res := nodes[1].Run(limit, "sh", "-c", "rm "+filepath.Join(nodes[1].Mount, "large")); res.Err != nil {
		t.Fatal(res.Err)
	}
	if !harness.Eventually(limit, func() bool { return strings.Contains(figures(nodes[0]), "ends_with_daemon 0\n") }) {
		t.Fatalf("something still ends with the daemon:\n%s", figures(nodes[0]))
	}
	if res := nodes[0].CLI("upgrade", nodes[0].Mount); res.Err != nil {
		t.Errorf("when these are gone: %v: %s", res.Err, res.Stderr)
	}
	goesOn(nodes[0])
	last := nodes[0].Daemon()
	for _, o := range nodes[1:] {
		o.Stop()
	}
	if !harness.Eventually(limit, func() bool { return strings.Contains(figures(nodes[0]), "members 1\n") }) {
		t.Fatalf("the other nodes do not leave:\n%s", figures(nodes[0]))
	}
	if res := nodes[0].CLI("upgrade", nodes[0].Mount); res.Err == nil || !strings.Contains(res.Stderr, "other nodes of its cluster have gone") {
		t.Errorf("the last node: %v: %s%s", res.Err, res.Stdout, res.Stderr)
	}
	goesOn(nodes[0])
	if pid := nodes[0].Daemon(); pid != last {
		t.Errorf("daemon %d, was %d", pid, last)
	}
}
