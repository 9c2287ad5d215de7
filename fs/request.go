package fs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// request is the context of one request of the kernel. It ends by the fault
// timeout, and when the process that waits for it is being killed.
//
// The kernel interrupts a request at any signal, and a Go program sends itself
// SIGURG all the time. EINTR would make a page fault a SIGBUS and read(2) of a
// file fail as no program expects, and for a change in the catalog it would be
// a lie, since it may still happen. So an interrupt only makes the request look whether the
// process has a fatal signal pending, and go on if it has not.
//
// Most requests are answered without waiting; so no timer or goroutine exists
// before somebody asks for Done.
type request struct {
	deadline time.Time
	cancel   <-chan struct{} // closed by go-fuse at the first signal
	closing  <-chan struct{} // closed when the filesystem is going away
	tid      uint32          // thread that waits, 0 if unknown

	mu struct {
		lockrank.Mutex
		done  chan struct{}
		ended chan struct{}
		err   error
	}
}

var _ context.Context = (*request)(nil)

// recheck is how often an interrupted request looks whether its process is
// being killed: the kernel tells of the first signal only.
const recheck = 50 * time.Millisecond

func (b *bridge) begin(cancel <-chan struct{}, h *fuse.InHeader) *request {
	r := &request{deadline: time.Now().Add(b.cfg.FaultTimeout), cancel: cancel, closing: b.life.Done(), tid: h.Pid}
	r.mu.Init("fs.request")
	return r
}

// end releases what Done started. The handler calls it before it returns.
func (r *request) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.ended != nil {
		close(r.mu.ended)
		r.mu.ended = nil
	}
}

func (r *request) Deadline() (time.Time, bool) { return r.deadline, true }

func (r *request) Value(any) any { return nil }

func (r *request) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.done == nil {
		r.mu.done, r.mu.ended = make(chan struct{}), make(chan struct{})
		go r.watch(r.mu.ended)
	}
	return r.mu.done
}

func (r *request) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.err == nil && r.mu.done == nil && !time.Now().Before(r.deadline) {
		return context.DeadlineExceeded
	}
	return r.mu.err
}

func (r *request) watch(ended <-chan struct{}) {
	timer := time.NewTimer(time.Until(r.deadline))
	defer timer.Stop()
	cancel := r.cancel
	var again <-chan time.Time
	for {
		select {
		case <-ended:
			r.finish(context.Canceled)
			return
		case <-timer.C:
			r.finish(context.DeadlineExceeded)
			return
		case <-cancel:
			cancel = nil
		case <-again:
		}
		select {
		case <-r.closing:
			r.finish(context.Canceled)
			return
		default:
		}
		if r.tid != 0 && dying(r.tid) {
			r.finish(context.Canceled)
			return
		}
		again = time.After(recheck)
	}
}

func (r *request) finish(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.err = err
	close(r.mu.done)
}

// dying reports whether a thread has SIGKILL pending: the kernel gives it to every
// thread of a process that any fatal signal ends. A thread that is gone is dying.
func dying(tid uint32) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return os.IsNotExist(err)
	}
	for line := range bytes.Lines(text) {
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || string(name) != "SigPnd" && string(name) != "ShdPnd" {
			continue
		}
		set, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
		if err == nil && set>>(syscall.SIGKILL-1)&1 != 0 {
			return true
		}
	}
	return false
}
