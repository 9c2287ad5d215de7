package integration

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
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
