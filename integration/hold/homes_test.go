package hold_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestSumsOfOneCopy: the daemon of the home of a file of sums, of which there is no other copy, is killed again and again while a program of another node, or of its own, adds to it. The mount stays, and all counts once.
func TestSumsOfOneCopy(t *testing.T) {
	if _, skip := harness.Interpreter(); skip != "" {
		t.Skip(skip)
	}
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprint("own ", own), func(t *testing.T) {
			rnd := seeded(t)
			nodes := heldCluster(t, 2, "--lease", "60s").Nodes()
			n, by := nodes[1], nodes[0]
			if own {
				by = n
			}
			path := filepath.Join(nodes[0].Mount, "sum")
			for _, args := range [][]string{{"touch", path}, {harness.Binary(), "set", path, "merge=sum", "dtype=i64", "replicas=1", "placement=" + n.Name}, {"truncate", "-s", "16M", path}} {
				if res := nodes[0].Run(limit, args[0], args[1:]...); res.Err != nil {
					t.Fatal(args, res.Stderr)
				}
			}
			end := filepath.Join(t.TempDir(), "end")
			done := make(chan string, 1)
			go func() {
				res := by.TryPython(fmt.Sprintf(`
import numpy as np, os
m = np.memmap(mnt + '/sum', dtype='<i8', mode='r+')
k = 0
while not os.path.exists(%q):
    m += 1
    m.flush()
    k += 1
print(k)
`, end))
				done <- res.Stdout + res.Stderr
			}()
			last := 0
			for range 10 {
				last = killDaemon(t, n, last, time.Duration(rnd.Int64N(int64(time.Second))), syscall.SIGKILL)
				if !harness.Eventually(limit, func() bool {
					return n.Run(limit, "cat", filepath.Join(n.Mount, ".dsm/cluster")).Err == nil
				}) {
					log, _ := os.ReadFile(n.LogFile())
					t.Fatalf("the mount is lost:\n%s", log)
				}
			}
			if err := os.WriteFile(end, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			added := <-done
			k, err := strconv.Atoi(strings.TrimSpace(added))
			if err != nil {
				t.Fatal(added)
			}
			for _, o := range nodes {
				if there := o.Python(`
m = numpy.fromfile(mnt + '/sum', dtype='<i8')
print(m.min(), m.max())
`); there != fmt.Sprintf("%d %d", k, k) {
					t.Errorf("%d was added to each number, and at %s the least and the largest are %s", k, o.Name, there)
				}
			}
		})
	}
}

// TestVersionsOfOneCopy: the daemon of the owner of a versioned file, of which nobody has a copy, is killed. All read it as before.
func TestVersionsOfOneCopy(t *testing.T) {
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprint("open ", open), func(t *testing.T) {
			nodes := heldCluster(t, 2, "--lease", "60s").Nodes()
			for k, n := range nodes {
				name := fmt.Sprint("f", k)
				c := n.Client()
				path := filepath.Join(n.Mount, name)
				c.Must("close %d", c.Open(name, "rw,creat").FD)
				if res := n.CLI("set", path, "mode=versioned", "replicas=1"); res.Err != nil {
					t.Fatal(res.Stderr)
				}
				f := c.Open(name, "rw")
				c.Must("pwrite %d 0 616263", f.FD)
				c.Must("fsync %d", f.FD)
				c.Must("pwrite %d 3 646566", f.FD)
				c.Must("fsync %d", f.FD)
				if !open {
					c.Must("close %d", f.FD)
				}
				last := 0
				for i := range 3 {
					for _, o := range nodes {
						if res := o.Run(limit, "cat", filepath.Join(o.Mount, name)); res.Err != nil || res.Stdout != "abcdef" {
							t.Errorf("after %d kills %s reads %q of the file of %s: %v %s", i, o.Name, res.Stdout, n.Name, res.Err, res.Stderr)
						}
					}
					last = killDaemon(t, n, last, 0, syscall.SIGKILL)
				}
			}
		})
	}
}

// TestAllKilledAtOnce: the daemons of all nodes are killed at the same moment, as by a script.
func TestAllKilledAtOnce(t *testing.T) {
	nodes := heldCluster(t, 3, "--lease", "60s").Nodes()
	c := nodes[0].Client()
	const files = 64
	for i := range files {
		f := c.Open(fmt.Sprint("f", i), "rw,creat")
		c.Must("pwrite %d 0 616263", f.FD)
		c.Must("fsync %d", f.FD)
		c.Must("close %d", f.FD)
	}
	last := make([]int, len(nodes))
	for round := range 5 {
		for i, n := range nodes {
			last[i] = killDaemon(t, n, last[i], 0, syscall.SIGKILL)
		}
		for _, n := range nodes {
			for i := range files {
				if res := n.Run(limit, "cat", filepath.Join(n.Mount, fmt.Sprint("f", i))); res.Err != nil || res.Stdout != "abc" {
					t.Fatalf("round %d, %s, f%d: %q %v %s", round, n.Name, i, res.Stdout, res.Err, res.Stderr)
				}
			}
		}
	}
}

// TestEvictedWithTheOnlyCopy: no daemon follows until the cluster has taken the node for dead. Nobody has taken over what only it has. It joins again, and goes on with that, as a daemon does that was only cut off.
func TestEvictedWithTheOnlyCopy(t *testing.T) {
	nodes := heldCluster(t, 3, "--lease", "1s").Nodes()
	n := nodes[2]
	c := n.Client()
	const files = 32
	for i := range files { // some live here
		name := fmt.Sprint("f", i)
		f := c.Open(name, "rw,creat")
		if res := n.CLI("set", filepath.Join(n.Mount, name), "replicas=1"); res.Err != nil {
			t.Fatal(res.Stderr)
		}
		c.Must("pwrite %d 0 616263", f.FD)
		c.Must("fsync %d", f.FD)
	}
	n.Pause() // the holder
	killDaemon(t, n, 0, 0, syscall.SIGKILL)
	gone := func() bool {
		for line := range strings.Lines(nodes[0].Run(limit, "cat", filepath.Join(nodes[0].Mount, ".dsm/members")).Stdout) {
			if strings.Contains(line, n.Name) && !strings.Contains(line, "gone") {
				return false
			}
		}
		return true
	}
	if !harness.Eventually(limit, gone) {
		t.Fatal("the node is not evicted")
	}
	n.Resume()
	for _, o := range []*harness.Node{n, nodes[0]} {
		for i := range files {
			if res := o.Run(limit, "cat", filepath.Join(o.Mount, fmt.Sprint("f", i))); res.Err != nil || res.Stdout != "abc" {
				t.Fatalf("%s, f%d: %q %v %s", o.Name, i, res.Stdout, res.Err, res.Stderr)
			}
		}
	}
}
