package lint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVet also covers what only builds with the tag invariants.
func TestVet(t *testing.T) {
	t.Parallel()
	for _, tags := range []string{"", "invariants"} {
		if _, err := command("go", "vet", "-tags", tags, "./..."); err != nil {
			t.Error(err)
		}
	}
}

func TestStaticcheck(t *testing.T) {
	t.Parallel()
	for _, tags := range []string{"", "invariants"} {
		if _, err := command("go", "tool", "staticcheck", "-tags", tags, "./..."); err != nil {
			t.Error(err)
		}
	}
}

// TestModules fails when go.mod is not what go mod tidy makes of it.
func TestModules(t *testing.T) {
	t.Parallel()
	if _, err := command("go", "mod", "tidy", "-diff"); err != nil {
		t.Error(err)
	}
}

// TestPython checks the Python files with ruff, and those that are not examples to
// strict mypy. make puts the two into .venv.
func TestPython(t *testing.T) {
	t.Parallel()
	var typed []string
	python := filesOf(t, ".py")
	for _, f := range python {
		if !strings.HasPrefix(f.path, "examples/") {
			typed = append(typed, f.path)
		}
	}
	bin, err := filepath.Abs(filepath.Join(root, ".venv", "bin"))
	if err != nil {
		t.Fatal(err)
	}
	run := func(tool string, args ...string) {
		path := filepath.Join(bin, tool)
		if _, err := os.Stat(path); err != nil {
			t.Skipf("no %s in .venv: make deps puts it there", tool)
		}
		if _, err := command(path, args...); err != nil {
			t.Error(err)
		}
	}
	if len(python) > 0 {
		run("ruff", "check", "--quiet", ".")
		run("ruff", "format", "--check", "--quiet", ".")
	}
	if len(typed) > 0 {
		run("mypy", typed...)
	}
}
