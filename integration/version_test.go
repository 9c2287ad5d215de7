package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestVersionOfATree runs scripts/version.sh in trees with and without history.
func TestVersionOfATree(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join(root, "scripts", "version.sh"))
	if err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(tree, "scripts", "version.sh")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, script, 0o755); err != nil {
		t.Fatal(err)
	}
	git := func(dir string, args ...string) {
		t.Helper()
		args = append([]string{"-C", dir, "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgSign=false", "-c", "tag.gpgSign=false"}, args...)
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	want := func(what, pattern string) {
		t.Helper()
		out, err := exec.Command(path).Output()
		if text := strings.TrimSpace(string(out)); err != nil || !regexp.MustCompile("^"+pattern+"$").MatchString(text) {
			t.Errorf("%s: %q, %v; want %s", what, text, err, pattern)
		}
	}
	want("no history", `0\.0\.0\+unknown`)
	git(filepath.Dir(tree), "init", "-q")
	git(filepath.Dir(tree), "commit", "-q", "--allow-empty", "-m", "not ours")
	want("within another repository", `0\.0\.0\+unknown`)
	git(tree, "init", "-q")
	git(tree, "add", ".")
	git(tree, "commit", "-q", "-m", "first")
	want("no tag", `0\.0\.0\+g[0-9a-f]{12}`)
	git(tree, "tag", "-a", "-m", "x", "v1.2.3")
	want("at a tag", `1\.2\.3`)
	git(tree, "commit", "-q", "--allow-empty", "-m", "second")
	want("after a tag", `1\.2\.3\+1\.g[0-9a-f]{12}`)
	if err := os.WriteFile(path, append(script, '\n'), 0o755); err != nil {
		t.Fatal(err)
	}
	want("changed", `1\.2\.3\+1\.g[0-9a-f]{12}\.dirty`)
	git(tree, "tag", "-a", "-m", "x", "v1.3.0")
	want("changed at a tag", `1\.3\.0\+dirty`)
	if err := os.WriteFile(filepath.Join(tree, "VERSION"), []byte("4.5.6\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	want("told", `4\.5\.6`)
}
