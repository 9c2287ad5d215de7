package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// readyVariable names the environment variable with the descriptor on which a
// child process tells its parent that the mount is usable, or why it is not.
const readyVariable = "DSMFS_READY_FD"

// news is what a child tells its parent, once.
type news struct {
	Ready bool
	Addr  string   `json:",omitempty"` // of the node, when it is ready
	Error string   `json:",omitempty"` // otherwise
	Code  exitCode `json:",omitempty"`
}

// reporter sends news to the parent process; a nil reporter sends nothing.
type reporter struct{ pipe *os.File }

// newReporter returns the reporter for the parent of this process, nil if the parent does not wait
// for news. It removes the variable from the environment, so that children of this process do not
// report.
func newReporter() (*reporter, error) {
	text, ok := os.LookupEnv(readyVariable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(readyVariable); err != nil {
		return nil, err
	}
	var fd int
	if _, err := fmt.Sscan(text, &fd); err != nil || fd < 3 {
		return nil, fail(exitUsage, "%s=%q is no descriptor", readyVariable, text)
	}
	unix.CloseOnExec(fd)
	return &reporter{os.NewFile(uintptr(fd), "ready")}, nil
}

// tell ends the wait of the parent, and reports whether it did. Only the first call does.
func (r *reporter) tell(n news) bool {
	if r == nil || r.pipe == nil {
		return false
	}
	err := json.NewEncoder(r.pipe).Encode(n)
	_ = r.pipe.Close() // the parent may be gone
	r.pipe = nil
	return err == nil
}

// daemon is a child process that mounts.
type daemon struct {
	cmd    *exec.Cmd
	ready  *os.File      // where the news arrives
	output *bytes.Buffer // its standard error, until that is its log
	log    string        // path of its log
	before int64         // bytes of the log that were there before
	exited chan struct{} // closed when it has ended, with cmd.ProcessState set
}

// selfPath is the program that is running, even if its file has been replaced by one that speaks
// another protocol to its children.
const selfPath = "/proc/self/exe"

// startDaemon runs "dsmfs mount -f ARGS" as a child. attr decides how it is attached to this
// process.
func startDaemon(args []string, log string, attr *syscall.SysProcAttr) (*daemon, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }() // the child has its own copy
	// The daemon must not keep descriptors that the shell left open in this process.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("close_range: %w", err)
	}
	d := &daemon{ready: r, output: new(bytes.Buffer), log: log, exited: make(chan struct{})}
	if info, err := os.Stat(log); err == nil {
		d.before = info.Size()
	}
	d.cmd = exec.Command(selfPath, append([]string{"mount", "-f"}, args...)...)
	d.cmd.Env = append(os.Environ(), readyVariable+"=3")
	d.cmd.ExtraFiles = []*os.File{w}
	d.cmd.SysProcAttr = attr
	d.cmd.Stderr = d.output
	if err := d.cmd.Start(); err != nil {
		_ = r.Close()
		return nil, err
	}
	go func() {
		_ = d.cmd.Wait() // ProcessState has the result
		close(d.exited)
	}()
	return d, nil
}

// await returns when the mount is usable, with the node's address, or the
// child's own error.
func (d *daemon) await() (addr string, err error) {
	defer func() { _ = d.ready.Close() }()
	var n news
	switch err := json.NewDecoder(d.ready).Decode(&n); {
	case errors.Is(err, io.EOF): // it died without sending news
		<-d.exited
		text := strings.TrimSpace(d.output.String())
		if text == "" {
			text = lastLines(d.log, d.before, 30)
		}
		return "", fail(exitDied, "the daemon ended before the mount was usable (%v):\n%s", d.cmd.ProcessState, text)
	case err != nil:
		return "", fail(exitDied, "the daemon reports nonsense: %w", err)
	case !n.Ready:
		<-d.exited
		return "", &exitError{n.Code, errors.New(n.Error)}
	}
	return n.Addr, nil
}

// background mounts in a process of its own and returns when the mount is usable.
func background(c mountConfig, args []string) error {
	log := c.logFile
	if point, err := filepath.Abs(c.point); err == nil && log == "" {
		log = logPlace(c.state, point)
	}
	d, err := startDaemon(append([]string{"--" + detachedFlag}, args...), log, &syscall.SysProcAttr{Setsid: true})
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	_, err = d.await()
	return err
}
