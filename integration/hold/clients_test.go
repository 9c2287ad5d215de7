package hold_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestClientsOutliveTheDaemon: programs that have attached by the client libraries go on while the daemon is killed again and again.
func TestClientsOutliveTheDaemon(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	python, skip := harness.Interpreter()
	if skip != "" {
		t.Skip(skip)
	}
	n := held(t)
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano()) % 1e9
	}
	t.Logf("-seed=%d", s)
	rnd := rand.New(rand.NewPCG(s, 0))
	with := []string{"PYTHONPATH=" + filepath.Join(root, "pybind"), "PYTHONDONTWRITEBYTECODE=1"}
	program := func(words ...string) *harness.Client {
		return n.Program("env", append(append(with, words...), n.Mount, fmt.Sprint(s))...)
	}
	running := map[string]*harness.Client{
		"package": program(python, filepath.Join("clients", "area.py")),
		"run":     program(harness.Binary(), "run", "--", python, filepath.Join("clients", "mapped.py")),
	}
	for name, c := range running {
		if _, err := c.Do("begin"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	last := 0
	for range *kills / 2 {
		last = killDaemon(t, n, last, time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
	}
	for name, c := range running {
		words, err := c.Do("end")
		t.Logf("%s: %s %v", name, strings.Join(words, " "), err)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if t.Failed() {
		log, _ := os.ReadFile(n.LogFile())
		t.Logf("log:\n%s", log)
	}
	for _, c := range running {
		c.Close()
	}
	n.Stop()
}

// TestCProgramOutlivesTheDaemon: so do the threads of a program with dsmfs.h, which publish and wait for versions.
func TestCProgramOutlivesTheDaemon(t *testing.T) {
	follow, err := harness.Compile("follow", "gcc", "-O2", "-pthread", "-o", "{out}", "include/test/follow.c")
	if err != nil {
		t.Fatal(err)
	}
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
		last = killDaemon(t, n, last, time.Duration(rand.Int64N(int64(longest))), syscall.SIGKILL)
	}
	_, err = io.WriteString(in, "\n")
	if err = errors.Join(err, cmd.Wait()); err != nil {
		t.Errorf("%v: %s", err, errOut.String())
	}
	n.Stop()
}
