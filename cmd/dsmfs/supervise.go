package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/fs"
)

// supervisedVariable is set in the environment of a child of supervise.
const supervisedVariable = "DSMFS_SUPERVISED"

// isSupervised reports whether this process may touch the mount, because it is a child that can be
// left behind.
func isSupervised() bool { return os.Getenv(supervisedVariable) != "" }

// supervise runs dsmfs with the arguments as a child that touches the mount at point, and prints
// what the child prints. After the limit it kills the child and does not wait for its end: a
// process whose request was taken by the daemon and not answered stays in the kernel, whatever
// signal it gets.
func (p *program) supervise(point string, limit time.Duration, args ...string) error {
	cmd := exec.Command(selfPath, args...)
	cmd.Env = append(os.Environ(), supervisedVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var err error
	select {
	case err = <-done:
	case <-time.After(limit):
		_ = cmd.Process.Kill() // it may be ending at this moment
		return silent(point, fmt.Sprintf("does not answer within %v", limit))
	}
	if _, werr := p.out.Write(out.Bytes()); werr != nil {
		return werr
	}
	if _, werr := p.err.Write(errOut.Bytes()); werr != nil {
		return werr
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return &exitError{exitCode(exit.ExitCode()), errPrinted}
	}
	return err
}

// errPrinted is an error whose text the child has already printed.
var errPrinted = errors.New("")

// silent returns the error for a mount whose daemon is gone or hangs.
func silent(point, what string) error {
	who := "its daemon"
	if pid, _ := daemonOf(point); pid != 0 {
		who = fmt.Sprintf("its daemon (pid %d)", pid)
	}
	return fail(exitSilent, "%s: %s %s; dsmfs umount --force %s removes the mount", point, who, what, point)
}

// touched turns an error from touching the mount into one that says what it means.
func touched(point string, err error) error {
	if fs.Dead(err) {
		return fail(exitSilent, "%s is a dead mount: its daemon is gone; dsmfs umount %s removes it, dsmfs mount --force replaces it", point, point)
	}
	return err
}
