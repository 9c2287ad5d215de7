package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/fs"
)

// devNode is a child process of dev: one node of the local cluster.
type devNode struct {
	name, mount, state, addr string
	made                     bool // the mount point did not exist before
	killed                   bool // by an order
	d                        *daemon
}

// dev is a cluster of real processes on this machine.
type dev struct {
	p       *program
	dir     string
	made    bool // dir did not exist before
	temp    string
	nodes   []*devNode
	flags   []string // given to every node
	stop    chan os.Signal
	started chan startResult
	ended   chan *devNode
}

type startResult struct {
	addr string
	err  error
}

// devUnmount is how long a node that is told to end waits for programs that use its mount. The
// nodes end one after the other.
const devUnmount = time.Second

const most = 64 // nodes

// devVerb runs a cluster until it is told to end.
func devVerb(p *program, args []string) error {
	f := p.flags("dev")
	count := f.Int("nodes", 3, "how many nodes")
	var memory byteSize
	f.Var(&memory, "memory", "of each node, as in mount; default: an equal part of what mount takes")
	timeout := f.Duration("fault-timeout", fs.DefaultFaultTimeout, "as in mount")
	level := f.String("log-level", "info", "as in mount")
	orders := f.Bool("orders", false, "obey lines of standard input, to see what failures do: 'kill NAME', such as node2, and 'add'")
	if err := parse(f, args, 1, 1, "--nodes N DIR [flags]"); err != nil {
		return err
	}
	if *count < 1 || *count > most {
		return fail(exitUsage, "dev: --nodes %d: want 1 to %d", *count, most)
	}
	if memory == 0 {
		memory = max(defaultMemory()/byteSize(*count), 64<<20)
	} else if err := checkMemory(memory, usableMemory()); err != nil {
		return err
	}
	if err := checkMachine(); err != nil {
		return err
	}
	dir, err := filepath.Abs(f.Arg(0))
	if err != nil {
		return err
	}
	// A node gets SIGTERM when the thread that started it ends, so that no node outlives a dev that
	// was killed. So it must not be a thread that the runtime ends at will.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	d := &dev{p: p, dir: dir, stop: make(chan os.Signal, 2), started: make(chan startResult, 1), ended: make(chan *devNode, most)}
	signal.Notify(d.stop, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(d.stop)
	if err := d.prepare(*count); err != nil {
		return err
	}
	d.flags = []string{"--unmount-timeout", devUnmount.String(), "--memory", strconv.FormatInt(int64(memory), 10), "--fault-timeout", timeout.String(), "--log-level", *level}
	var obeyed <-chan string
	if *orders {
		obeyed = readOrders(p.in)
	}
	err = d.run(obeyed)
	return errors.Join(err, d.clean())
}

// prepare makes the directories.
func (d *dev) prepare(count int) error {
	_, err := os.Stat(d.dir)
	d.made = errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return withCode(exitPoint, err)
	}
	if d.temp, err = os.MkdirTemp("", "dsmfs-dev-"); err != nil {
		return err
	}
	if err := os.Chmod(d.temp, 0o711); err != nil { // every user may use the attach sockets in it
		return errors.Join(err, d.clean())
	}
	for range count {
		if _, err := d.newNode(); err != nil {
			return errors.Join(err, d.clean())
		}
	}
	return nil
}

// newNode makes the directory of another node.
func (d *dev) newNode() (*devNode, error) {
	n := &devNode{name: fmt.Sprintf("node%d", len(d.nodes)+1)}
	n.mount, n.state = filepath.Join(d.dir, n.name), filepath.Join(d.temp, n.name)
	err := os.Mkdir(n.mount, 0o755)
	n.made = err == nil
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, withCode(exitPoint, err)
	}
	d.nodes = append(d.nodes, n)
	return n, nil
}

// run starts the nodes, each of which joins the first, and obeys orders until it is told to end or
// a node ends by itself. Then it stops them all.
func (d *dev) run(orders <-chan string) error {
	for _, n := range d.nodes {
		stopped, err := d.start(n, d.nodes[0].addr)
		if err != nil {
			d.abandon()
			return err
		}
		if stopped {
			return d.stopAll()
		}
	}
	fmt.Fprintln(d.p.out, "ready: end with Ctrl-C")
	for {
		select {
		case <-d.stop:
			return d.stopAll()
		case order := <-orders:
			if d.obey(order) {
				return d.stopAll()
			}
		case n := <-d.ended:
			if n.killed {
				continue
			}
			d.abandon()
			return fail(exitDev, "%s", n.died("ended by itself"))
		}
	}
}

