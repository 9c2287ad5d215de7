package harness

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// TB is what the harness wants of a testing.TB; benchmarks bring their own.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
	Failed() bool
}

var tools struct {
	once                 sync.Once
	dir                  string // of what was built
	dsmfs, client, skips string
	err                  error
}

// Prepare builds the programs that the harness runs, once per process. skip says
// why nothing can run on this machine, or is empty. DSMFS_BIN names a ready-made
// dsmfs, for example one built with the race detector.
func Prepare() (skip string, err error) {
	tools.once.Do(func() {
		if tools.skips = missing(); tools.skips != "" {
			return
		}
		tools.err = build()
	})
	return tools.skips, tools.err
}

// Main is the TestMain of a package that mounts: it prepares, runs the tests, and takes down what they have left, also when a signal ends them.
// name is that of the package, for messages. It returns the exit code.
func Main(m interface{ Run() int }, name string) int {
	flag.Parse()
	skip, err := Prepare()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	if skip != "" {
		fmt.Fprintf(os.Stderr, "%s: everything that mounts is skipped: %s\n", name, skip)
	}
	defer Discard()
	interrupted, code := make(chan os.Signal, 1), make(chan int, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() { code <- m.Run() }()
	select {
	case c := <-code:
		return c
	case <-interrupted:
		return 1
	}
}

// Discard removes what Prepare built and takes down the clusters that still run.
func Discard() {
	closeAll()
	if tools.dir != "" {
		_ = os.RemoveAll(tools.dir)
	}
}

// Binary returns the path of dsmfs.
func Binary() string { return tools.dsmfs }

// Root returns the root directory of the source tree, seen from the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = up
	}
}

func missing() string {
	if os.Geteuid() != 0 {
		return "mounting and network namespaces need root"
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return "no /dev/fuse: " + err.Error()
	}
	for _, tool := range []string{"gcc", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err.Error()
		}
	}
	return ""
}

func build() error {
	root, err := Root()
	if err != nil {
		return err
	}
	if tools.dir, err = os.MkdirTemp("", "dsmfs-tools-"); err != nil {
		return err
	}
	if err := os.Chmod(tools.dir, 0o755); err != nil { // tests run dsmfs as another user too
		return err
	}
	tools.client = filepath.Join(tools.dir, "client")
	sources := filepath.Join(root, "integration", "client")
	if err := compile(root, "gcc", "-O2", "-pthread", "-o", tools.client,
		filepath.Join(sources, "client.c"), filepath.Join(sources, "memory.c")); err != nil {
		return err
	}
	if bin := os.Getenv("DSMFS_BIN"); bin != "" {
		tools.dsmfs, err = filepath.Abs(bin)
		return err
	}
	tools.dsmfs = filepath.Join(tools.dir, "dsmfs")
	return compile(root, "go", "build", "-o", tools.dsmfs, "./cmd/dsmfs")
}

// Compile runs a compiler in the root of the source tree and returns the path of
// the program called name that it was told to make with -o.
func Compile(name string, command ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	out := filepath.Join(tools.dir, name)
	for i, word := range command {
		if word == "{out}" {
			command[i] = out
		}
	}
	return out, compile(root, command...)
}

func compile(dir string, command ...string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v: %w\n%s", command, err, out.Bytes())
	}
	return nil
}

// Eventually polls until what is true and reports whether it became so in time.
// It is for facts of other processes, which no channel tells of.
func Eventually(limit time.Duration, what func() bool) bool {
	const period = 5 * time.Millisecond
	for deadline := time.Now().Add(limit); ; time.Sleep(period) {
		if what() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// exists reports whether a path that is not below a mount is there.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
