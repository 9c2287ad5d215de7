package fs

import (
	"context"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// silentHome is a file whose home does not answer, mapped by a program that has stored into it.
type silentHome struct {
	*fixture
	area *fakeArea
	c    *client
	fd   int
	m    int
}

func newSilentHome(t *testing.T) *silentHome {
	f := mountTest(t)
	f.noInterval()
	s := &silentHome{fixture: f, c: startClient(t)}
	s.area = f.file(s.c, "w", make([]byte, dsm.PageSize))
	s.fd, s.m = f.mapFile(s.c, "w", dsm.PageSize)
	s.c.must(clientCall{Op: "store", FD: s.m, Data: []byte("stored")})
	s.area.update(func() {
		s.area.stall, s.area.stalled = make(chan struct{}), make(chan context.Context, 100)
	})
	t.Cleanup(s.answer)
	return s
}

// answer lets the home answer from now on.
func (s *silentHome) answer() {
	s.area.update(func() {
		if s.area.stall != nil {
			close(s.area.stall)
			s.area.stall = nil
		}
	})
}

// waiting begins a call and returns the thread that waits for the home in it.
func (s *silentHome) waiting(call clientCall) (tid int) {
	s.c.start(call)
	return int((<-s.area.stalled).(*request).tid)
}

// gone waits for the end of the client: all its descriptors are closed then.
func (s *silentHome) gone() {
	s.t.Helper()
	select {
	case <-s.c.exited:
	case <-time.After(clientTimeout):
		s.t.Error("the killed program is not gone")
	}
}

func (s *silentHome) signal(tid int, sig syscall.Signal) {
	s.t.Helper()
	if err := unix.Tgkill(s.c.cmd.Process.Pid, tid, sig); err != nil {
		s.t.Fatal(err)
	}
}

// TestKilledInSync: a program that a signal ends while it waits for a silent home is gone at once: neither its
// request nor the close of its files on the way out waits.
func TestKilledInSync(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		for _, op := range []string{"msync", "close"} {
			t.Run(op+" "+sig.String(), func(t *testing.T) {
				s := newSilentHome(t)
				s.c.must(clientCall{Op: "fatal", Flag: int(sig)})
				call := clientCall{Op: "msync", FD: s.m}
				if op == "close" {
					call = clientCall{Op: "close", FD: s.fd}
				}
				s.waiting(call)
				if err := s.c.cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				s.gone()
			})
		}
	}
}

// TestInterruptedSync: a program that is asked to end has its msync and its close ended with EINTR, if
// they wait. Other signals, as a Go program sends itself all the time, do nothing to them.
func TestInterruptedSync(t *testing.T) {
	s := newSilentHome(t)
	s.c.must(clientCall{Op: "catch"})
	interrupt := func(call clientCall) {
		t.Helper()
		tid := s.waiting(call)
		for range 100 {
			s.signal(tid, syscall.SIGURG)
		}
		s.signal(tid, syscall.SIGINT)
		if r := s.c.reply(); r.Errno != syscall.EINTR {
			t.Errorf("%s: %v, want EINTR", call.Op, r.Errno)
		}
	}
	interrupt(clientCall{Op: "msync", FD: s.m})
	interrupt(clientCall{Op: "fsync", FD: s.fd})
	tid := s.waiting(clientCall{Op: "fsync", FD: s.fd})
	for range 100 {
		s.signal(tid, syscall.SIGURG)
	}
	s.answer()
	if r := s.c.reply(); r.Errno != 0 {
		t.Errorf("fsync: %v after SIGURG", r.Errno)
	}
	if got := s.area.state().published[:6]; got != "stored" {
		t.Errorf("%q is published", got)
	}
}
