package attach

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// lingering returns descriptors of sockets whose last close waits for the other end, which reads nothing
// until the test ends.
func lingering(t *testing.T, n int) (fds []int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var ends []net.Conn
	t.Cleanup(func() {
		for _, c := range ends {
			c.Close()
		}
	})
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		to := &unix.SockaddrInet4{Port: ln.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
		if err := unix.Connect(fd, to); err != nil {
			t.Fatal(err)
		}
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, c)
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = unix.Write(fd, make([]byte, 1<<16))
		}
		if err != unix.EAGAIN {
			t.Fatal(err)
		}
	}
	return fds
}

// gatedMount has an area whose publishes are over when the gate is open.
type gatedMount struct {
	openMount
	area gatedArea
}

type gatedArea struct {
	idleArea
	gate chan struct{}
}

func (m *gatedMount) Open(context.Context, dsm.Ino, bool) (Area, error) { return m.area, nil }

func (a gatedArea) PublishNow(_ time.Duration, done func(error)) bool {
	<-a.gate
	done(nil)
	return true
}

// TestDescriptorsThatCannotBeClosed: who sends descriptors whose close waits for ever delays nobody else, and may have few of them.
func TestDescriptorsThatCannotBeClosed(t *testing.T) {
	for name, n := range map[string]int{"one": 1, "two": 2, "many": 20} {
		t.Run(name, func(t *testing.T) {
			l := defaultLimits
			l.conns = 30
			m := &gatedMount{area: gatedArea{gate: make(chan struct{})}}
			h := listenHostileWith(t, l, m, &m.openMount)
			p := h.dial()
			p.within(time.Minute)
			id, e, text := p.attach()
			if e != 0 {
				t.Fatal(text)
			}
			q := header{op: opPublish, attachment: id}
			if err := p.post(q, ""); err != nil {
				t.Fatal(err)
			}
			fds := lingering(t, n)
			_, _, err := p.WriteMsgUnix(q.encode(nil), unix.UnixRights(fds...), nil)
			closeAll(fds) // not the last ones: the loop is still with the request before
			close(m.area.gate)
			if err != nil {
				t.Fatal(err)
			}
			p.answer()
			if n == 1 {
				if got, text := p.answer(); got.errno != unix.EINVAL {
					t.Errorf("%v, %q", got.errno, text)
				}
			}
			if n, err := p.Read(make([]byte, headSize)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("the connection stays: %v", err)
			}
			for range 8 { // as many as there can be loops
				other := h.dial()
				other.within(time.Minute)
				if _, e, text := other.attach(); e != 0 {
					t.Fatalf("another program: %s", text)
				}
			}
			if n == 1 {
				return
			}
			for range l.conns - n - 8 {
				h.dial()
			}
			last := h.dial()
			last.within(time.Minute)
			if _, e, _ := last.attach(); e != unix.EMFILE {
				t.Errorf("%v: what is being closed does not count", e)
			}
		})
	}
}

// within bounds how long all calls may take together.
func (p testProgram) within(d time.Duration) {
	p.t.Helper()
	if err := p.SetDeadline(time.Now().Add(d)); err != nil {
		p.t.Fatal(err)
	}
}
