package loop

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns two ends of a connection, of which the loop has the first.
func pair(t *testing.T, network string) (*Conn, net.Conn) {
	t.Helper()
	addr := "127.0.0.1:0"
	if network != "tcp" {
		addr = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	mine, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Take(mine.(Socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		other.Close()
	})
	return c, other
}

// now reads what is there.
func now(c *Conn, b []byte) (n int, err error) {
	if cerr := c.Control(func(fd uintptr) { n, err = unix.Read(int(fd), b) }); cerr != nil {
		return 0, cerr
	}
	return n, err
}

// TestNoProcessorWaits: a goroutine that is in a system call has a processor of Go. The loop has none while it waits, for the first time and later.
func TestNoProcessorWaits(t *testing.T) {
	c, other := pair(t, "unixpacket")
	served := make(chan bool)
	var all sync.WaitGroup
	all.Go(func() {
		_ = c.Await(func() bool {
			n, err := now(c, make([]byte, 1))
			served <- true
			return err == nil && n == 1
		})
	})
	for range 3 {
		calling := []metrics.Sample{{Name: "/sched/goroutines/not-in-go:goroutines"}}
		end := time.Now().Add(10 * time.Second)
		for metrics.Read(calling); calling[0].Value.Uint64() > 0; metrics.Read(calling) {
			if time.Now().After(end) {
				t.Fatalf("%d goroutines are in a system call", calling[0].Value.Uint64())
			}
			runtime.Gosched()
		}
		if _, err := other.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		<-served
	}
	go other.Close()
	<-served
	all.Wait()
}

// TestTurns: the loop serves until it is told that the goroutine goes on, which then reads as ever.
func TestTurns(t *testing.T) {
	c, other := pair(t, "tcp")
	var served atomic.Int32
	back := make(chan error)
	go func() {
		for range 2 {
			back <- c.Await(func() bool {
				var b [1]byte
				n, err := now(c, b[:])
				served.Add(1)
				return err == nil && n == 1 && b[0] == 'l'
			})
		}
	}()
	for range 2 {
		for _, b := range []byte("lllg") {
			if _, err := other.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-back; err != nil {
			t.Fatal(err)
		}
	}
	if n := served.Load(); n != 8 {
		t.Errorf("served %d times, want 8", n)
	}
	if _, err := other.Write([]byte("rest")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "rest" {
		t.Errorf("read %q, %v", b, err)
	}
	other.Close()
	if _, err := c.Read(b); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// TestWritesWait: a Write goes on when the other end reads, also while the loop waits for requests.
func TestWritesWait(t *testing.T) {
	c, other := pair(t, "tcp")
	back := make(chan error, 1)
	go func() { back <- c.Await(once) }()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		written <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(other, got); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil || !bytes.Equal(got, data) {
		t.Errorf("the bytes are others, %v", err)
	}
	c.Close()
	<-back
}

// TestCloseEndsWaits: of a reader and of a writer, and more cannot begin.
func TestCloseEndsWaits(t *testing.T) {
	for _, network := range []string{"tcp", "unixpacket"} {
		c, _ := pair(t, network)
		var all sync.WaitGroup
		all.Go(func() { _ = c.Await(func() bool { _, err := now(c, make([]byte, 1)); return err == unix.EAGAIN }) })
		all.Go(func() {
			for {
				if _, err := c.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		})
		for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
			runtime.Gosched()
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != net.ErrClosed {
			t.Errorf("closed twice: %v", err)
		}
		all.Wait()
		if err := c.Await(once); err != net.ErrClosed {
			t.Errorf("Await after Close: %v", err)
		}
		if c.mu.waits != 0 {
			t.Errorf("%d waits are left", c.mu.waits)
		}
	}
}

// TestGoPollerForgets: the socket itself goes on when package net has closed it.
func TestGoPollerForgets(t *testing.T) {
	const many = 200
	var conns []*Conn
	var others []net.Conn
	for range many {
		c, o := pair(t, "tcp")
		conns, others = append(conns, c), append(others, o)
	}
	var all sync.WaitGroup
	for i := range conns {
		all.Go(func() {
			if err := conns[i].Await(once); err != nil {
				t.Error(err)
			}
		})
	}
	for _, o := range others {
		if _, err := o.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
}
