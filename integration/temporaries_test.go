package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

var compiledWorker = sync.OnceValues(func() (string, error) {
	return harness.Compile("worker", "gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-o", "{out}", "integration/attached/worker.c", "-pthread")
})

// startReader has a program on the node read the file over and over, until stop.
func startReader(t *testing.T, n *harness.Node, worker, name string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := n.Command(ctx, worker, filepath.Join(n.Mount, name), "read")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		cancel()
		if err := cmd.Wait(); cmd.ProcessState.Exited() {
			t.Errorf("%s: the reader ended by itself: %v", n.Name, err)
		}
	}
}

// TestSumWithTemporaries: workers that load, compute and store back what they add to, as any array program does,
// lose nothing, while others on their node open and read the file all the time: on the page cache with one worker on
// a node, on the memory plane with several that add to the same elements.
func TestSumWithTemporaries(t *testing.T) {
	for _, test := range []struct {
		plane   string
		workers int // on each node
		short   bool
	}{
		{"cache", 1, true}, {"memory", 1, false}, {"memory", 2, true}, {"memory", 4, false},
	} {
		t.Run(fmt.Sprintf("%s-%d", test.plane, test.workers), func(t *testing.T) {
			if !test.short {
				long(t)
			}
			const rounds, size = 100, 3*page + 800
			c := nodes(t, 3)
			worker, err := compiledWorker()
			if err != nil {
				t.Fatal(err)
			}
			all := clients(c)
			f := all[0].Open("w", "rw,creat,excl")
			all[0].SetXattr("w", "user.dsm.merge", "sum")
			all[0].SetXattr("w", "user.dsm.dtype", "i64")
			f.Truncate(size)
			f.Close()
			var running sync.WaitGroup
			var stops []func()
			for _, n := range c.Nodes() {
				stops = append(stops, startReader(t, n, worker, "w"))
				for range test.workers {
					cmd := n.Command(t.Context(), worker, filepath.Join(n.Mount, "w"), test.plane, strconv.Itoa(rounds))
					running.Go(func() { runWorker(t, cmd) })
				}
			}
			running.Wait()
			for _, stop := range stops {
				stop()
			}
			want := int64(3 * test.workers * rounds)
			for i, cl := range all {
				m := cl.Open("w", "r").MapForReading(size)
				if lo, hi := m.Range("i64", 0, size/8); lo != want || hi != want {
					t.Errorf("node %d: elements from %d to %d, want all %d", i+1, lo, hi, want)
				}
			}
		})
	}
}

func runWorker(t *testing.T, cmd *exec.Cmd) {
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("worker: %v: %s", err, out)
	}
}

// TestSumsThatAreNotExact: where programs undo what others add the file's stats say so, and why.
func TestSumsThatAreNotExact(t *testing.T) {
	c := nodes(t, 1)
	n := c.Node(1)
	one, other := n.Client(), n.Client()
	says := func(want string) {
		t.Helper()
		if !harness.Eventually(limit, func() bool { return strings.Contains(one.Control("areas/w/stats"), "\nsums "+want) }) {
			t.Errorf("no %q in the stats:\n%s", want, one.Control("areas/w/stats"))
		}
	}
	f := one.Open("w", "rw,creat,excl")
	f.Truncate(page)
	says("none\n")
	one.SetXattr("w", "user.dsm.dtype", "i64")
	one.SetXattr("w", "user.dsm.merge", "sum")
	says("exact\n")
	one.Attach("w", page) // the same program once more
	says("exact\n")
	g := other.Open("w", "r")
	says("exact\n")
	g.Close()
	g = other.Open("w", "rw")
	says("undone: 2 programs of this node store, 2 of them into one memory")
	g.Close()
	says("exact\n")
	a := n.Attach("/w", true)
	says("undone: 2 programs of this node store, 1 of them into one memory")
	f.Close()
	one.Close()
	one = other
	says("exact\n")
	a.Close()
	one.SetXattr("w", "user.dsm.apply", "arrival")
	other.Open("w", "rw")
	says("atomic-only: ")
	log, err := os.ReadFile(n.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"undone:", "atomic-only:"} {
		if k := strings.Count(string(log), kind); k != 1 {
			t.Errorf("the log says %q %d times, want once", kind, k)
		}
	}
}
