package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopLimit bounds how long a node may take to leave its cluster. It is more than a node gives itself.
const stopLimit = 40 * time.Second

// callLimit bounds one access to a mount. It is more than a request may take by default.
const callLimit = 60 * time.Second

// Node is one mount of a cluster and the daemon behind it, a real process.
type Node struct {
	c       *Cluster
	dir     string
	cmd     *exec.Cmd
	exited  chan struct{} // closed when the daemon is gone
	killed  bool          // by the test, so a dead mount is expected
	paused  atomic.Bool
	group   *cgroup  // nil unless Options.Limit bounds the memory
	Name    string   // n1, n2, ...
	Mount   string   // the mount point
	Address string   // host:port that it listens on
	Flags   []string // more flags of dsmfs mount, of this node alone
	Via     *Node    // which node to join; nil: the first that runs
}

// index counts the nodes from 1.
func (n *Node) index() int {
	i, _ := strconv.Atoi(n.Name[1:])
	return i
}

// Arguments are those of dsmfs mount for this node.
func (n *Node) Arguments() []string {
	memory := n.c.opts.Memory
	if i := n.index(); i <= len(n.c.opts.Memories) {
		memory = n.c.opts.Memories[i-1]
	}
	args := []string{"mount", n.Mount, "-f", "--listen", n.Address, "--name", n.Name, "--memory", memory,
		"--state", n.State(), "--log-level", logLevel(), "--log-file", n.LogFile()}
	switch hold := os.Getenv("DSMFS_TEST_HOLD"); {
	case !n.c.opts.Default:
		args = append(args, "--hold=off")
	case hold != "": // so that one can see what it costs
		args = append(args, "--hold="+hold)
	}
	if n.c.opts.Network == Namespaces && !n.c.opts.Secure {
		args = append(args, "--insecure")
	}
	for _, peer := range n.c.nodes {
		if peer != n && peer.Running() && (n.Via == nil || n.Via == peer) {
			args = append(args, "--join", peer.Address)
			if n.c.opts.Secure {
				args = append(args, "--token", peer.Token())
			}
			break
		}
	}
	return append(append(args, n.c.opts.Flags...), n.Flags...)
}

// Token is what dsmfs token prints for the node.
func (n *Node) Token(flags ...string) string {
	n.c.t.Helper()
	res := n.CLI(append([]string{"token", n.Mount}, flags...)...)
	if res.Err != nil {
		n.c.t.Fatalf("%s: token: %v: %s", n.Name, res.Err, res.Stderr)
	}
	return strings.TrimSpace(res.Stdout)
}

// State is the node's state directory.
func (n *Node) State() string { return filepath.Join(n.dir, "state") }

// LogFile is where the daemon logs.
func (n *Node) LogFile() string { return filepath.Join(n.dir, "log") }

func logLevel() string {
	if l := os.Getenv("DSMFS_TEST_LOG"); l != "" {
		return l
	}
	return "info"
}

// Start runs the daemon and returns when its mount is usable. A node that was
// stopped or killed comes back as a new member with the same name and address.
func (n *Node) Start() {
	n.c.t.Helper()
	if err := n.start(n.Arguments()); err != nil {
		n.c.t.Fatalf("%s: %v", n.Name, err)
	}
	if n.c.opts.Single && !n.c.single {
		if err := unix.Setxattr(n.Mount, "user.dsm.replicas", []byte("1"), 0); err != nil {
			n.c.t.Fatalf("%s: one copy of all files: %v", n.Name, err)
		}
		n.c.single = true
	}
}

func (n *Node) start(args []string) error {
	n.detach()
	out, err := os.OpenFile(filepath.Join(n.dir, "out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // the daemon has its own descriptor
	n.cmd = n.Command(context.Background(), Binary(), args...)
	n.cmd.Stdout, n.cmd.Stderr = out, out
	n.killed = false
	if err := n.cmd.Start(); err != nil {
		return err
	}
	exited, cmd := make(chan struct{}), n.cmd
	n.exited = exited
	go func() {
		_ = cmd.Wait() // how it ended is asked of ProcessState
		close(exited)
	}()
	ready := Eventually(startLimit, func() bool { return !n.Running() || mounted(n.Mount) })
	if !n.Running() || !ready {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("dsmfs %s: not usable after %v:\n%s", strings.Join(args, " "), startLimit, text)
	}
	res := n.Run(callLimit, "stat", "-f", n.Mount)
	if res.Err != nil {
		return fmt.Errorf("first access: %w: %s", res.Err, res.Stderr)
	}
	return nil
}

// Command makes a command that runs in the node's network with the cluster's tag.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	name, args = n.c.net.enter(n.index(), name, args)
	if n.group != nil {
		name, args = n.group.enter(name, args)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), tagVariable+"="+n.c.tag)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the tests, which then clean up
	cmd.WaitDelay = time.Second
	return cmd
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr string
	Code           int   // exit status, -1 if it did not exit by itself
	Err            error // nil for exit status 0
}

// Run runs a program in the node's network; it is killed at the limit.
func (n *Node) Run(limit time.Duration, name string, args ...string) Result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := n.Command(ctx, name, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("%s %v: killed after %v: %w", name, args, limit, ctx.Err())
	}
	res := Result{Stdout: out.String(), Stderr: errOut.String(), Code: -1, Err: err}
	if cmd.ProcessState != nil {
		res.Code = cmd.ProcessState.ExitCode()
	}
	return res
}

