package hold_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// joined starts a held node, and another one that joins it.
func joined(t *testing.T) (first, second *harness.Node) {
	t.Helper()
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	c := harness.New(t, harness.Options{Memory: "256M", Flags: []string{"--fault-timeout", "5s"}})
	first = c.Declare()
	first.Flags = []string{"--hold"}
	first.Start()
	return first, c.Add()
}

// TestHeldNodeServesOthers: a node with --hold that others have joined is the home of files of every kind, and opens them.
func TestHeldNodeServesOthers(t *testing.T) {
	first, second := joined(t)
	here, there := first.Client(), second.Client()
	for i, settings := range []string{"", "residency=demand", "mode=versioned"} {
		name := fmt.Sprint("f", i)
		if _, err := there.Do("open %s rw,creat", filepath.Join(second.Mount, name)); err != nil {
			t.Fatalf("%q: open: %v", settings, err)
		}
		if settings != "" {
			if res := second.CLI("set", filepath.Join(second.Mount, name), settings); res.Err != nil {
				t.Fatalf("set %q: %v: %s", settings, res.Err, res.Stderr)
			}
		}
		words, err := there.Do("open %s rw", filepath.Join(second.Mount, name))
		if err != nil {
			t.Fatalf("%q: open: %v", settings, err)
		}
		if _, err := there.Do("pwrite %s 0 616263", words[0]); err != nil {
			t.Errorf("%q: write: %v", settings, err)
		}
		if _, err := there.Do("fsync %s", words[0]); err != nil {
			t.Errorf("%q: fsync: %v", settings, err)
		}
		if settings != "" {
			if res := first.CLI("set", filepath.Join(first.Mount, name), settings); res.Err != nil {
				t.Errorf("the held node refuses %q: %s", settings, res.Stderr)
			}
		}
		words, err = here.Do("open %s r", filepath.Join(first.Mount, name))
		if err != nil {
			t.Errorf("%q: open at the held node: %v", settings, err)
			continue
		}
		if text, err := here.Do("pread %s 0 3", words[0]); err != nil || text[0] != "616263" {
			t.Errorf("%q: the held node reads %v, %v", settings, text, err)
		}
	}
}

// TestDeathOfAHeldMember: if others have joined, a node with --hold ends with its daemon as any other does, at once, and says why. That holds also if the daemon
// is killed before it could say that it is not alone any more.
func TestDeathOfAHeldMember(t *testing.T) {
	for _, said := range []bool{true, false} {
		t.Run(fmt.Sprint("said=", said), func(t *testing.T) {
			first, _ := joined(t)
			here := first.Client()
			words, err := here.Do("open %s rw,creat", filepath.Join(first.Mount, "f"))
			if err != nil {
				t.Fatal(err)
			}
			if !said {
				forget(t, first)
			}
			killDaemon(t, first, 0, 0, syscall.SIGKILL)
			first.Lost()
			if _, err := here.Do("pread %s 0 5", words[0]); err == nil || !strings.Contains(err.Error(), "ENOTCONN") && !strings.Contains(err.Error(), "ECONNABORTED") {
				t.Errorf("read after that: %v", err)
			}
			log, err := os.ReadFile(first.LogFile())
			if err != nil || !strings.Contains(string(log), "other nodes are or were in the cluster") {
				t.Errorf("the log does not say it (%v):\n%s", err, log)
			}
		})
	}
}

// forget takes back what the daemon of a node has said about others.
func forget(t *testing.T, n *harness.Node) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", n.PID())
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		path := filepath.Join(dir, e.Name())
		if to, err := os.Readlink(path); err != nil || !strings.Contains(to, "dsmfs:held") {
			continue
		}
		fd, err := syscall.Open(path, syscall.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		m, err := hold.Adopt(fd)
		if err != nil {
			t.Fatal(err)
		}
		if m.Word(hold.Exclusive).Swap(0) != 1 {
			t.Error("the daemon has not said that it is not alone")
		}
		return
	}
	t.Fatal("the holder has nothing that is held")
}
