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

	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// request is the context of one request of the kernel, for instance of an msync. It ends with the
// fault timeout, and when the process that waits for it is being killed.
//
// The kernel interrupts a request at any signal, and a Go program sends itself SIGURG all the time.
// EINTR would turn a page fault into a SIGBUS, and fail read(2) of a file as no program expects.
// For a change in the catalog it would be wrong, because the change may still happen. So an
// interrupt only makes the request look at the pending signals of the thread. A fatal signal ends
// the request. A signal that asks the program to end does so too if the request is breakable.
// msync, fsync and close are: they may be called again, and what they did not publish is published
// later. Other signals have no effect.
//
// Most requests are answered without waiting, so no timer or goroutine is started before somebody
// calls Done.
type request struct {
	deadline time.Time
	cancel   <-chan struct{} // closed by go-fuse at the first signal
	closing  <-chan struct{} // closed when the filesystem is going away
	tid      uint32          // thread that waits, 0 if unknown
	// Both are set before the request is used. A FLUSH looks for signals by itself, because the
	// kernel does not report one while the process exits.
	breakable, flush bool
	unique           uint64 // the kernel's number of the request, the same if it comes again
	// interruptible: any signal ends it.
	interruptible bool

	mu struct {
		lockrank.Mutex
		done   chan struct{}
		ended  chan struct{}
		err    error
		signal bool // a signal is the reason
	}
}

var _ context.Context = (*request)(nil)

const (
	// recheck is how often an interrupted request looks at the pending signals, because the kernel
	// reports only the first one. A breakable request that still waits then is broken.
	recheck = 50 * time.Millisecond
	// flushCheck is when a FLUSH looks for the first time. A process may have many files to flush,
	// so this is short.
	flushCheck = 5 * time.Millisecond
)

func (b *bridge) begin(cancel <-chan struct{}, h *fuse.InHeader) *request {
	b.retries.began(h)
	b.goesOn(h)
	r := &request{deadline: time.Now().Add(b.cfg.FaultTimeout), cancel: cancel, closing: b.life.Done(), tid: h.Pid, unique: h.Unique &^ resent}
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

func (r *request) Value(key any) any {
	if _, ok := key.(hold.RequestKey); ok {
		return r.unique
	}
	return nil
}

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
	if r.flush {
		again = time.After(flushCheck)
	}
	asked := false // a signal that asks the program to end was pending at the last look
	for {
		select {
		case <-ended:
			r.finish(context.Canceled)
			return
		case <-timer.C:
			r.finish(context.DeadlineExceeded)
			return
		case <-cancel:
			if r.interruptible {
				r.finish(context.Canceled)
				return
			}
			cancel = nil
		case <-again:
		}
		select {
		case <-r.closing:
			r.finish(context.Canceled)
			return
		default:
		}
		if r.tid != 0 {
			w := waiterOf(r.tid)
			if w.dying || w.asked && asked && r.breakable {
				r.mu.Lock()
				r.mu.signal = true
				r.mu.Unlock()
				r.finish(context.Canceled)
				return
			}
			asked = w.asked
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

// broken reports whether a signal has ended the request.
func (r *request) broken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.signal
}

// waiter is a thread that waits for a request.
type waiter struct {
	dying bool // a signal has ended its process, or the process is gone
	asked bool // a signal that asks its process to end is pending
}

// Signals that ask a program to end. They are pending only if the program has a handler for them.
const askToEnd = 1<<(syscall.SIGINT-1) | 1<<(syscall.SIGTERM-1) | 1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGQUIT-1)

// waiterOf looks at a thread. When a fatal signal ends a process, the kernel gives SIGKILL to each
// of its threads, but takes it away again as the thread exits (K49).
func waiterOf(tid uint32) (w waiter) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return waiter{dying: os.IsNotExist(err)}
	}
	var pending, blocked uint64
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		set, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
		if err != nil {
			continue
		}
		switch string(name) {
		case "SigPnd", "ShdPnd":
			pending |= set
		case "SigBlk":
			blocked = set
		}
	}
	w.dying = pending>>(syscall.SIGKILL-1)&1 != 0 || signaled(tid)
	w.asked = pending&^blocked&askToEnd != 0
	return w
}

// signaled reports whether a signal has ended the thread's process, which is exiting.
func signaled(tid uint32) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", tid))
	if err != nil {
		return os.IsNotExist(err)
	}
	const pfSignaled = 0x400
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // from the third field on, which is the state
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	return err == nil && flags&pfSignaled != 0
}

// punch is a hole that a thread has punched.
type punch struct {
	tid  uint32
	over func() // what the area is to be told when the thread goes on
}

// opRead is FUSE_READ.
const opRead = 15

// goesOn is called at the beginning of each request. If its thread has punched the last hole it has gone on since. A READ says nothing:
// no thread waits for one that reads ahead, so it may be from before the hole.
func (b *bridge) goesOn(h *fuse.InHeader) {
	if p := b.punched.Load(); p != nil && p.tid == h.Pid && h.Pid != 0 && h.Opcode != opRead && b.punched.CompareAndSwap(p, nil) { // 0: nobody knows
		p.over()
	}
}
