package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDoctor: what is not well says what to do about it.
func TestDoctor(t *testing.T) {
	helper := filepath.Join(t.TempDir(), "mount.dsmfs")
	old := script(t, "dsmfs", "#!/bin/sh\necho dsmfs 0.0.1 linux/amd64 go1\n")
	if err := os.Symlink(old, helper); err != nil {
		t.Fatal(err)
	}
	same := filepath.Join(t.TempDir(), "mount.dsmfs")
	if err := os.Symlink(script(t, "dsmfs", "#!/bin/sh\necho dsmfs "+programVersion()+" linux/amd64 go1\n"), same); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		f    finding
		ok   bool
		want string
	}{
		{kernelFinding("6.18.44-x"), true, "6.18.44"},
		{kernelFinding("6.1.0"), true, "6.1.0"},
		{kernelFinding("5.15.0"), false, "Upgrade to 6.1"},
		{kernelFinding("unknown"), false, "Upgrade"},
		{helperFinding("/no/such/mount.dsmfs"), false, "make install"},
		{helperFinding(helper), false, "0.0.1"},
		{helperFinding(same), true, same},
		{helperFinding(old), true, old},
		{descriptorFinding(1024), false, "ulimit -n 65536"},
		{descriptorFinding(1 << 20), true, "1048576"},
		{descriptorFinding(unix.RLIM_INFINITY), true, "unlimited"},
		{memlockFinding(8<<20, false), false, "8192 kB"},
		{memlockFinding(8<<20, true), true, "pin"},
		{memlockFinding(unix.RLIM_INFINITY, false), true, "pin"},
		{memoryFinding(memoryBound{bytes: 3 << 30, by: "this machine has"}), true, "this machine has 3.0 GiB; --memory is "},
	} {
		if c.f.ok != c.ok || !strings.Contains(c.f.text, c.want) || c.f.needs {
			t.Errorf("%+v; want ok=%v and %q", c.f, c.ok, c.want)
		}
	}
	code, out, errOut := cli("doctor")
	if code != exitOK && code != exitMachine {
		t.Errorf("%d, %s", code, errOut)
	}
	for _, f := range append(examine(), advise()...) {
		if !strings.Contains(out, f.what) {
			t.Errorf("doctor does not print %s", f.what)
		}
	}
}
