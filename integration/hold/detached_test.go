package hold_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// TestUpgradeDetached: as users do it, with a holder in the background. A program that cannot be started at all leaves all as it was.
func TestUpgradeDetached(t *testing.T) {
	n := held(t) // runs the programs
	dir := t.TempDir()
	point, state := filepath.Join(dir, "m"), filepath.Join(dir, "s")
	run := func(want string, args ...string) {
		t.Helper()
		if res := n.CLI(args...); res.Err != nil || !strings.Contains(res.Stdout+res.Stderr, want) {
			t.Fatalf("%v: %v: %s%s", args, res.Err, res.Stdout, res.Stderr)
		}
	}
	run("", "mount", point, "--hold", "--listen", "127.0.0.1:0", "--name", "detached", "--insecure", "--memory", "64M", "--state", state, "--log-file", filepath.Join(dir, "log"))
	defer run("", "umount", point)
	sh := func(text string) string {
		t.Helper()
		res := n.Run(limit, "sh", "-c", "cd "+point+" && "+text)
		if res.Err != nil {
			t.Fatalf("%s: %v: %s", text, res.Err, res.Stderr)
		}
		return res.Stdout
	}
	sh("echo kept > f")
	run("is served by", "upgrade", point)
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "upgrade"), fmt.Appendf(nil, "%d %s", hold.Format, plain), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(state, "holder"))
	if err != nil {
		t.Fatal(err)
	}
	if holder, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || syscall.Kill(holder, syscall.SIGUSR1) != nil {
		t.Fatalf("no holder: %q", text)
	}
	answer := filepath.Join(state, "upgraded")
	if !harness.Eventually(limit, func() bool { text, _ := os.ReadFile(answer); return strings.Contains(string(text), "goes on") }) {
		t.Error("it is not said that the program cannot be started")
	}
	run("is served by", "upgrade", point)
	if text := sh("cat f"); text != "kept\n" {
		t.Errorf("the file has %q", text)
	}
}
