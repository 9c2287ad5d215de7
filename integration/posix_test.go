package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/posixtest"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// posixMount names the mount that TestPosixChild runs on.
const posixMount = "DSMFS_TEST_POSIX_MOUNT"

// unsupported are the tests of what dsmfs does not have.
var unsupported = map[string]string{
	// go-fuse leaves it out of its own run on a local filesystem too.
	"FcntlFlockLocksFile": "wants a POSIX lock to conflict with one of the same process",
}

// TestPosix runs go-fuse's conformance tests in a child process on one node of three.
func TestPosix(t *testing.T) {
	long(t)
	posix(t, nodes(t, 3).Node(2))
}

func posix(t *testing.T, n *harness.Node) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const patience = 3 * time.Minute
	res := n.Run(patience, "env", posixMount+"="+n.Mount, self, "-test.run=^TestPosixChild$", "-test.v", "-test.timeout=150s")
	verdicts := regexp.MustCompile(`(?m)^ +--- (PASS|FAIL|SKIP): TestPosixChild/(\w+)`).FindAllStringSubmatch(res.Stdout, -1)
	passed := 0
	for _, v := range verdicts {
		if v[1] == "PASS" {
			passed++
		}
	}
	t.Logf("%d of %d passed", passed, len(posixtest.All))
	if res.Err != nil || passed < len(posixtest.All)-len(unsupported)-3 {
		t.Errorf("%v\n%s\n%s", res.Err, res.Stdout, res.Stderr)
	}
}

// TestPosixChild is the child of TestPosix.
func TestPosixChild(t *testing.T) {
	mount := os.Getenv(posixMount)
	if mount == "" {
		t.Skip("run by TestPosix")
	}
	names := make([]string, 0, len(posixtest.All))
	for name := range posixtest.All {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if why := unsupported[name]; why != "" {
				t.Skip(why)
			}
			dir := filepath.Join(mount, strings.ToLower(name))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			posixtest.All[name](t, dir)
		})
	}
}

// TestShellTools does what people do first with a new filesystem.
func TestShellTools(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1), c.Node(2)
	script := func(n *harness.Node, text string) string {
		t.Helper()
		res := n.Run(limit, "sh", "-ec", "cd "+n.Mount+"\n"+text)
		if res.Err != nil {
			t.Fatalf("%s: %s: %v\n%s", n.Name, text, res.Err, res.Stderr)
		}
		return strings.TrimSpace(res.Stdout)
	}
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip(err)
	}
	script(a, `mkdir -p tree/deep; for i in 1 2 3 4 5; do seq $i 2000 > tree/deep/$i; done; ln -s deep/1 tree/link; cp -a tree copy`)
	sums := "cd copy && find . -type f | sort | xargs sha256sum && readlink link"
	if at, bt := script(a, sums), script(b, sums); at != bt || at == "" {
		t.Errorf("checksums differ:\n%s\n%s", at, bt)
	}
	script(b, `tar cf all.tar copy; mkdir out; tar xf all.tar -C out; rm -r tree; mv out/copy tree; diff -r copy tree`)
	script(a, `diff -r copy tree; sed -i s/1999/changed/ tree/deep/5; tail -2 tree/deep/5 > t`)
	if got := script(b, "cat t; rm -r copy tree out all.tar t; ls -A"); got != "changed\n2000" {
		t.Errorf("after sed -i and rm -r: %q", got)
	}
}
