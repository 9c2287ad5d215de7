package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ownBase keeps the states of a test apart from those of the machine.
func ownBase(t *testing.T) string {
	t.Helper()
	if os.Geteuid() == 0 {
		return t.TempDir() // the base of root is fixed: tests name their directories
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	return t.TempDir()
}

func TestStateIsTakenOnce(t *testing.T) {
	dir := filepath.Join(ownBase(t), "state")
	point := filepath.Join(t.TempDir(), "mnt")
	s, err := openState(dir, point, false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = openState(dir, "/other", false)
	want := "state " + dir + " is in use by pid " + strconv.Itoa(os.Getpid()) + " (mounted on " + point + "): unmount it or give another --state"
	if codeOf(err) != exitState || err.Error() != want {
		t.Errorf("a second mount: %v, want %s", err, want)
	}
	if got := lockedBy(dir); got != os.Getpid() {
		t.Errorf("locked by %d", got)
	}
	if pid, at := daemonOf(point); pid != os.Getpid() {
		t.Errorf("the daemon of %s: %d in %s", point, pid, at)
	}
	if err := s.write(addrFile, "host:1"); err != nil {
		t.Error(err)
	}
	s.close()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the state is left: %v", err)
	}
	if _, err := os.Lstat(defaultState(point)); !os.IsNotExist(err) {
		t.Errorf("the link is left: %v", err)
	}
	if pid, _ := daemonOf(point); pid != 0 {
		t.Errorf("a daemon %d after the end", pid)
	}
}

func TestStaleStateIsReused(t *testing.T) {
	dir := ownBase(t)
	point := filepath.Join(t.TempDir(), "mnt")
	for name, text := range map[string]string{lockFile: "", pidFile: "1", pointFile: "/gone", failedFile: "x", "other": "keep"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := lockedBy(dir); got != 0 {
		t.Errorf("a dead daemon has the lock: %d", got)
	}
	s, err := openState(dir, point, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.path(failedFile)); !os.IsNotExist(err) {
		t.Errorf("the failure of the one before is left: %v", err)
	}
	s.close()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("left in a directory that was there before: %v, %v", left, err)
	}
}

// TestLockOfSomebodyElse: anybody may lock the file that a dead daemon has left. The process that has that one's number now is not it.
func TestLockOfSomebodyElse(t *testing.T) {
	dir := ownBase(t)
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	for name, text := range map[string]string{lockFile: "", pidFile: strconv.Itoa(other.Process.Pid), pointFile: "/mnt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got := lockedBy(dir); got != 0 {
		t.Errorf("process %d is taken for the daemon", got)
	}
}

// TestLookDoesNotStopAMount: who looks whether a daemon lives has the lock for a moment. One that starts then waits.
func TestLookDoesNotStopAMount(t *testing.T) {
	dir := ownBase(t)
	f, err := os.Create(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*lockPause, func() { _ = f.Close() })
	s, err := openState(dir, filepath.Join(t.TempDir(), "mnt"), false)
	if err != nil {
		t.Fatal(err)
	}
	s.close()
}

// TestOneHasTheState: of daemons that begin and end all the time, one has the state at a time, and all of its files.
func TestOneHasTheState(t *testing.T) {
	dir := filepath.Join(ownBase(t), "state")
	point := filepath.Join(t.TempDir(), "mnt")
	var has atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 150 {
				s, err := openState(dir, point, false)
				if err != nil {
					if !strings.Contains(err.Error(), "is in use") {
						t.Error(err)
					}
					continue
				}
				if n := has.Add(1); n != 1 {
					t.Errorf("%d have the state", n)
				}
				if !hasState(dir, point) || lockedBy(dir) != os.Getpid() {
					t.Error("the files of a daemon are gone")
				}
				has.Add(-1)
				s.close()
			}
		})
	}
	all.Wait()
}

func TestDefaultState(t *testing.T) {
	seen := map[string]string{}
	for _, point := range []string{"/", "/mnt/dsm", "/mnt-dsm", `/mnt\x2fdsm`, "/mnt/dsm/x", "/" + strings.Repeat("long/", 100), "/" + strings.Repeat("long/", 101)} {
		dir := defaultState(point)
		name := filepath.Base(dir)
		if filepath.Dir(dir) != stateBase() || len(name) > 255 || name == "." || name == ".." {
			t.Errorf("%s: %s", point, dir)
		}
		if other, taken := seen[dir]; taken {
			t.Errorf("%s and %s have the same state", point, other)
		}
		seen[dir] = point
	}
	if got := filepath.Base(defaultState("/mnt/dsm")); got != "mnt-dsm" {
		t.Errorf("/mnt/dsm: %s", got)
	}
}

func TestNoStateWithoutPermission(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(filepath.Join(file, "state"), "/mnt", false); codeOf(err) != exitState || !strings.Contains(err.Error(), "--state") {
		t.Errorf("below a file: %v", err)
	}
}

// TestStateFilesAreNeverEmpty reads a file of the state while it is written again and again.
func TestStateFilesAreNeverEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "serving")
	texts := []string{"pid 1\n", "pid 22222, a longer one\n"}
	if err := replaceFile(path, texts[0]); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			if err := replaceFile(path, texts[i%2]); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for {
		text, err := os.ReadFile(path)
		if err != nil || !slices.Contains(texts, string(text)) {
			t.Errorf("read %q, %v", text, err)
			<-done
			return
		}
		select {
		case <-done:
			if left, _ := filepath.Glob(path + "?*"); len(left) > 0 {
				t.Errorf("%v are left", left)
			}
			return
		default:
		}
	}
}
