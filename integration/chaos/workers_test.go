package chaos

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// bound is how long anything may take after the faults are over.
const bound = 60 * time.Second

// pace is how long a worker waits between two operations.
const pace = 40 * time.Millisecond

// now is the clock of the workers.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // there is no Linux without it
	}
	return t.Nano()
}

// worker is a process of a workload on a node.
type worker struct {
	workload string
	number   int
	node     int
	cmd      *exec.Cmd
	in       io.Closer
	ended    chan struct{} // closed when its output has

	mu struct {
		sync.Mutex
		ops []operation
		err error
	}
}

// crew is all workers of a round. Its methods are for the goroutine of the test.
type crew struct {
	t      *testing.T
	c      *harness.Cluster
	python string
	seed   uint64
	last   map[string]int // the number of the youngest worker of each workload
	all    []*worker
}

// start starts a worker that does an action.
func (c *crew) start(workload, action string, node int) *worker {
	c.t.Helper()
	root, err := harness.Root()
	if err != nil {
		c.t.Fatal(err)
	}
	c.last[workload]++
	n := c.c.Node(node)
	w := &worker{workload: workload, number: c.last[workload], node: node, ended: make(chan struct{})}
	w.cmd = n.Command(context.Background(), c.python, "-W", "ignore", "-m", "integration.chaos.workers", workload, action, n.Mount,
		strconv.Itoa(w.number), strconv.FormatUint(c.seed, 10), n.Name, fmt.Sprint(pace.Seconds()))
	w.cmd.Env = append(w.cmd.Env, "PYTHONPATH="+root+":"+filepath.Join(root, "pybind"), "PYTHONDONTWRITEBYTECODE=1")
	var text errorText
	w.cmd.Stderr = &text
	in, err := w.cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if w.in = in; w.cmd.Start() != nil {
		c.t.Fatalf("%s: cannot start %v", n.Name, w.cmd.Args)
	}
	go func() {
		defer close(w.ended)
		const longest = 4 << 20
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, longest)
		for lines.Scan() {
			w.mu.Lock()
			ops, err := fold(w.mu.ops, lines.Text(), w.number, w.node)
			if w.mu.ops = ops; err != nil && w.mu.err == nil {
				w.mu.err = err
			}
			w.mu.Unlock()
		}
		if err := w.cmd.Wait(); err != nil && text.Len() > 0 {
			w.mu.Lock()
			w.mu.err = fmt.Errorf("%s on n%d: %w: %s", workload, node, err, &text)
			w.mu.Unlock()
		}
	}()
	c.all = append(c.all, w)
	return w
}

// history returns what the worker has done so far.
func (w *worker) history() []operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]operation(nil), w.mu.ops...)
}

// runs reports whether the process is there.
func (w *worker) runs() bool {
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}

// end has the worker end after its operation and reports whether it did.
func (w *worker) end() bool {
	_ = w.in.Close() // it reads that
	select {
	case <-w.ended:
		return true
	case <-time.After(bound):
		w.kill()
		return false
	}
}

// kill ends the worker in the middle of what it does.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // it may have ended
	select {
	case <-w.ended:
	case <-time.After(bound): // in a call that its daemon does not answer: the harness reports it
	}
}

// once runs an action to its end and returns what it did.
func (c *crew) once(workload, action string, node int) []operation {
	c.t.Helper()
	w := c.start(workload, action, node)
	if !w.end() {
		c.t.Errorf("%s: %s on n%d does not end", workload, action, node)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.err != nil {
		c.t.Errorf("%s: %s: %v", workload, action, w.mu.err)
	}
	return w.mu.ops
}

// on returns the workers of a node that are there.
func (c *crew) on(node int) (some []*worker) {
	for _, w := range c.all {
		if w.node == node && w.runs() {
			some = append(some, w)
		}
	}
	return some
}

// stop kills all workers, at the end of a test.
func (c *crew) stop() {
	for _, w := range c.all {
		if w.runs() {
			w.kill()
		}
	}
}

// histories are the operations of each workload in the order in which they began.
func (c *crew) histories() map[string][]operation {
	all := map[string][]operation{}
	for _, w := range c.all {
		all[w.workload] = append(all[w.workload], w.history()...)
	}
	for _, ops := range all {
		byCall(ops)
	}
	return all
}

// errorText keeps the beginning of what a process says on standard error.
type errorText struct {
	mu   sync.Mutex
	text []byte
}

func (e *errorText) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	const most = 4096
	e.text = append(e.text, p[:min(len(p), most-len(e.text))]...)
	return len(p), nil
}

func (e *errorText) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.text)
}

func (e *errorText) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return string(e.text)
}
