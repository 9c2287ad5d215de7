package hold_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// withPackage returns an interpreter of Python, and the environment in which it finds the package.
func withPackage(t *testing.T) (python string, environment []string) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	python, skip := harness.Interpreter()
	if skip != "" {
		t.Skip(skip)
	}
	return python, []string{"PYTHONPATH=" + filepath.Join(root, "pybind"), "PYTHONDONTWRITEBYTECODE=1"}
}

// TestClientsOutliveTheDaemon: programs that have attached by the client libraries go on while the daemon is killed again and again.
func TestClientsOutliveTheDaemon(t *testing.T) {
	python, with := withPackage(t)
	n := held(t)
	rnd := seeded(t)
	program := func(name string, words ...string) running {
		c := n.Program("env", append(append(with, words...), n.Mount, fmt.Sprint(rnd.Uint64()))...)
		if _, err := c.Do("begin"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return running{c, name}
	}
	all := []running{
		program("package", python, filepath.Join("clients", "area.py")),
		program("run", harness.Binary(), "run", "--", python, filepath.Join("clients", "mapped.py")),
	}
	last := 0
	for range *kills / 2 {
		last = killDaemon(t, n, last, time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
	}
	end(t, all, []*harness.Node{n})
	n.Stop()
}

// TestReaderOfADraftOutlivesTheDaemon: a process that has stored to a file which sums, and reads on, has the memory that it stored to. It gets what others add, also from the daemons that follow.
func TestReaderOfADraftOutlivesTheDaemon(t *testing.T) {
	python, with := withPackage(t)
	nodes := heldCluster(t, 2, "--lease", "10s").Nodes()
	c := nodes[0].Program("env", append(with, python, filepath.Join("clients", "reads_on.py"), nodes[0].Mount, nodes[1].Mount)...)
	last := 0
	for i := range 4 {
		for range 2 {
			if _, err := c.Do("add"); err != nil {
				t.Fatalf("after %d kills: %v", i, err)
			}
		}
		covered(t, nodes[0])
		last = killDaemon(t, nodes[0], last, 0, syscall.SIGKILL)
	}
	if _, err := c.Do("add"); err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestCProgramOutlivesTheDaemon: so do the threads of a program with dsmfs.h, which publish and wait for versions.
func TestCProgramOutlivesTheDaemon(t *testing.T) {
	follow, err := harness.Compile("follow", "gcc", "-O2", "-pthread", "-o", "{out}", "include/test/follow.c")
	if err != nil {
		t.Fatal(err)
	}
	rnd := seeded(t)
	n := held(t)
	if res := n.Run(limit, "truncate", "-s", "8192", filepath.Join(n.Mount, "w")); res.Err != nil {
		t.Fatalf("%v: %s", res.Err, res.Stderr)
	}
	var errOut strings.Builder
	cmd := n.Command(t.Context(), follow, "threads", filepath.Join(n.State(), "attach"))
	cmd.Stderr = &errOut
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := bufio.NewScanner(out)
	ready.Scan()
	last := 0
	for range *kills / 2 {
		last = killDaemon(t, n, last, time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
	}
	_, err = io.WriteString(in, "\n")
	if err = errors.Join(err, cmd.Wait()); err != nil {
		t.Errorf("%v: %s", err, errOut.String())
	}
	n.Stop()
}
