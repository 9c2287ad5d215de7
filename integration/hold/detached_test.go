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

// TestTakeoverElsewhere: the daemons that follow run in another directory than the first, and what that one has joined with is gone.
func TestTakeoverElsewhere(t *testing.T) {
	first := held(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(first.Token()), 0o600); err != nil {
		t.Fatal(err)
	}
	sh := func(format string, args ...any) string {
		t.Helper()
		res := first.Run(limit, "sh", "-c", "cd "+dir+" && "+fmt.Sprintf(format, args...))
		if res.Err != nil {
			t.Fatalf("%v: %s", res.Err, res.Stderr)
		}
		return res.Stdout
	}
	dsmfs := harness.Binary()
	sh("%s mount m --hold --join %s --token @token --listen 127.0.0.1:0 --name second --state s --log-file log", dsmfs, first.Address)
	defer first.CLI("umount", filepath.Join(dir, "m"))
	sh("rm token && echo kept > m/f")
	if !harness.Eventually(limit, func() bool { return strings.Contains(sh("cat m/.dsm/cluster"), "uncovered_anywhere 0\n") }) {
		t.Fatal("not all of it has backups")
	}
	before := sh("cat s/pid")
	sh("kill -9 %s", strings.TrimSpace(before))
	if got := sh("cat m/f"); got != "kept\n" {
		t.Errorf("the file has %q", got)
	}
	if after := sh("cat s/pid"); after == before {
		t.Error("the state directory is another one")
	}
	if got := sh("cat log"); !strings.Contains(got, "daemons=2") {
		t.Errorf("the log is another one: %s", got)
	}
	sh("%s upgrade m", dsmfs)
	if got := sh("cat m/f"); got != "kept\n" {
		t.Errorf("after an upgrade the file has %q", got)
	}
	sh("%s umount m", dsmfs)
}
