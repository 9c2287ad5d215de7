package harvest

import (
	"errors"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/internal/child"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Freer frees memory of memfds of which programs have descriptors, in child processes of the kind that harvests. A program that is in write(2) to the memfd
// has that wait for as long as it likes, in the kernel, where no signal reaches it; and a process with a thread that waits there cannot end. So a child that waits
// is left to itself when the daemon ends. A daemon that follows must know of it: see Mark.
//
// There is one child, and another one for each call while all wait.
type Freer struct {
	argv []string
	log  *slog.Logger

	mu struct {
		lockrank.Mutex
		idle    []*process
		running int
		stopped bool
	}
}

// mostFreers is how many calls may wait at once. More fail: then the memory is freed later, or with the memfd.
const mostFreers = 32

// NewFreer returns a Freer that has no child yet. argv is Config.Argv.
func NewFreer(argv []string, log *slog.Logger) *Freer {
	f := &Freer{argv: argv, log: log}
	f.mu.Init("harvest.Freer")
	return f
}

// Mark is a byte of a file of this process, which the child has locked (F_OFD_SETLK) from before it opens the memfd until it is done, or has ended. A daemon that follows finds the lock. The zero
// Mark is none.
type Mark struct {
	FD int
	At int64
}

// Free frees what a memfd of this process has from an offset on.
func (f *Freer) Free(fd int, from int64, m Mark) error {
	c, err := f.take()
	if err != nil {
		return err
	}
	results, err := c.free(item{ino: uint64(fd), off: uint64(from), n: uint64(os.Getpid()), lock: uint64(m.FD), at: uint64(m.At)})
	f.give(c, err == nil)
	if err != nil {
		return err
	}
	if results[0] != 0 {
		return os.NewSyscallError("free memory in a child", syscall.Errno(results[0]))
	}
	return nil
}

// free makes one round trip to the child, without a limit.
func (c *process) free(it item) ([]uint32, error) {
	q := request{op: opFree, items: []item{it}}
	if _, err := c.in.Write(q.append(nil)); err != nil {
		return nil, err
	}
	return readReply(c.replies, q.answers())
}

// take returns a child that does nothing.
func (f *Freer) take() (*process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := len(f.mu.idle) - 1; k >= 0 {
		c := f.mu.idle[k]
		f.mu.idle = f.mu.idle[:k]
		return c, nil
	}
	switch {
	case f.mu.stopped:
		return nil, errs.E(errs.Closed, "free memory", "")
	case f.mu.running == mostFreers:
		return nil, errs.E(errs.Busy, "free memory", "%d programs have that wait", f.mu.running)
	}
	c := &process{cmd: child.Command(f.log, "freeing child", f.argv), started: time.Now(), exited: make(chan struct{})}
	if err := c.start(); err != nil {
		return nil, err
	}
	f.mu.running++
	go func() {
		err := c.cmd.Wait()
		f.log.Debug("freeing child ended", "pid", c.cmd.Process.Pid, "err", err)
		close(c.exited)
	}()
	return c, nil
}

// give keeps a child for the next call, unless there is one, or it is of no use.
func (f *Freer) give(c *process, good bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if good && !f.mu.stopped && len(f.mu.idle) == 0 {
		f.mu.idle = append(f.mu.idle, c)
		return
	}
	f.mu.running--
	c.end(f.log)
}

// end has a child end, which it does when it waits no more.
func (c *process) end(log *slog.Logger) {
	if err := errors.Join(c.in.Close(), c.out.Close()); err != nil {
		log.Debug("end a freeing child", "err", err)
	}
}

// Stop ends the child. Those that wait are left behind.
func (f *Freer) Stop() {
	f.mu.Lock()
	idle := f.mu.idle
	f.mu.idle, f.mu.stopped = nil, true
	f.mu.Unlock()
	for _, c := range idle {
		c.end(f.log)
		select {
		case <-c.exited:
		case <-time.After(child.StopTimeout):
			c.kill(f.log)
		}
	}
}