// start starts a node, waits until it is usable, and prints that. stopped reports that dev was told
// to end meanwhile.
func (d *dev) start(n *devNode, first string) (stopped bool, err error) {
	args := append([]string{n.mount, "--listen", "127.0.0.1:0", "--name", n.name, "--state", n.state,
		"--log-file", n.state + ".log", "--force", "--hold=off"}, d.flags...)
	if first != "" {
		args = append(args, "--join", first)
	}
	// It has its own process group, so that Ctrl-C reaches only dev, which then stops the nodes in
	// order.
	n.d, err = startDaemon(args, n.state+".log", &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM})
	if err != nil {
		return false, fmt.Errorf("start %s: %w", n.name, err)
	}
	go func() {
		addr, err := n.d.await()
		d.started <- startResult{addr, err}
	}()
	select {
	case r := <-d.started:
		if r.err != nil {
			return false, &exitError{codeOf(r.err), fmt.Errorf("%s: %w", n.name, r.err)}
		}
		n.addr = r.addr
		fmt.Fprintf(d.p.out, "%s  %s  %s  pid %d\n", n.name, n.mount, n.addr, n.d.cmd.Process.Pid)
		go func() {
			<-n.d.exited
			d.ended <- n
		}()
		return false, nil
	case s := <-d.stop:
		d.stop <- s
		return true, nil
	}
}

// died describes how a node ended; what begins the sentence.
func (n *devNode) died(what string) string {
	text := fmt.Sprintf("%s (pid %d) %s: %v", n.name, n.d.cmd.Process.Pid, what, n.d.cmd.ProcessState)
	if out := strings.TrimSpace(n.d.output.String()); out != "" {
		text += "\n" + out
	}
	if log := lastLines(n.state+".log", 0, 10); log != "" {
		text += "\nthe end of its log:\n" + log
	}
	return text
}

// stopAll ends the nodes, the last one first, so that the others have a node to hand over to. A
// second signal kills those that are left.
func (d *dev) stopAll() error {
	for len(d.stop) > 0 {
		<-d.stop
	}
	var failed []error
	for i := len(d.nodes) - 1; i >= 0; i-- {
		n := d.nodes[i]
		if n.d == nil {
			continue
		}
		if err := d.stopNode(n); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// abandon ends all nodes at once after one has failed. What that node was the home of is lost, and
// with half of the cluster gone no node can leave in good order. So they get a moment to try, and
// then a second signal.
func (d *dev) abandon() {
	const moment = 2 * time.Second
	for _, pause := range []time.Duration{moment, leaveLimit, leaveLimit} {
		limit := time.After(pause)
		for _, n := range d.nodes {
			if n.d != nil {
				_ = n.d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			}
		}
		if d.allEnded(limit) {
			return
		}
	}
	for _, n := range d.nodes {
		if n.d != nil {
			_ = n.d.cmd.Process.Kill() // likewise
		}
	}
	d.allEnded(nil)
}

// allEnded waits until every node has ended, and reports whether that was before the limit.
func (d *dev) allEnded(limit <-chan time.Time) bool {
	for _, n := range d.nodes {
		if n.d == nil {
			continue
		}
		select {
		case <-n.d.exited:
		case <-limit:
			return false
		}
	}
	return true
}

func (d *dev) stopNode(n *devNode) error {
	select {
	case <-n.d.exited: // its end has been reported, or it was never ready
		return nil
	default:
	}
	_ = n.d.cmd.Process.Signal(syscall.SIGTERM) // it may be ending at this moment
	limit := time.NewTimer(leaveLimit + 10*time.Second)
	defer limit.Stop()
	select {
	case <-n.d.exited:
		if !n.d.cmd.ProcessState.Success() {
			return fail(exitLeave, "%s", n.died("did not leave cleanly"))
		}
		return nil
	case <-d.stop:
	case <-limit.C:
	}
	_ = n.d.cmd.Process.Kill() // likewise
	<-n.d.exited
	return fail(exitLeave, "%s did not leave in time and was killed", n.name)
}

// clean removes the mounts of killed nodes, and what prepare made.
func (d *dev) clean() error {
	var failed []error
	for _, n := range d.nodes {
		if errors.Is(fs.CheckMountpoint(n.mount), fs.ErrDeadMount) {
			failed = append(failed, fs.UnmountPath(n.mount, true))
		}
		if n.made {
			failed = append(failed, removeEmpty(n.mount))
		}
	}
	if d.made {
		failed = append(failed, removeEmpty(d.dir))
	}
	return errors.Join(append(failed, os.RemoveAll(d.temp))...)
}

// removeEmpty removes a directory unless something is in it.
func removeEmpty(dir string) error {
	if err := os.Remove(dir); !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
