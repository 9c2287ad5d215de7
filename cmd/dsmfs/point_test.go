package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestMadePointGoesWithTheState: what was made for a mount is removed with it, also if the daemon that made it has died.
func TestMadePointGoesWithTheState(t *testing.T) {
	for _, c := range []struct {
		what             string
		made, bare, died bool
		put              string // into the directory
		gone             bool
	}{
		{what: "made", made: true, gone: true},
		{what: "not made"},
		{what: "made by one that died", made: true, died: true, gone: true},
		{what: "something is in it", made: true, put: "f"},
		{what: "no mount", bare: true},
	} {
		dir := filepath.Join(ownBase(t), "state")
		point := filepath.Join(t.TempDir(), "mnt")
		if err := os.Mkdir(point, 0o755); err != nil {
			t.Fatal(err)
		}
		s, err := openState(dir, point, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.note(c.bare, c.made); err != nil {
			t.Fatal(err)
		}
		if c.died {
			_ = s.lock.Close() // as the kernel does
			if s, err = openState(dir, point, false); err != nil {
				t.Fatal(err)
			}
			if err := s.note(false, false); err != nil {
				t.Fatal(err)
			}
		}
		if c.put != "" {
			if err := os.WriteFile(filepath.Join(point, c.put), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s.close()
		if _, err := os.Stat(point); os.IsNotExist(err) != c.gone {
			t.Errorf("%s: afterwards %v", c.what, err)
		}
	}
}

// TestDeadMadePoint: who takes a dead mount away removes what was made for it.
func TestDeadMadePoint(t *testing.T) {
	dir := filepath.Join(ownBase(t), "state")
	point := filepath.Join(t.TempDir(), "mnt")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := openState(dir, point, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.note(false, true); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{addrFile, attachFile, logFile} {
		if err := s.write(name, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := forgetMount(point); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(point); err != nil {
		t.Errorf("the mount point of a living daemon: %v", err)
	}
	_ = s.lock.Close() // as the kernel does
	if err := forgetMount(point); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(point); !os.IsNotExist(err) {
		t.Errorf("the mount point of a dead one: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != logFile {
		t.Errorf("in the state of a dead one: %v, %v", left, err)
	}
	if _, err := os.Lstat(defaultState(point)); !os.IsNotExist(err) {
		t.Errorf("the link to the state of a dead one: %v", err)
	}
}

// TestPlaceMakesNoTree: a directory is made, one above it is not.
func TestPlaceMakesNoTree(t *testing.T) {
	if checkMachine() != nil {
		t.Skip("nothing can be mounted here")
	}
	stop := make(chan os.Signal, 1)
	dir := t.TempDir()
	c := mountConfig{point: filepath.Join(dir, "a", "b")}
	if _, _, err := c.place(stop); codeOf(err) != exitPoint || !strings.Contains(err.Error(), c.point) {
		t.Errorf("below nothing: %v", err)
	}
	c.point = filepath.Join(dir, "a")
	if at, made, err := c.place(stop); err != nil || !made || at != c.point {
		t.Errorf("below a directory: %s, %v, %v", at, made, err)
	}
	if _, made, err := c.place(stop); err != nil || made {
		t.Errorf("where it is: %v, %v", made, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.point = filepath.Join(dir, "f")
	if _, _, err := c.place(stop); codeOf(err) != exitPoint {
		t.Errorf("on a file: %v", err)
	}
}

// TestMountWaitsForOneThatLeaves: the state says that a daemon had the mount, and the mount is gone.
func TestMountWaitsForOneThatLeaves(t *testing.T) {
	point := filepath.Join(t.TempDir(), "mnt")
	s, err := openState(filepath.Join(ownBase(t), "state"), point, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	stop := make(chan os.Signal, 1)
	if err := awaitLeaving(point, stop); err != nil { // it is starting, which openState refuses
		t.Errorf("starting: %v", err)
	}
	if err := s.write(addrFile, "host:1"); err != nil {
		t.Fatal(err)
	}
	stop <- syscall.SIGTERM
	if err := awaitLeaving(point, stop); err == nil || !strings.Contains(err.Error(), "still leaving") {
		t.Errorf("leaving: %v", err)
	}
	if err := s.note(true, false); err != nil {
		t.Fatal(err)
	}
	if err := awaitLeaving(point, stop); err != nil {
		t.Errorf("without a mount: %v", err)
	}
}
