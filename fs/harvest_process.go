package fs

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// child is a running child process.
type child struct {
	cmd     *exec.Cmd
	in      *os.File
	out     *os.File
	replies *bufio.Reader // of out
	started time.Time
	exited  chan struct{}
}

const (
	// childStopTimeout is how long a child may take to end at the end of its input.
	childStopTimeout = 5 * time.Second
	// childRestartPause is the least time from start to start: a child that
	// dies at once does so again.
	childRestartPause = time.Second
)

// askLocked makes one round trip, with a new child if there is none. A child
// that does not answer is killed.
func (h *harvester) askLocked(q harvestRequest) ([]uint32, error) {
	if h.mu.stopped {
		return nil, errs.E(errs.Closed, "harvest", "")
	}
	if h.mu.child == nil {
		if err := h.startLocked(); err != nil {
			return nil, err
		}
	}
	c := h.mu.child
	results, err := c.ask(q, h.b.cfg.FaultTimeout)
	if err != nil {
		h.killLocked(err)
		return nil, fmt.Errorf("harvest: %w", err)
	}
	return results, nil
}

// send sends a request.
func (c *child) send(q harvestRequest, timeout time.Duration) error {
	if err := c.in.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err := c.in.Write(q.append(nil))
	return err
}

func (c *child) ask(q harvestRequest, timeout time.Duration) ([]uint32, error) {
	if err := c.send(q, timeout); err != nil {
		return nil, err
	}
	if err := c.out.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	return readHarvestReply(c.replies, len(q.items))
}

// startLocked starts a child and tells it what to watch.
func (h *harvester) startLocked() error {
	argv := h.b.cfg.HarvestArgv
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	// One thread does all the work; its own process group keeps a Ctrl-C in the
	// terminal from ending it before the daemon's last harvest.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = &lineLogger{log: h.b.log, child: "harvest child"}
	c := &child{cmd: cmd, started: time.Now(), exited: make(chan struct{})}
	if err := c.start(); err != nil {
		h.b.background.run(func() { h.restart(c.started) })
		return fmt.Errorf("start harvest child: %w", err)
	}
	pid := int64(cmd.Process.Pid)
	h.pid.Store(pid)
	go func() {
		err := cmd.Wait()
		h.pid.CompareAndSwap(pid, 0)
		h.b.log.Debug("harvest child ended", "pid", pid, "err", err)
		close(c.exited)
		h.b.background.run(func() { h.ended(c) })
	}()
	h.mu.child, h.mu.told = c, make(map[dsm.AreaID]time.Duration)
	err := c.send(harvestRequest{op: harvestHello, mount: h.b.cfg.Mountpoint}, h.b.cfg.FaultTimeout)
	if q := h.watchAllLocked(); err == nil && len(q.items) > 0 {
		err = c.send(q, h.b.cfg.FaultTimeout)
	}
	if err != nil {
		h.killLocked(err)
	}
	return err
}

// start starts the process, with pipes that have deadlines.
func (c *child) start() error {
	in, toChild, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	fromChild, out, err := os.Pipe()
	if err != nil {
		toChild.Close()
		return err
	}
	defer out.Close()
	c.cmd.Stdin, c.cmd.Stdout = in, out
	c.in, c.out, c.replies = toChild, fromChild, bufio.NewReader(fromChild)
	if err := c.cmd.Start(); err != nil {
		toChild.Close()
		fromChild.Close()
		return err
	}
	return nil
}

// ended sees to it that there is another child if a child ended by itself.
func (h *harvester) ended(c *child) {
	h.mu.Lock()
	if h.mu.child == c {
		h.b.log.Warn("harvest child ended; starting another", "pid", c.cmd.Process.Pid)
		h.endLocked()
	}
	h.mu.Unlock()
	h.restart(c.started)
}

// restart starts a child if there is something to watch and none does. The last
// one was started at a time that may be just now.
func (h *harvester) restart(last time.Time) {
	select {
	case <-h.b.life.Done():
		return
	case <-time.After(time.Until(last.Add(childRestartPause))):
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	watched := h.b.opens.all(func(a *openArea) bool { return a.live.Load() > 0 && a.interval() > 0 })
	if h.mu.stopped || h.mu.child != nil || len(watched) == 0 {
		return
	}
	if err := h.startLocked(); err != nil {
		h.b.log.Warn("harvest", "err", err)
	}
}

// stop ends the child, which closes every file.
func (h *harvester) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.stopped = true
	h.endLocked()
}

// killLocked ends a child that does not do what it is there for. There will be another.
func (h *harvester) killLocked(why error) {
	c := h.mu.child
	h.b.log.Warn("harvest child does not answer; starting another", "pid", c.cmd.Process.Pid, "err", why)
	c.kill(h.b.log)
	h.endLocked()
}

// endLocked ends the child, if there is one, and waits for it.
func (h *harvester) endLocked() {
	c := h.mu.child
	if c == nil {
		return
	}
	h.mu.child, h.mu.told = nil, nil
	c.in.Close()
	defer c.out.Close()
	select {
	case <-c.exited:
		return
	case <-time.After(childStopTimeout):
	}
	h.b.log.Warn("harvest child does not end; killing it", "pid", c.cmd.Process.Pid)
	c.kill(h.b.log)
	select {
	case <-c.exited:
	case <-time.After(childStopTimeout): // in the kernel, waiting for a mount that hangs
	}
}

func (c *child) kill(log *slog.Logger) {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		log.Warn("kill harvest child", "err", err)
	}
}

// isChild reports whether a thread is one of the child's.
func (h *harvester) isChild(tid uint32) bool {
	pid := h.pid.Load()
	if pid == 0 || tid == 0 {
		return false
	}
	if pid == int64(tid) {
		return true
	}
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", pid, tid))
	return err == nil
}

// lineLogger writes what a child prints to the log.
type lineLogger struct {
	log   *slog.Logger
	child string
}

func (l *lineLogger) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		l.log.Warn(l.child, "stderr", strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}
