package fs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

const posixDirEnv = "DSMFS_FS_TEST_POSIX_DIR"

// posixExceptions are the tests of posixtest that do not pass, and why.
var posixExceptions = map[string]string{
	// go-fuse leaves it out of its own run on a local filesystem too.
	"FcntlFlockLocksFile": "wants a POSIX lock to conflict with one of the same process",
}

// posixSkipped are those that find out by themselves that they do not apply.
var posixSkipped = map[string]string{}

// posixChance are those that skip themselves by chance.
var posixChance = map[string]string{
	"RenameOpenDir": "an open directory that is removed is remembered for a moment only, and for the thread that looked it up",
}

// TestPosix runs go-fuse's conformance tests against a mount, in a process that
// is not the daemon: TestPosixClient, run by itself.
func TestPosix(t *testing.T) {
	f := mountTest(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestPosixClient$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), verbEnv+"=posix", posixDirEnv+"="+f.mnt)
	cmd.Dir = "/"
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(11*time.Minute, func() { cmd.Process.Kill() })
	cmd.Wait()
	kill.Stop()

	result := make(map[string]string)
	for _, m := range regexp.MustCompile(`--- (PASS|FAIL|SKIP): TestPosixClient/(\w+)`).FindAllStringSubmatch(out.String(), -1) {
		result[m[2]] = m[1]
	}
	bad := false
	for name := range posixtest.All {
		want := "PASS"
		if _, ok := posixExceptions[name]; ok {
			want = "FAIL"
		} else if _, ok := posixSkipped[name]; ok {
			want = "SKIP"
		}
		if _, ok := posixChance[name]; ok && result[name] == "SKIP" {
			continue
		}
		if result[name] != want {
			t.Errorf("%s: %q, want %s", name, result[name], want)
			bad = true
		}
	}
	if bad {
		t.Log(strings.TrimSpace(out.String()))
	}
}

// TestPosixClient is the client process of TestPosix.
func TestPosixClient(t *testing.T) {
	dir := os.Getenv(posixDirEnv)
	if dir == "" {
		t.Skip("run by TestPosix")
	}
	for name, test := range posixtest.All {
		t.Run(name, func(t *testing.T) {
			d := filepath.Join(dir, name)
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
			test(t, d)
		})
	}
}
