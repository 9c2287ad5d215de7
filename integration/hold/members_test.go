package hold_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
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

// TestOnDemandWhileThereIsMemory: an empty file that nodes already have memory for goes on demand.
func TestOnDemandWhileThereIsMemory(t *testing.T) {
	nodes := heldCluster(t, 2).Nodes()
	must := func(res harness.Result) {
		t.Helper()
		if res.Err != nil {
			t.Fatalf("%v: %s", res.Err, res.Stderr)
		}
	}
	path := func(n *harness.Node) string { return filepath.Join(n.Mount, "f") }
	must(nodes[0].Run(10*time.Second, "touch", path(nodes[0])))
	must(nodes[1].Run(10*time.Second, "cat", path(nodes[1])))
	must(nodes[0].CLI("set", path(nodes[0]), "residency=demand"))
	must(nodes[0].Run(10*time.Second, "truncate", "-s", "10M", path(nodes[0])))
	for _, n := range nodes {
		must(n.Run(20*time.Second, "dd", "if=/dev/urandom", "of="+path(n), "bs=1M", "count=10", "conv=notrunc,fsync"))
	}
}

// TestDeathOfAHeldMember: where only the node has bytes of a file, no daemon follows. It ends as any other does, and says why.
func TestDeathOfAHeldMember(t *testing.T) {
	first, _ := joined(t)
	here := first.Client()
	words := []string(nil)
	for i := range 64 { // some of them live here
		path := filepath.Join(first.Mount, fmt.Sprint("f", i))
		var err error
		if words, err = here.Do("open %s rw,creat", path); err != nil {
			t.Fatal(err)
		}
		if res := first.CLI("set", path, "replicas=1"); res.Err != nil {
			t.Fatalf("set: %v: %s", res.Err, res.Stderr)
		}
		if _, err := here.Do("pwrite %s 0 616263", words[0]); err != nil {
			t.Fatal(err)
		}
	}
	killDaemon(t, first, 0, 0, syscall.SIGKILL)
	first.ExpectDead()
	if _, err := here.Do("pread %s 0 5", words[0]); err == nil || !strings.Contains(err.Error(), "ENOTCONN") && !strings.Contains(err.Error(), "ECONNABORTED") {
		t.Errorf("read after that: %v", err)
	}
	log, err := os.ReadFile(first.LogFile())
	if err != nil || !strings.Contains(string(log), "nobody else has slot") {
		t.Errorf("the log does not say it (%v):\n%s", err, log)
	}
}

// TestHolderIsKilled: the holder of a member is killed, and its daemon afterwards or at the same time. Without a holder the daemon goes on. Without both the mount is lost, as
// programs are told; what was synced is there, and the node can be mounted again.
func TestHolderIsKilled(t *testing.T) {
	c := heldCluster(t, 3, "--lease", "3s")
	other := c.Node(1).Client()
	for i, n := range c.Nodes()[1:] {
		here, name := n.Client(), fmt.Sprint("f", i)
		words, err := here.Do("open %s rw,creat", filepath.Join(n.Mount, name))
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		write := func() {
			t.Helper()
			if _, err := here.Do("pwrite %s %d 616263", words[0], len(want)/2); err != nil {
				t.Fatal(err)
			}
			if _, err := here.Do("fsync %s", words[0]); err != nil {
				t.Fatal(err)
			}
			want += "616263"
		}
		write()
		covered(t, n)
		pid := n.Daemon()
		n.Kill()
		if i == 0 {
			for range 3 {
				write()
			}
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := here.Do("pread %s 0 3", words[0]); err == nil || !strings.Contains(err.Error(), "ENOTCONN") && !strings.Contains(err.Error(), "ECONNABORTED") {
			t.Errorf("%s: read without a daemon: %v", n.Name, err)
		}
		read := func(c *harness.Client, n *harness.Node) {
			t.Helper()
			words, err := c.Do("open %s r", filepath.Join(n.Mount, name))
			if err != nil {
				t.Errorf("%s: %v", n.Name, err)
			} else if got, err := c.Do("pread %s 0 100", words[0]); err != nil || got[0] != want {
				t.Errorf("%s: %v, %v, want %s", n.Name, got, err, want)
			}
		}
		read(other, c.Node(1))
		n.Start()
		read(n.Client(), n)
		covered(t, n)
	}
}
