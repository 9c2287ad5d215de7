package fs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// harvester gets at the stores that programs make into their mappings. The
// kernel tells nobody of a store to a page that is mapped already, but
// sync_file_range makes it send the dirty pages as WRITE requests. That
// takes an open file of the mount, which the daemon must not have (see the
// package documentation); so a child process has it.
//
// The child is started at the first harvest and again when it died. It has a
// file open only while a program of this node has it open for writing: mu is
// held over a round trip so that forget comes after every sync that might open it.
type harvester struct {
	b   *bridge
	pid atomic.Int64 // of the child, 0 if there is none

	mu struct {
		sync.Mutex
		child   *child
		known   map[dsm.AreaID]struct{} // areas the child may have open
		stopped bool
	}
}

// child is a running child process.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	// outFile is under out, for its deadline.
	outFile *os.File
	exited  chan struct{}
}

// target is what to harvest; n = 0 is up to the end.
type target struct {
	area   *openArea
	off, n int64
}

// harvested is what became of a target.
type harvested struct {
	err  error
	took time.Duration
}

// childStopTimeout is how long a child may take to end at the end of its input.
const childStopTimeout = 5 * time.Second

// sync harvests the targets in one round trip. Areas that no program can store
// into any more are skipped: nothing of theirs is left with the kernel.
func (h *harvester) sync(targets []target) []harvested {
	out := make([]harvested, len(targets))
	h.mu.Lock()
	defer h.mu.Unlock()
	var items []harvestItem
	var at []int
	for i, t := range targets {
		if t.area.live.Load() > 0 {
			items = append(items, harvestItem{ino: uint64(t.area.id), off: uint64(t.off), n: uint64(t.n)})
			at = append(at, i)
		}
	}
	if len(items) == 0 {
		return out
	}
	results, err := h.askLocked(harvestRequest{op: harvestSync, items: items})
	for j, i := range at {
		if err != nil {
			out[i].err = err
			continue
		}
		h.mu.known[targets[i].area.id] = struct{}{}
		out[i].took = time.Duration(results[j].nanoseconds)
		if e := syscall.Errno(results[j].errno); e != 0 {
			out[i].err = &errs.Error{Op: "harvest", Area: targets[i].area.id, Err: e}
		}
	}
	h.b.count.harvests.Add(uint64(len(items)))
	return out
}

// forget makes the child close its file of the area, so that it does not keep the
// mount busy. The caller has seen to it that no later sync asks for the area.
func (h *harvester) forget(id dsm.AreaID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.mu.known[id]; !ok || h.mu.child == nil {
		return
	}
	delete(h.mu.known, id)
	if _, err := h.askLocked(harvestRequest{op: harvestClose, items: []harvestItem{{ino: uint64(id)}}}); err != nil {
		h.b.log.Debug("harvest child", "err", err)
	}
}

// stop ends the child, which closes every file.
func (h *harvester) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.stopped = true
	h.endLocked()
}

// askLocked makes one round trip, with a new child if there is none. A child
// that does not answer is killed.
func (h *harvester) askLocked(q harvestRequest) ([]harvestResult, error) {
	if h.mu.stopped {
		return nil, errs.E(errs.Closed, "harvest", "")
	}
	if h.mu.child == nil {
		if err := h.startLocked(); err != nil {
			return nil, fmt.Errorf("start harvest child: %w", err)
		}
	}
	results, err := h.mu.child.ask(q, h.b.cfg.FaultTimeout)
	if err != nil {
		h.b.log.Warn("harvest child does not answer; starting another", "pid", h.pid.Load(), "err", err)
		h.mu.child.cmd.Process.Kill()
		h.endLocked()
		return nil, fmt.Errorf("harvest: %w", err)
	}
	return results, nil
}

func (c *child) ask(q harvestRequest, timeout time.Duration) ([]harvestResult, error) {
	if err := c.outFile.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if _, err := c.in.Write(q.append(nil)); err != nil {
		return nil, err
	}
	return readHarvestReply(c.out, len(q.items))
}

func (h *harvester) startLocked() error {
	argv := h.b.cfg.HarvestArgv
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	// One thread does all the work; its own process group keeps a Ctrl-C in the
	// terminal from ending it before the daemon's last harvest.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = &lineLogger{log: h.b.log}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, w, err := os.Pipe()
	if err != nil {
		in.Close()
		return err
	}
	cmd.Stdout = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		in.Close()
		out.Close()
		return err
	}
	c := &child{cmd: cmd, in: in, out: bufio.NewReader(out), outFile: out, exited: make(chan struct{})}
	pid := int64(cmd.Process.Pid)
	h.pid.Store(pid)
	go func() {
		err := cmd.Wait()
		h.pid.CompareAndSwap(pid, 0)
		h.b.log.Debug("harvest child ended", "pid", pid, "err", err)
		close(c.exited)
	}()
	h.mu.child, h.mu.known = c, make(map[dsm.AreaID]struct{})
	if _, err := in.Write(harvestRequest{op: harvestHello, mount: h.b.cfg.Mountpoint}.append(nil)); err != nil {
		h.endLocked()
		return err
	}
	return nil
}

// endLocked ends the child, if there is one, and waits for it.
func (h *harvester) endLocked() {
	c := h.mu.child
	if c == nil {
		return
	}
	h.mu.child, h.mu.known = nil, nil
	c.in.Close()
	defer c.outFile.Close()
	select {
	case <-c.exited:
		return
	case <-time.After(childStopTimeout):
	}
	h.b.log.Warn("harvest child does not end; killing it", "pid", c.cmd.Process.Pid)
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		h.b.log.Warn("kill harvest child", "err", err)
	}
	select {
	case <-c.exited:
	case <-time.After(childStopTimeout): // in the kernel, waiting for a mount that hangs
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
type lineLogger struct{ log *slog.Logger }

func (l *lineLogger) Write(p []byte) (int, error) {
	l.log.Warn("harvest child", "stderr", string(p))
	return len(p), nil
}
