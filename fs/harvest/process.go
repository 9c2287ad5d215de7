package harvest

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/child"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// process is a running child process.
type process struct {
	cmd     *exec.Cmd
	in      *os.File
	out     *os.File
	replies *bufio.Reader // of out
	started time.Time
	exited  chan struct{}
}

// restartPause is the least time between two starts, for a child that dies as soon as it is
// started.
const restartPause = time.Second

// askLocked makes one round trip to the child, and starts one if there is none. A child that does
// not answer is killed.
func (h *Harvester) askLocked(q request) ([]uint32, error) {
	if h.stopped {
		return nil, errs.E(errs.Closed, "harvest", "")
	}
	if h.child == nil {
		if err := h.startLocked(); err != nil {
			return nil, err
		}
	}
	c := h.child
	results, err := c.ask(q, h.cfg.Timeout)
	if err != nil {
		h.killLocked(err)
		return nil, fmt.Errorf("harvest: %w", err)
	}
	return results, nil
}

// send sends a request.
func (c *process) send(q request, timeout time.Duration) error {
	if err := c.in.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err := c.in.Write(q.append(nil))
	return err
}

func (c *process) ask(q request, timeout time.Duration) ([]uint32, error) {
	if err := c.send(q, timeout); err != nil {
		return nil, err
	}
	if err := c.out.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	return readReply(c.replies, q.answers())
}

// startLocked starts a child and tells it what to watch.
func (h *Harvester) startLocked() error {
	cmd := child.Command(h.cfg.Log, "harvest child", h.cfg.Argv)
	c := &process{cmd: cmd, started: time.Now(), exited: make(chan struct{})}
	if err := c.start(); err != nil {
		h.cfg.Background(func() { h.restart(c.started) })
		return fmt.Errorf("start harvest child: %w", err)
	}
	for i := range h.others {
		h.others[i].Store(0)
	}
	pid := int64(cmd.Process.Pid)
	h.pid.Store(pid)
	go func() {
		err := cmd.Wait()
		h.pid.CompareAndSwap(pid, 0)
		h.cfg.Log.Debug("harvest child ended", "pid", pid, "err", err)
		close(c.exited)
		h.cfg.Background(func() { h.ended(c) })
	}()
	h.child, h.told = c, make(map[dsm.AreaID]time.Duration)
	err := c.send(request{op: opHello, path: h.cfg.Dir}, h.cfg.Timeout)
	if q := h.watchAllLocked(); err == nil && len(q.items) > 0 {
		err = c.send(q, h.cfg.Timeout)
	}
	if err != nil {
		h.killLocked(err)
	}
	return err
}

// start starts the process, connected by pipes that have deadlines.
func (c *process) start() error {
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

// ended starts another child when one has ended by itself.
func (h *Harvester) ended(c *process) {
	h.takeTurn()
	if h.child == c {
		h.cfg.Log.Warn("harvest child ended; starting another", "pid", c.cmd.Process.Pid)
		h.endLocked()
	}
	h.endTurn()
	h.restart(c.started)
}

// restart starts a child if there is something to watch and no child does. last is when the
// previous child was started, which may be just now.
func (h *Harvester) restart(last time.Time) {
	select {
	case <-h.cfg.Life.Done():
		return
	case <-time.After(time.Until(last.Add(restartPause))):
	}
	h.takeTurn()
	defer h.endTurn()
	watched := slices.ContainsFunc(h.cfg.Live(), func(a Area) bool { return a.Interval() > 0 })
	if h.stopped || h.child != nil || !watched {
		return
	}
	if err := h.startLocked(); err != nil {
		h.cfg.Log.Warn("harvest", "err", err)
	}
}

// Stop ends the child, which closes all its files.
func (h *Harvester) Stop() {
	h.takeTurn()
	defer h.endTurn()
	h.stopped = true
	h.endLocked()
}

// killLocked ends a child that does not work as it should. Another one will be started.
func (h *Harvester) killLocked(why error) {
	c := h.child
	h.cfg.Log.Warn("harvest child does not answer; starting another", "pid", c.cmd.Process.Pid, "err", why)
	c.kill(h.cfg.Log)
	h.endLocked()
}

// endLocked ends the child, if there is one, and waits for it.
func (h *Harvester) endLocked() {
	c := h.child
	if c == nil {
		return
	}
	h.child, h.told = nil, nil
	c.in.Close()
	defer c.out.Close()
	select {
	case <-c.exited:
		return
	case <-time.After(child.StopTimeout):
	}
	h.cfg.Log.Warn("harvest child does not end; killing it", "pid", c.cmd.Process.Pid)
	c.kill(h.cfg.Log)
	select {
	case <-c.exited:
	case <-time.After(child.StopTimeout): // it is stuck in the kernel, on a mount that hangs
	}
}

func (c *process) kill(log *slog.Logger) {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		log.Warn("kill harvest child", "err", err)
	}
}

// IsChild reports whether the thread belongs to the child.
func (h *Harvester) IsChild(tid uint32) bool {
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

// SeemsChild is a cheaper IsChild, for requests that get a correct answer either way, but that the
// child should not have to wait for. It caches threads that do not belong to the child instead of
// asking the kernel each time. If the child later gets a thread with a cached number, that thread
// is not recognized.
func (h *Harvester) SeemsChild(tid uint32) bool {
	other := &h.others[tid%uint32(len(h.others))]
	if other.Load() == tid {
		return false
	}
	is := h.IsChild(tid)
	if !is && h.pid.Load() != 0 {
		other.Store(tid)
	}
	return is
}

// Pid returns the process number of the child, 0 if there is none.
func (h *Harvester) Pid() int { return int(h.pid.Load()) }
