package hold_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// TestUpgrade has a program of another version take over, then one that cannot. A program with an open file sees nothing of it.
func TestUpgrade(t *testing.T) {
	t.Run("alone", func(t *testing.T) { upgrades(t, held(t), func() {}) })
	t.Run("member", func(t *testing.T) {
		c := heldCluster(t, 3)
		upgrades(t, c.Node(3), func() { covered(t, c.Node(1)) })
	})
}

// upgrades is TestUpgrade for a node, which can be upgraded when ready returns.
func upgrades(t *testing.T, n *harness.Node, ready func()) {
	const version = "99.1.2-test"
	other := filepath.Join(t.TempDir(), "dsmfs")
	if out, err := exec.Command("go", "build", "-ldflags", "-X main.version="+version, "-o", other, "github.com/dsmfs/dsmfs/cmd/dsmfs").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	c := n.Client()
	words, err := c.Do("open %s rw,creat", filepath.Join(n.Mount, "f"))
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	write := func() {
		t.Helper()
		if _, err := c.Do("pwrite %s %d 6162", words[0], 2*written); err != nil {
			t.Fatalf("write: %v", err)
		}
		written++
		text, err := c.Do("pread %s 0 %d", words[0], 2*written)
		if err != nil || text[0] != strings.Repeat("6162", written) {
			t.Fatalf("read %v, %v after %d writes", text, err, written)
		}
	}
	write()
	ready()
	res := n.Run(limit, other, "upgrade", n.Mount)
	if res.Err != nil || !strings.Contains(res.Stdout, version) {
		t.Fatalf("upgrade: %v: %s%s", res.Err, res.Stdout, res.Stderr)
	}
	write()
	if res := n.Run(limit, other, "upgrade", n.Mount); res.Err == nil {
		write()
	} else if !strings.Contains(res.Stderr, "no other copy yet") {
		t.Errorf("another one at once: %v: %s%s", res.Err, res.Stdout, res.Stderr)
	}

	ready()
	last := n.Daemon()
	answer := filepath.Join(n.State(), "upgraded")
	if err := os.WriteFile(filepath.Join(n.State(), "upgrade"), fmt.Appendf(nil, "%d /bin/false", hold.Format), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n.PID(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if !harness.Eventually(limit, func() bool { text, _ := os.ReadFile(answer); return strings.Contains(string(text), "before it served") }) {
		t.Error("it is not said that the program cannot serve")
	}
	if !harness.Eventually(limit, func() bool { pid := n.Daemon(); return pid != 0 && pid != last }) {
		t.Error("no daemon goes on")
	}
	write()
	serving, err := os.ReadFile(filepath.Join(n.State(), "serving"))
	if err != nil || !strings.Contains(string(serving), version) {
		t.Errorf("%q serves, %v; want the program before", serving, err)
	}
	if res := n.Run(limit, other, "upgrade", "/"); res.Err == nil {
		t.Error("/ was upgraded")
	}
}
