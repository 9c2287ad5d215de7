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

// TestOnlyCopyOutlivesItsDaemon: where only the node has bytes of files its next daemon goes on as their home, with what programs of all nodes have stored, also if that one is killed at once.
func TestOnlyCopyOutlivesItsDaemon(t *testing.T) {
	first, second := joined(t)
	here, there := first.Client(), second.Client()
	const files = 64 // some of them live here
	var mine, others []string
	want := make([]string, files)
	stores := func(i int, by *harness.Client, handle, bytes string) {
		t.Helper()
		if _, err := by.Do("pwrite %s %d %s", handle, len(want[i])/2, bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := by.Do("fsync %s", handle); err != nil {
			t.Fatal(err)
		}
		want[i] += bytes
	}
	opened := func(c *harness.Client, n *harness.Node, i int, flags string) string {
		t.Helper()
		words, err := c.Do("open %s %s", filepath.Join(n.Mount, fmt.Sprint("f", i)), flags)
		if err != nil {
			t.Fatal(err)
		}
		return words[0]
	}
	for i := range files {
		mine = append(mine, opened(here, first, i, "rw,creat"))
		if res := first.CLI("set", filepath.Join(first.Mount, fmt.Sprint("f", i)), "replicas=1"); res.Err != nil {
			t.Fatalf("set: %v: %s", res.Err, res.Stderr)
		}
		stores(i, here, mine[i], "616263")
		others = append(others, opened(there, second, i, "rw"))
		stores(i, there, others[i], "646566")
	}
	last := 0
	for round := range 3 {
		last = killDaemon(t, first, last, 0, syscall.SIGKILL)
		if round == 1 { // the next one at once
			last = killDaemon(t, first, last, 0, syscall.SIGKILL)
		}
		for i := range files {
			stores(i, there, others[i], "676869")
			stores(i, here, mine[i], "6a6b6c")
			for _, c := range []struct {
				client *harness.Client
				handle string
			}{{here, mine[i]}, {there, others[i]}} {
				if _, err := c.client.Do("fsync %s", c.handle); err != nil {
					t.Fatal(err)
				}
				if got, err := c.client.Do("pread %s 0 %d", c.handle, len(want[i])/2); err != nil || got[0] != want[i] {
					t.Fatalf("round %d, file %d: %v, %v; want %s", round, i, got, err, want[i])
				}
			}
		}
	}
}

// TestDeathOfAHeldMember: where only the node has bytes of a file of more than 64 GiB no daemon follows. It ends as any other does, and says why.
func TestDeathOfAHeldMember(t *testing.T) {
	nodes := largeCluster(t).Nodes()
	first, second := nodes[0], nodes[1]
	makeLarge(t, second, "f") // its extents are spread over both
	killDaemon(t, first, 0, 0, syscall.SIGKILL)
	first.ExpectDead()
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

// TestJoinWhileNoDaemonServes: who joins through a node whose daemon was just killed waits for the next one.
func TestJoinWhileNoDaemonServes(t *testing.T) {
	nodes := heldCluster(t, 3).Nodes()
	first, second := nodes[0], nodes[2]
	second.Stop()
	first.Pause() // the holder
	if err := syscall.Kill(first.Daemon(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	followed := make(chan bool)
	go func() {
		waits := harness.Eventually(limit, func() bool {
			log, err := os.ReadFile(second.LogFile())
			return err == nil && strings.Contains(string(log), "nobody answers yet")
		})
		first.Resume()
		followed <- waits
	}()
	second.Start()
	if !<-followed {
		t.Error("it has joined, and nobody had to be waited for")
	}
	second.Client().Must("stat %s", second.Client().Path("."))
}
