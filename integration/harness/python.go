package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Interpreter returns a Python that has NumPy: DSMFS_PYTHON, the one of .venv,
// or python3. skip says why there is none.
var Interpreter = sync.OnceValues(func() (path, skip string) {
	tried := []string{os.Getenv("DSMFS_PYTHON")}
	if root, err := Root(); err == nil {
		tried = append(tried, filepath.Join(root, ".venv", "bin", "python"))
	}
	for _, python := range append(tried, "python3") {
		if python != "" && exec.Command(python, "-c", "import numpy").Run() == nil {
			return python, ""
		}
	}
	return "", "no Python with NumPy: make a virtual environment with: python3 -m venv .venv && .venv/bin/pip install -r requirements.txt"
})

// Python runs a program at the node, with the mount in the variable mnt, and
// returns what it printed. It ends the test if the program fails.
func (n *Node) Python(code string) string {
	n.c.t.Helper()
	res := n.TryPython(code)
	if res.Err != nil {
		n.c.t.Fatalf("%s: python: %v\n%s%s", n.Name, res.Err, res.Stdout, res.Stderr)
	}
	return strings.TrimSpace(res.Stdout)
}

// TryPython is Python for any goroutine and for programs that may fail.
func (n *Node) TryPython(code string) Result {
	python, skip := Interpreter()
	if skip != "" {
		return Result{Code: -1, Err: exec.ErrNotFound, Stderr: skip}
	}
	const limit = 2 * time.Minute
	return n.Run(limit, python, "-c", "import sys, os, numpy\nmnt = sys.argv[1]\n"+code, n.Mount)
}
