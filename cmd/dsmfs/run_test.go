package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// script writes an executable file.
func script(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnshimmed(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(self)+":"+os.Getenv("PATH"))
	goName := filepath.Base(self)
	for _, c := range []struct{ path, want string }{
		{self, "is a Go program"},
		{script(t, "go", "#!"+self+" x\n"), self + " is a Go program"},
		{script(t, "env", "#!/usr/bin/env -S A=b "+goName+"\n"), self + " is a Go program"},
		{script(t, "twice", "#!"+script(t, "inner", "#! "+self)+"\n"), self + " is a Go program"},
		{script(t, "sh", "#!/bin/sh\n"), ""},
		{script(t, "nothing", ""), ""},
		{script(t, "empty", "#!\n"), ""},
		{script(t, "gone", "#!/no/such/interpreter\n"), ""},
		{"/bin/sh", ""},
	} {
		if got, breaks := unshimmed(c.path); !strings.Contains(got, c.want) || (got == "") != (c.want == "") || breaks || strings.Contains(got, "\n") {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}
	loop := filepath.Join(t.TempDir(), "loop")
	if err := os.WriteFile(loop, []byte("#!"+loop+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, _ := unshimmed(loop); got != "" {
		t.Errorf("a script that is its own interpreter: %q", got)
	}
}

// TestUnshimmedBinaries looks at programs that the C compiler makes.
func TestUnshimmedBinaries(t *testing.T) {
	source := script(t, "a.c", "int main(void) { return 0; }\n")
	build := func(flags ...string) string {
		t.Helper()
		if _, err := exec.LookPath("cc"); err != nil {
			t.Skipf("no C compiler: %v", err)
		}
		out := filepath.Join(t.TempDir(), "a")
		if text, err := exec.Command("cc", append(flags, "-o", out, source)...).CombinedOutput(); err != nil {
			t.Skipf("cc %v: %v\n%s", flags, err, text)
		}
		return out
	}
	if got, _ := unshimmed(build()); got != "" {
		t.Errorf("a dynamic program: %q", got)
	}
	if got, breaks := unshimmed(build("-static")); !strings.Contains(got, "statically linked") || breaks {
		t.Errorf("a static program: %q, %v", got, breaks)
	}
	if got, breaks := unshimmed(build("-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")); !strings.Contains(got, "musl") || !breaks {
		t.Errorf("a program of musl: %q, %v", got, breaks)
	}
	setuid := build()
	if err := os.Chmod(setuid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if got, _ := unshimmed(setuid); got != "" {
		t.Errorf("setuid to the user that runs it: %q", got)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	if err := os.Chown(setuid, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(setuid, 0o755|os.ModeSetuid); err != nil { // chown has cleared it
		t.Fatal(err)
	}
	if got, _ := unshimmed(setuid); !strings.Contains(got, "is setuid: the loader ignores") {
		t.Errorf("setuid: %q", got)
	}
}

func TestRunEnviron(t *testing.T) {
	for _, c := range []struct {
		env     []string
		preload string
		want    []string
	}{
		{[]string{"A=1"}, "/l.so", []string{"A=1", "LD_PRELOAD=/l.so"}},
		{[]string{"LD_PRELOAD=/x.so /y.so", "A=1"}, "/l.so", []string{"A=1", "LD_PRELOAD=/x.so:/y.so:/l.so"}},
		{[]string{"LD_PRELOAD=/l.so:/x.so"}, "/l.so", []string{"LD_PRELOAD=/l.so:/x.so"}},
		{[]string{"LD_PRELOAD=", "A=1"}, "", []string{"A=1"}},
		{[]string{"LD_PRELOAD=/x.so"}, "", []string{"LD_PRELOAD=/x.so"}},
	} {
		if got := runEnviron(c.env, c.preload, false, false); !slices.Equal(got, c.want) {
			t.Errorf("%v and %q: %v, want %v", c.env, c.preload, got, c.want)
		}
	}
	if got := runEnviron(nil, "", true, true); !slices.Equal(got, []string{"DSMFS_VERBOSE=1", "DSMFS_QUIET=1"}) {
		t.Errorf("flags: %v", got)
	}
}

func TestShimPath(t *testing.T) {
	first, second, open := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b"), t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	one, err := shimPath([]byte("one"), []string{first})
	if err != nil || filepath.Dir(one) != first {
		t.Fatalf("%s, %v", one, err)
	}
	if info, err := os.Stat(one); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v: other users must be able to load it", info, err)
	}
	if again, err := shimPath([]byte("one"), []string{first}); err != nil || again != one {
		t.Errorf("again: %s, %v", again, err)
	}
	two, err := shimPath([]byte("two"), []string{first})
	if err != nil || two == one {
		t.Errorf("another version: %s, %v", two, err)
	}
	if err := os.WriteFile(one, []byte("damaged"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := shimPath([]byte("one"), []string{first}); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(one); err != nil || string(text) != "one" {
		t.Errorf("%q, %v: want what it was built with", text, err)
	}
	bad := []string{open, filepath.Join(t.TempDir(), "a b"), "relative", "/proc/nothing/here"}
	if path, err := shimPath([]byte("one"), append(slices.Clone(bad), second)); err != nil || filepath.Dir(path) != second {
		t.Errorf("%s, %v: want it in the first place that is fit", path, err)
	}
	_, err = shimPath([]byte("one"), bad)
	for _, want := range []string{open, "others could change", bad[1], "relative", "/proc/nothing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no place: %v, want a word about %s", err, want)
		}
	}
	if entries, err := os.ReadDir(first); err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestRun runs the verb as a process, for it replaces the process.
func TestRun(t *testing.T) {
	library, err := embeddedShim()
	if err != nil {
		t.Fatal(err)
	}
	if library == nil {
		if code, _, errOut := cli("run", "--", "true"); code != exitOther || !strings.Contains(errOut, "built without the shim: run make build") {
			t.Errorf("code %d, %q", code, errOut)
		}
		t.Skip("this test binary was built without the shim: run make build before")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args      []string
		code      int
		out, text string
	}{
		{[]string{"--", "sh", "-c", "echo $1; exit 7", "sh", "-v"}, 7, "-v\n", ""},
		{[]string{"printenv", "LD_PRELOAD"}, 0, "/libdsmfs-", ""},
		{[]string{"sh", "-c", "sh -c 'grep -o /libdsmfs- /proc/self/maps | head -n 1'"}, 0, "/libdsmfs-\n", ""},
		{[]string{"no-such-program"}, 127, "", "no-such-program"},
		{[]string{"/etc/passwd"}, 126, "", "/etc/passwd"},
		{[]string{}, 2, "", "usage: dsmfs run"},
		{[]string{"--no-such-flag", "true"}, 2, "", "--no-such-flag"},
		{[]string{self, "version"}, 0, "dsmfs ", "is a Go program, which makes its system calls itself: it stays on the page-cache plane\n"},
		{[]string{"-q", self, "version"}, 0, "dsmfs ", ""},
	} {
		cmd := exec.Command(self, append([]string{"run"}, c.args...)...)
		cmd.Env = append(os.Environ(), actVariable+"=dsmfs")
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		err := cmd.Run()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errOut.String(), c.text) || c.text == "" && errOut.Len() > 0 {
			t.Errorf("run %v: code %d, %q and %q; want %d, %q and %q", c.args, got, out.String(), errOut.String(), c.code, c.out, c.text)
		}
	}
}
