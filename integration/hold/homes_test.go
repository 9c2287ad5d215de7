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

// mounted waits until a node serves.
func mounted(t *testing.T, n *harness.Node) {
	t.Helper()
	if !harness.Eventually(limit, func() bool { return n.Run(limit, "cat", filepath.Join(n.Mount, ".dsm/cluster")).Err == nil }) {
		log, _ := os.ReadFile(n.LogFile())
		t.Fatalf("%s: the mount is lost:\n%s", n.Name, log)
	}
}

// do runs commands on a node.
func do(t *testing.T, n *harness.Node, commands ...[]string) {
	t.Helper()
	for _, args := range commands {
		if res := n.Run(limit, args[0], args[1:]...); res.Err != nil {
			t.Fatal(args, res.Stderr)
		}
	}
}

// adding is a program on each of some nodes that adds to all numbers of a file, again and again.
type adding struct {
	t        *testing.T
	end      string
	programs int
	done     chan string
}

// adds makes the file sum, and starts the programs.
func adds(t *testing.T, programs []*harness.Node, size string, settings ...string) *adding {
	t.Helper()
	path := filepath.Join(programs[0].Mount, "sum")
	do(t, programs[0], []string{"touch", path}, append([]string{harness.Binary(), "set", path, "merge=sum", "dtype=i64"}, settings...), []string{"truncate", "-s", size, path})
	a := &adding{t, filepath.Join(t.TempDir(), "end"), len(programs), make(chan string, len(programs))}
	for _, n := range programs {
		go func() {
			res := n.TryPython(fmt.Sprintf(`
import numpy as np, os
m = np.memmap(mnt + '/sum', dtype='<i8', mode='r+')
k = 0
while not os.path.exists(%q):
    m += 1
    m.flush()
    k += 1
print(k)
`, a.end))
			a.done <- res.Stdout + res.Stderr
		}()
	}
	return a
}

// check ends the programs, and checks that at all nodes all that they have added counts once.
func (a *adding) check(nodes []*harness.Node) {
	a.t.Helper()
	if err := os.WriteFile(a.end, nil, 0o600); err != nil {
		a.t.Fatal(err)
	}
	sum := 0
	for range a.programs {
		added := <-a.done
		k, err := strconv.Atoi(strings.TrimSpace(added))
		if err != nil {
			a.t.Fatal(added)
		}
		sum += k
	}
	for _, o := range nodes {
		if there := o.Python(`
m = numpy.fromfile(mnt + '/sum', dtype='<i8')
print(m.min(), m.max())
`); there != fmt.Sprintf("%d %d", sum, sum) {
			a.t.Errorf("%d was added to each number, and at %s the least and the largest are %s", sum, o.Name, there)
		}
	}
}

// TestSumsOfOneCopy: the daemon of the home of a file of sums, of which there is no other copy, is killed again and again while a program of another node, or of its own, adds to it, also if its pages are there on demand. The mount stays, and all counts once.
func TestSumsOfOneCopy(t *testing.T) {
	if _, skip := harness.Interpreter(); skip != "" {
		t.Skip(skip)
	}
	for _, kind := range []string{"other", "own", "demand"} {
		t.Run(kind, func(t *testing.T) {
			rnd := seeded(t)
			nodes := heldCluster(t, 2, "--lease", "60s").Nodes()
			n, by := nodes[1], nodes[0]
			settings := []string{"replicas=1", "placement=" + n.Name}
			switch kind {
			case "own":
				by = n
			case "demand": // some of it is here: files on demand are spread
				settings = []string{"replicas=1", "residency=demand"}
			}
			a := adds(t, []*harness.Node{by}, "16M", settings...)
			last := 0
			for range 10 {
				last = killDaemon(t, n, last, time.Duration(rnd.Int64N(int64(time.Second))), syscall.SIGKILL)
				mounted(t, n)
			}
			a.check(nodes)
		})
	}
}

