// Package differential runs random system calls of several programs on several
// nodes, one after the other, and the same calls on a local directory. Every
// answer must be the same.
//
// Stores are not published by each call, so before a program of another node does
// anything, what was stored is synced by who stored it; and who reads what was
// open before syncs first, which brings its node up to date. Within a node nothing of that is needed.
package differential

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the test; 0 draws one")
	opsFlag  = flag.Int("ops", 1500, "operations of the test")
	showFlag = flag.Int("show", 80, "operations to show of a failure")
	leaveOut = flag.String("without", "", "operations and flags of open to leave out, with commas between")
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "differential")) }

// slots is how many descriptors and how many mappings a program has at most.
const slots = 4

// program is a program on a mount and its twin in a local directory.
type program struct {
	node         int
	mount, local *harness.Client
	start        func() *harness.Client // another one on the mount
	// stored are the descriptors and mappings by which it stored what is not synced yet.
	files, maps [slots]bool
}

type world struct {
	t        *testing.T
	rng      *rand.Rand
	programs []*program
	trace    []string
	answered int  // operations that succeeded
	alone    bool // others do operations at the same time: nothing is compared
}

func TestDifferential(t *testing.T) {
	w := newWorld(t, 2)
	for _, d := range dirs[:2] {
		w.do(w.programs[0], "mkdir", d)
	}
	for range *opsFlag {
		w.step()
	}
	w.settle(-1)
	for _, p := range w.programs {
		w.lookAtAll(p)
	}
	t.Logf("%d of %d operations succeeded", w.answered, len(w.trace))
}

// newWorld starts nodes with two programs each, and their twins.
func newWorld(t *testing.T, nodes int) *world {
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	python, skip := harness.Interpreter()
	if skip != "" {
		t.Skip(skip)
	}
	agent, err := filepath.Abs("agent.py")
	if err != nil {
		t.Fatal(err)
	}
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d: repeat with -run '^%s$' -seed %d", s, t.Name(), s)
	w := &world{t: t, rng: rand.New(rand.NewPCG(s, 2))}
	c := harness.New(t, harness.Options{Nodes: nodes})
	local := directory(t)
	const top = "top" // so that ".." leads to a directory of the same filesystem
	for _, d := range []string{local, c.Node(1).Mount} {
		if res := c.Node(1).Run(time.Minute, "mkdir", filepath.Join(d, top)); res.Err != nil {
			t.Fatal(res.Err, res.Stderr)
		}
	}
	for i := range 2 * nodes {
		n := c.Nodes()[i%nodes]
		start := func() *harness.Client { return n.Program(python, agent, filepath.Join(n.Mount, top)) }
		w.programs = append(w.programs, &program{
			node:  i % nodes,
			mount: start(),
			start: start,
			local: n.Program(python, agent, filepath.Join(local, top), "plain"),
		})
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of %d operations:\n%s", len(w.trace), strings.Join(w.trace[max(0, len(w.trace)-*showFlag):], "\n"))
		}
	})
	return w
}

// directory makes a directory of a filesystem that has what the calls need.
func directory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "dsmfs-differential-")
	if err != nil {
		t.Skip("no /dev/shm to compare with: ", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// ask has a client do an operation.
func ask(t *testing.T, c *harness.Client, op []any) string {
	line, err := json.Marshal(op)
	if err != nil {
		t.Fatal(err)
	}
	words, err := c.Do("%s", line)
	if failure, ok := err.(harness.Failure); ok {
		return "err " + string(failure)
	}
	if err != nil {
		t.Fatalf("%.300s: %v", line, err)
	}
	return strings.Join(words, " ")
}

// do has a program do an operation in both places and compares the answers.
func (w *world) do(p *program, op string, args ...any) (got string) {
	w.t.Helper()
	if without(op) {
		return "err left-out"
	}
	list := append([]any{op}, args...)
	if w.alone {
		return w.accept(p, list)
	}
	w.settle(p.node)
	want := ask(w.t, p.local, list)
	got = ask(w.t, p.mount, list)
	line, _ := json.Marshal(list)
	w.trace = append(w.trace, fmt.Sprintf("%5d node %d program %d: %.160s -> %.80s", len(w.trace), p.node+1, w.number(p), line, want))
	if got != want {
		w.t.Fatalf("operation %d, %.200s by program %d of node %d: %s", len(w.trace)-1, line, w.number(p), p.node+1, difference(got, want))
	}
	if !strings.HasPrefix(got, "err ") {
		w.answered++
	}
	return got
}

func without(word string) bool { return slices.Contains(strings.Split(*leaveOut, ","), word) }

func (w *world) number(p *program) int {
	for i, o := range w.programs {
		if o == p {
			return i
		}
	}
	return -1
}

// difference tells two answers apart, and where bytes differ.
func difference(got, want string) string {
	g, errG := hex.DecodeString(strings.Trim(got, `"`))
	v, errV := hex.DecodeString(strings.Trim(want, `"`))
	if errG != nil || errV != nil || len(g) == 0 || len(v) == 0 {
		return fmt.Sprintf("the mount answers %.300s, the local directory %.300s", got, want)
	}
	if len(g) != len(v) {
		return fmt.Sprintf("the mount has %d bytes, the local directory %d", len(g), len(v))
	}
	first, n := -1, 0
	for i := range g {
		if g[i] != v[i] {
			if first < 0 {
				first = i
			}
			n++
		}
	}
	return fmt.Sprintf("%d of %d bytes differ, the first at %d: %#x, want %#x", n, len(g), first, g[first], v[first])
}

// settle syncs what programs of other nodes than node stored.
func (w *world) settle(node int) {
	w.t.Helper()
	for _, p := range w.programs {
		if p.node == node {
			continue
		}
		for i := range slots {
			if p.maps[i] {
				p.maps[i] = false
				w.both(p, "msync", i)
			}
			if p.files[i] {
				p.files[i] = false
				w.both(p, "fsync", i)
			}
		}
	}
}

// both is do without looking at other programs.
func (w *world) both(p *program, op string, n int) {
	w.t.Helper()
	list := []any{op, n}
	if w.alone {
		w.accept(p, list)
		return
	}
	want, got := ask(w.t, p.local, list), ask(w.t, p.mount, list)
	w.trace = append(w.trace, fmt.Sprintf("%5d node %d program %d: %s %d -> %s", len(w.trace), p.node+1, w.number(p), op, n, want))
	if got != want {
		w.t.Fatalf("operation %d, %s %d by program %d of node %d: the mount answers %s, the local directory %s", len(w.trace)-1, op, n, w.number(p), p.node+1, got, want)
	}
}

// lookAtAll has a program compare every name and every file.
func (w *world) lookAtAll(p *program) {
	w.t.Helper()
	w.do(p, "scan", ".")
	for _, d := range dirs {
		w.do(p, "scan", d)
	}
	for _, f := range names {
		w.do(p, "load", f)
	}
	for i := range slots {
		w.look(p, i)
	}
}
