package uffd

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// Guard runs another process, which has a copy of the userfaultfd of each Range with Missing. If
// this process ends without Close, even by SIGKILL, the guard poisons the missing pages, as
// Range.Close does, so that no program reads zeroes. The guard's process runs GuardMain.
//
// Both processes speak over a socket of type SOCK_SEQPACKET; numbers are in the byte order of the
// machine.
//
//	this process                                      guard
//	  | add: 'A' id64 dev64 ino64 and descriptors of -->|
//	  |      the userfaultfd, the process, the memfd    |
//	  | remove: 'R' id64 ------------------------------>|  closes them
//	  | goodbye: 'B' ---------------------------------->|  exits
//	  | end of file ----------------------------------->|  poisons and exits
//
// One goroutine owns the connection, from the first Add to Close. Messages have no answers: what
// was sent, the guard reads before it sees the end of file.
type Guard struct {
	start   GuardStart
	changes chan guardChange
	closing chan struct{}  // closed by Close
	begin   func()         // starts the goroutine, once
	end     func()         // closes closing, once
	done    sync.WaitGroup // of the goroutine
}

// guardChange adds or removes a Range.
type guardChange struct {
	r    *Range
	add  bool
	done chan error
}

const (
	guardAdd     = 'A'
	guardRemove  = 'R'
	guardGoodbye = 'B'

	opGuard = "guard mapping"

	// guardRestartPause is the least time between two starts.
	guardRestartPause = time.Second
	// guardSendTimeout is how long a guard may take to read a message.
	guardSendTimeout = 5 * time.Second
)

// GuardStart starts the process of a Guard. It returns one end of a socket whose other end
// GuardMain has, as a descriptor that does not block, and a function that kills the process with
// SIGKILL if it still runs. It logs by itself why it failed, and that the process ended.
type GuardStart func() (socket *os.File, kill func(), err error)

// NewGuard returns a Guard that starts its process at the first Add, and another one, at most once
// a second, when it ends.
func NewGuard(start GuardStart) *Guard {
	g := &Guard{start: start, changes: make(chan guardChange), closing: make(chan struct{})}
	g.begin = sync.OnceFunc(func() { g.done.Go(g.run) })
	g.end = sync.OnceFunc(func() { close(g.closing) })
	return g
}

// Add hands over a Range. When it returns nil the Range is guarded, except for the moments in which
// a process that ended is being replaced. Otherwise it is not guarded. Errors: Closed if the Range
// or the Guard is closed, Invalid for a Range without Missing, Exist, and what start returns.
func (g *Guard) Add(r *Range) error {
	if r.missing == nil {
		return errs.E(errs.Invalid, opGuard, "the Range has no Missing")
	}
	return g.change(r, true)
}

// Remove stops guarding a Range that is closed, or of which nothing is mapped. It does nothing for
// one that is not guarded.
func (g *Guard) Remove(r *Range) { _ = g.change(r, false) } // what is closed guards nothing

// Close ends the process without poisoning anything: the Ranges must be closed already.
func (g *Guard) Close() {
	g.begin() // so that an Add at the same time finds it to have begun
	g.end()
	g.done.Wait()
}

func (g *Guard) change(r *Range, add bool) error {
	select {
	case <-g.closing:
		return errs.E(errs.Closed, opGuard, "")
	default:
	}
	g.begin()
	c := guardChange{r, add, make(chan error, 1)}
	select {
	case g.changes <- c:
		return <-c.done
	case <-g.closing:
		return errs.E(errs.Closed, opGuard, "")
	}
}

// guardState belongs to the Guard's goroutine.
type guardState struct {
	start   GuardStart
	ids     map[*Range]uint64 // what is guarded, with the number by which the process knows it
	last    uint64            // the newest of these numbers
	socket  *os.File          // nil: no process runs
	kill    func()
	ended   chan struct{} // closed when the process has ended
	started time.Time
}