// TestSumsOfTwoCopies: programs of all nodes add to a file that has two copies, while daemons are killed, some at once.
func TestSumsOfTwoCopies(t *testing.T) {
	if _, skip := harness.Interpreter(); skip != "" {
		t.Skip(skip)
	}
	rnd := seeded(t)
	nodes := heldCluster(t, 3, "--lease", "60s").Nodes()
	a := adds(t, nodes, "8M", "replicas=2", "placement=spread")
	last := make([]int, 3)
	for range 10 {
		<-time.After(time.Duration(rnd.Int64N(int64(400 * time.Millisecond))))
		for i, n := range nodes {
			if rnd.IntN(2) == 0 {
				last[i] = killDaemon(t, n, last[i], 0, syscall.SIGKILL)
			}
		}
		for _, n := range nodes {
			mounted(t, n)
		}
	}
	a.check(nodes)
}

// TestSumsThatMove: a file of sums, of which there is one copy, moves to and fro between two nodes whose daemons are killed, one after the other. All counts once.
func TestSumsThatMove(t *testing.T) {
	if _, skip := harness.Interpreter(); skip != "" {
		t.Skip(skip)
	}
	rnd := seeded(t)
	nodes := heldCluster(t, 3, "--lease", "60s").Nodes()
	a := adds(t, nodes[:1], "8M", "replicas=1", "placement="+nodes[1].Name)
	moved := make(chan int, 1)
	go func() {
		k := 0
		for ; ; k++ {
			if _, err := os.Stat(a.end); err == nil {
				break
			}
			nodes[0].CLI("set", filepath.Join(nodes[0].Mount, "sum"), "placement="+nodes[1+k%2].Name)
			<-time.After(time.Duration(k*37%100) * time.Millisecond)
		}
		moved <- k
	}()
	last := make([]int, 3)
	for range 20 {
		i := 1 + rnd.IntN(2)
		last[i] = killDaemon(t, nodes[i], last[i], time.Duration(rnd.Int64N(int64(300*time.Millisecond))), syscall.SIGKILL)
		mounted(t, nodes[i])
	}
	a.check(nodes)
	if k := <-moved; k < 5 {
		t.Errorf("it was to move %d times", k)
	}
}

// TestMadeWhileTheDaemonIsDown: another node makes a file in a directory that is placed at a node whose daemon has just been killed.
func TestMadeWhileTheDaemonIsDown(t *testing.T) {
	nodes := heldCluster(t, 3, "--lease", "60s").Nodes()
	n := nodes[2]
	dir := filepath.Join(nodes[0].Mount, "d")
	do(t, nodes[0], []string{"mkdir", dir}, []string{harness.Binary(), "set", dir, "placement=" + n.Name}, []string{"sh", "-c", "echo abc > " + dir + "/first"})
	n.Pause() // the holder: so the next daemon takes a while
	killDaemon(t, n, 0, 0, syscall.SIGKILL)
	do(t, nodes[0], []string{"truncate", "-s", "4096", dir + "/second"})
	n.Resume()
	mounted(t, n)
	if res := n.Run(limit, "cat", filepath.Join(n.Mount, "d/first")); res.Err != nil || res.Stdout != "abc\n" {
		t.Errorf("%q %v %s", res.Stdout, res.Err, res.Stderr)
	}
}

// TestBothEndsKilled: a file is on its way from one node to another when the daemons of both are killed. That of the new home is followed first.
func TestBothEndsKilled(t *testing.T) {
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	nodes := harness.New(t, harness.Options{Nodes: 3, Memory: "256M", Network: harness.Namespaces, Flags: []string{"--hold", "--lease", "60s"}}).Nodes()
	from, to := nodes[1], nodes[2]
	path := filepath.Join(nodes[0].Mount, "f")
	do(t, nodes[0], []string{"touch", path}, []string{harness.Binary(), "set", path, "replicas=1", "placement=" + from.Name}, []string{"sh", "-c", "yes | head -c 8M > " + path})
	from.Rate(8) // it takes some seconds
	if res := nodes[0].CLI("set", path, "placement="+to.Name); res.Err != nil {
		t.Fatal(res.Stderr)
	}
	from.Pause() // the holder
	killDaemon(t, from, 0, 0, syscall.SIGKILL)
	killDaemon(t, to, 0, 0, syscall.SIGKILL)
	mounted(t, to)
	from.Rate(0)
	from.Resume()
	mounted(t, from)
	if res := nodes[0].Run(limit, "sh", "-c", "head -c 4 "+path); res.Err != nil || res.Stdout != "y\ny\n" {
		t.Errorf("%q %v %s", res.Stdout, res.Err, res.Stderr)
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