// CLI runs dsmfs with the arguments in the node's network.
func (n *Node) CLI(args ...string) Result { return n.Run(callLimit, Binary(), args...) }

// Running reports whether the daemon runs (or is paused).
func (n *Node) Running() bool {
	if n.exited == nil {
		return false
	}
	select {
	case <-n.exited:
		return false
	default:
		return true
	}
}

// Daemon returns the process id of the daemon as its state says it, 0 if there is none at the moment. Of a node that has a holder PID is that of the holder.
func (n *Node) Daemon() int {
	text, err := os.ReadFile(filepath.Join(n.State(), "pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// PID is the daemon's process id.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Stop unmounts with dsmfs umount and returns when the daemon has left.
func (n *Node) Stop() {
	n.c.t.Helper()
	if res := n.CLI("umount", n.Mount); res.Err != nil {
		n.c.t.Fatalf("%s: umount: %v: %s%s", n.Name, res.Err, res.Stdout, res.Stderr)
	}
	n.awaitStop()
}

// Kill ends the daemon with SIGKILL. Its mount stays, dead, until Start or the end.
func (n *Node) Kill() {
	n.c.t.Helper()
	n.killed, n.c.bereaved = true, true
	n.paused.Store(false)
	if err := n.cmd.Process.Kill(); err != nil {
		n.c.t.Fatalf("%s: kill: %v", n.Name, err)
	}
	<-n.exited
}

// ExpectDead says that the test has made an end of the daemon, and expects a dead mount.
func (n *Node) ExpectDead() {
	n.c.t.Helper()
	n.killed, n.c.bereaved = true, true
	select {
	case <-n.exited:
	case <-time.After(stopLimit):
		n.c.t.Fatalf("%s: the daemon still runs", n.Name)
	}
}

// Pause stops the daemon's process as SIGSTOP does. It does nothing any more when this returns.
func (n *Node) Pause() {
	n.c.t.Helper()
	n.paused.Store(true)
	if err := Stop(n.PID()); err != nil {
		n.c.t.Fatalf("%s: pause: %v", n.Name, err)
	}
}

// Resume lets a paused daemon go on. Any goroutine may call it.
func (n *Node) Resume() {
	n.c.t.Helper()
	if !n.resume() {
		n.c.t.Errorf("%s: resume: not paused", n.Name)
	}
}

func (n *Node) resume() (wasPaused bool) {
	if wasPaused = n.paused.CompareAndSwap(true, false); wasPaused {
		_ = n.cmd.Process.Signal(syscall.SIGCONT)
	}
	return wasPaused
}

// Rate limits what others can send to the node and it to them, in megabits per second; 0 lifts the limit.
func (n *Node) Rate(mbit int) {
	n.c.t.Helper()
	if err := n.c.net.rate(n.index(), mbit); err != nil {
		n.c.t.Fatalf("%s: rate: %v", n.Name, err)
	}
}

// Lose has the node lose a part of the packets that come to it, in percent; 0 after another number ends that.
func (n *Node) Lose(percent int) {
	n.c.t.Helper()
	if err := n.c.net.lose(n.index(), percent); err != nil {
		n.c.t.Fatalf("%s: lose: %v", n.Name, err)
	}
}

// signalStop asks the daemon to leave.
func (n *Node) signalStop() {
	if n.Running() {
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
	}
}

// bereavedPatience is how long the nodes of a cluster of which one was killed
// may try to leave it in order. They may be too few to agree on anything.
const bereavedPatience = 3 * time.Second

// leftWithoutOrder is the exit code of a daemon that was told twice to end.
const leftWithoutOrder = 13

// awaitStop waits until the daemon is gone and its mount with it; a daemon that
// does not go is an error and killed.
func (n *Node) awaitStop() {
	n.c.t.Helper()
	if n.exited == nil {
		return
	}
	if n.c.bereaved {
		select {
		case <-n.exited:
		case <-time.After(bereavedPatience):
			n.signalStop()
		}
	}
	select {
	case <-n.exited:
	case <-time.After(stopLimit):
		n.c.t.Errorf("%s: still running %v after it was told to stop", n.Name, stopLimit)
		_ = n.cmd.Process.Signal(syscall.SIGQUIT) // prints the stacks to its output
		select {
		case <-n.exited:
		case <-time.After(2 * time.Second):
			abort(n.Mount)
			_ = n.cmd.Process.Kill()
			<-n.exited
		}
	}
	state := n.cmd.ProcessState
	if !n.killed && !state.Success() && !(n.c.bereaved && state.ExitCode() == leftWithoutOrder) {
		n.c.t.Errorf("%s: ended with %v%s", n.Name, state, n.group.why())
	}
	if mounted(n.Mount) && !n.killed {
		n.c.t.Errorf("%s: stopped, but still mounted", n.Name)
	}
	n.detach()
}

// detach removes a mount that has no daemon.
func (n *Node) detach() {
	for mounted(n.Mount) {
		abort(n.Mount)
		err := syscall.Unmount(n.Mount, syscall.MNT_DETACH)
		if err != nil && !errors.Is(err, syscall.EINVAL) {
			n.c.t.Errorf("%s: unmount: %v", n.Name, err)
			return
		}
	}
}
