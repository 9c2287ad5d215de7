// Package loop serves sockets in the goroutine that finds them readable. Go's poller wakes another
// goroutine for each, looks for more work to do, and is told of things that nobody waits for (that
// the other end of a Unix socket has read an answer). For a request of a few microseconds that is
// most of the time.
//
// A Conn is a socket that Go's poller does not know. A goroutine of its owner calls Await where it
// would block in a read: then the loop calls a function of the owner for as long as that returns
// true. When it returns false, Await does, and the goroutine goes on in its own time. So the loop does
// what is short and sure not to wait, and everything else is done by goroutines as anywhere.
//
// # Concurrency
//
// There is one loop for every four processors; a socket stays with one. What the loop calls must not wait:
// not for a lock that is held for long, not for a socket, not for another goroutine. The methods of
// Conn may be called by any goroutine; Await and reads by one at a time. mu of a Conn is held, for
// reading, over one system call that does not block. The loop holds no lock while it serves.
package loop

import (
	"cmp"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"golang.org/x/sys/unix"
	"unsafe"
)

// loop is one epoll and the goroutine that waits for it.
type loop struct {
	ep  int
	raw syscall.RawConn // of ep, by which Go's poller waits
	mu  struct {
		lockrank.Mutex
		last    int32
		waiting map[int32]*watch
	}
}

// watch is one wait for one descriptor.
type watch struct {
	id    int32
	fd    int
	serve func() (again bool)
	done  chan struct{} // closed when serve has returned false
}

var loops = sync.OnceValues(func() (all []*loop, err error) {
	for range max(1, min(8, runtime.NumCPU()/4)) {
		l := &loop{}
		l.mu.Init("loop.loop")
		l.mu.waiting = make(map[int32]*watch)
		if l.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
			return nil, os.NewSyscallError("epoll_create", err)
		}
		if err = unix.SetNonblock(l.ep, true); err != nil { // else Go's poller does not take it
			return nil, os.NewSyscallError("fcntl", err)
		}
		if l.raw, err = os.NewFile(uintptr(l.ep), "epoll").SyscallConn(); err != nil {
			return nil, err
		}
		go l.run()
		all = append(all, l)
	}
	return all, nil
})

var turn atomic.Uint32

// next returns the loop of a new socket.
func next() (*loop, error) {
	all, err := loops()
	if err != nil {
		return nil, err
	}
	return all[int(turn.Add(1))%len(all)], nil
}

// run serves for as long as the process lives.
func (l *loop) run() {
	var events [64]unix.EpollEvent
	for {
		n, err := l.wait(events[:])
		if err != nil {
			panic(errs.E(errs.Other, "wait for sockets", "epoll_wait: %w", err)) // the descriptor is ours
		}
		for i := range events[:n] {
			l.mu.Lock()
			w := l.mu.waiting[events[i].Fd]
			l.mu.Unlock()
			if w != nil && !w.serve() {
				l.end(w)
			}
		}
	}
}

// wait is epoll_wait. The goroutine waits in Go's poller, in which this epoll is one descriptor: an epoll can be polled as sockets can. A system call
// that waits would keep a processor of Go until the scheduler's monitor takes it away. The monitor looks every 20 us for a while after each such
// wait: on a busy machine that took a quarter of the processor time of four daemons in the sum of a megabyte.
func (l *loop) wait(events []unix.EpollEvent) (n int, err error) {
	broken := l.raw.Read(func(ep uintptr) bool {
		for {
			m, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, ep, uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
			switch errno {
			case 0:
				n = int(m)
				return n > 0
			case unix.EINTR:
			default:
				err = errno
				return true
			}
		}
	})
	return n, cmp.Or(broken, err)
}

// begin has the loop call serve whenever one of the events is there, until it returns false.
func (l *loop) begin(fd int, events uint32, serve func() bool) (*watch, error) {
	w := &watch{fd: fd, serve: serve, done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.mu.last++; l.mu.waiting[l.mu.last] != nil; l.mu.last++ {
	}
	w.id = l.mu.last
	// An event has the number of the wait, not that of the descriptor: it may be of one that is over.
	if err := control(l.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: w.id}); err != nil {
		return nil, err
	}
	l.mu.waiting[w.id] = w
	return w, nil
}

// end ends a wait. Only the loop itself does, so nobody is served when a wait is over.
func (l *loop) end(w *watch) {
	l.mu.Lock()
	delete(l.mu.waiting, w.id)
	l.mu.Unlock()
	_ = control(l.ep, unix.EPOLL_CTL_DEL, w.fd, nil) // the owner closes the descriptor after the wait
	close(w.done)
}

func control(ep, op, fd int, e *unix.EpollEvent) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(ep), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(e)), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("epoll_ctl", errno)
	}
	return nil
}