func (g *Guard) run() {
	s := &guardState{start: g.start, ids: make(map[*Range]uint64)}
	for {
		// Without a process, but with something to guard, another process is started.
		var restart <-chan time.Time
		if s.socket == nil && len(s.ids) > 0 {
			restart = time.After(time.Until(s.started.Add(guardRestartPause)))
		}
		select {
		case c := <-g.changes:
			if c.add {
				c.done <- s.add(c.r)
			} else {
				s.remove(c.r)
				c.done <- nil
			}
		case <-s.ended:
			s.drop()
		case <-restart:
			_ = s.connect() // start has logged why; it is tried again
		case <-g.closing:
			if s.socket != nil {
				if s.send([]byte{guardGoodbye}) != nil {
					s.kill()
				}
				s.hangUp()
			}
			return
		}
	}
}

// connect starts a process and hands it everything.
func (s *guardState) connect() error {
	s.started = time.Now()
	socket, kill, err := s.start()
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	s.socket, s.kill, s.ended = socket, kill, ended
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, socket) // the process sends nothing; this returns when it ends
	}()
	for r, id := range s.ids {
		if err := s.hand(r, id); errs.Is(err, errs.Closed) {
			delete(s.ids, r)
		} else if err != nil {
			s.drop()
			return err
		}
	}
	return nil
}

// drop ends the process. It kills it before it closes the connection, which the process would take
// for the end of this process.
func (s *guardState) drop() {
	s.kill()
	s.hangUp()
}

func (s *guardState) hangUp() {
	_ = s.socket.Close() // nothing in it needs to be written out
	<-s.ended
	s.socket, s.kill, s.ended = nil, nil, nil
}

func (s *guardState) add(r *Range) error {
	if _, ok := s.ids[r]; ok {
		return errs.E(errs.Exist, opGuard, "it is guarded already")
	}
	if s.socket == nil && len(s.ids) == 0 {
		if err := s.connect(); err != nil {
			return errs.E(errs.Other, opGuard, "%w", err)
		}
	}
	s.last++
	s.ids[r] = s.last
	if s.socket == nil {
		return nil // the process that is started next will get it
	}
	switch err := s.hand(r, s.last); {
	case errs.Is(err, errs.Closed):
		delete(s.ids, r)
		return err
	case err != nil:
		s.drop() // see above
	}
	return nil
}

func (s *guardState) remove(r *Range) {
	id, ok := s.ids[r]
	if !ok {
		return
	}
	delete(s.ids, r)
	if s.socket != nil && s.send(binary.NativeEndian.AppendUint64([]byte{guardRemove}, id)) != nil {
		s.drop()
	}
}

// hand sends the descriptors of a Range. The caller keeps them open meanwhile.
func (s *guardState) hand(r *Range, id uint64) error {
	p := []byte{guardAdd}
	for _, v := range []uint64{id, r.memory.dev, r.memory.ino} {
		p = binary.NativeEndian.AppendUint64(p, v)
	}
	sent := error(nil)
	err := r.raw.Control(func(fd uintptr) {
		err := r.process.raw.Control(func(process uintptr) { sent = s.send(p, int(fd), int(process), r.memory.fd) })
		if err != nil {
			sent = errClosed(opGuard)
		}
	})
	if err != nil {
		return errClosed(opGuard)
	}
	return sent
}

// send sends a message.
func (s *guardState) send(p []byte, fds ...int) error {
	if err := s.socket.SetWriteDeadline(time.Now().Add(guardSendTimeout)); err != nil {
		return errs.E(errs.Other, opGuard, "%w", err)
	}
	raw, err := s.socket.SyscallConn()
	if err != nil {
		return errs.E(errs.Other, opGuard, "%w", err)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.EINTR
		for errors.Is(sent, unix.EINTR) {
			sent = unix.Sendmsg(int(fd), p, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		}
		return !errors.Is(sent, unix.EAGAIN)
	})
	if err = errors.Join(err, sent); err != nil {
		return errs.E(errs.Other, opGuard, "send to the guard: %w", err)
	}
	return nil
}
