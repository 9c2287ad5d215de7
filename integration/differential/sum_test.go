package differential

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestSumIsExact has workers on three nodes add to overlapping elements of one array by load, add
// and store, beside readers that come and go. When all have synced every element is the
// sum of what was added to it.
//
// The first node has three workers with attached memory and the third two. The second has one, with the page
// cache: another one beside it, however it stores, is what README says not to do.
func TestSumIsExact(t *testing.T) {
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	python, skip := harness.Interpreter()
	if skip != "" {
		t.Skip(skip)
	}
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d: repeat with -run '^%s$' -seed %d", s, t.Name(), s)
	rng := rand.New(rand.NewPCG(s, 3))
	c := harness.New(t, harness.Options{Nodes: 3})
	start := func(node int, plane string) *harness.Client {
		n := c.Node(node)
		return n.Program("env", "PYTHONPATH="+packageDir(t), python, worker(t), n.Mount, fmt.Sprint(rng.Uint32()), plane)
	}
	workers := []*harness.Client{
		start(1, "memory"), start(1, "memory"), start(1, "memory"),
		start(2, "mapping"),
		start(3, "memory"), start(3, "memory"),
	}
	readers := []*harness.Client{start(1, "memory"), start(2, "memory"), start(3, "memory")}
	var departed [][]int64 // what workers that are gone added
	must(t, workers[0], "create sum")
	for round := range 3 {
		var all sync.WaitGroup
		for _, w := range workers {
			all.Go(func() { must(t, w, "work %d", *opsFlag/25) })
		}
		for _, r := range readers {
			all.Go(func() { must(t, r, "look %d", *opsFlag/60) })
		}
		all.Wait()
		if t.Failed() {
			return
		}
		if round == 1 { // a worker that is killed leaves what it stored
			gone := numbers(t, workers[2], "added")
			workers[2].Kill()
			workers[2] = start(1, "memory")
			departed = append(departed, gone)
		}
		for range 2 { // the second brings what others published in the first
			for _, w := range workers {
				must(t, w, "sync")
			}
		}
		want := make([]int64, 0)
		for _, list := range departed {
			want = plus(want, list)
		}
		for _, w := range workers {
			want = plus(want, numbers(t, w, "added"))
		}
		for node, r := range readers {
			got := numbers(t, r, "read")
			wrong, first := 0, -1
			for i := range want {
				if got[i] != want[i] {
					if wrong++; first < 0 {
						first = i
					}
				}
			}
			if wrong > 0 {
				for i, w := range workers {
					t.Logf("worker %d: %s", i, must(t, w, "journal"))
				}
				t.Errorf("round %d, node %d: %d of %d elements are wrong, the first, %d, is %d, want %d", round, node+1, wrong, len(want), first, got[first], want[first])
			}
		}
		if t.Failed() {
			return
		}
	}
}

// must has a program do something, and fails the test if it cannot.
func must(t *testing.T, c *harness.Client, format string, args ...any) string {
	words, err := c.Do(format, args...)
	if err != nil {
		t.Errorf(format+": %v", append(args, err)...)
		return "null"
	}
	return strings.Join(words, " ")
}

func numbers(t *testing.T, c *harness.Client, command string) (list []int64) {
	if err := json.Unmarshal([]byte(must(t, c, "%s", command)), &list); err != nil {
		t.Error(err)
	}
	return list
}

func plus(a, b []int64) []int64 {
	if len(a) == 0 {
		return b
	}
	sum := make([]int64, len(a))
	for i := range a {
		sum[i] = a[i] + b[i]
	}
	return sum
}

// packageDir is where the Python package is.
func packageDir(t *testing.T) string {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "pybind")
}

func worker(t *testing.T) string {
	path, err := filepath.Abs("worker.py")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}
