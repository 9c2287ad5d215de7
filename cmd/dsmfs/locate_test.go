package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dsmfs/dsmfs/internal/mountinfo"
)

// TestLocate: below the mount nothing is looked at, so nothing needs to be there.
func TestLocate(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mnt := filepath.Join(dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": "mnt/sub", "abs": mnt, "loop": "loop", "up": "mnt/../other", "back": "mnt/sub/../x"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	all := []mountinfo.Mount{{Point: "/", Type: "ext4"}, {Point: mnt, Type: mountType}, {Point: filepath.Join(mnt, "tmp"), Type: "tmpfs"}}
	t.Chdir(dir)
	for path, want := range map[string]string{
		"mnt":            ".",
		"mnt/":           ".",
		mnt:              ".",
		"mnt/a/b":        "a/b",
		"mnt/a/../b":     "b",
		"link":           "sub",
		"link/x":         "sub/x",
		"back":           "x",
		"abs/y":          "y",
		"./mnt/../mnt/z": "z",
	} {
		if m, inside, err := locate(path, all); err != nil || m.Point != mnt || inside != want {
			t.Errorf("%s: %q in %s, %v; want %q", path, inside, m.Point, err, want)
		}
	}
	for _, path := range []string{".", "/", "loop", "up", "none", "mnt/../none", "/proc"} {
		if m, inside, err := locate(path, all); codeOf(err) != exitNoMount {
			t.Errorf("%s: %q in %s, %v", path, inside, m.Point, err)
		}
	}
}
