package harness

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// needRoot skips a test that makes namespaces.
func needRoot(t *testing.T) {
	t.Helper()
	if why := missing(); why != "" {
		t.Skip(why)
	}
}

// inside runs f in the network namespace of node i.
func inside[T any](t *testing.T, b *bridged, i int, f func() (T, error)) (T, error) {
	t.Helper()
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the namespace with it
		var r result
		ns, err := os.Open(b.nsPath(i))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if r.err = err; err == nil {
			r.v, r.err = f()
		}
		done <- r
	}()
	r := <-done
	return r.v, r.err
}

func TestBridgeCutsAndHeals(t *testing.T) {
	needRoot(t)
	b := &bridged{tag: fmt.Sprintf("dmt%d", os.Getpid()%100000)}
	if err := b.open(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
		if exists("/sys/class/net/" + b.bridge()) {
			t.Error("the bridge is left")
		}
	}()
	addresses := []string{"", "", ""}
	for i := 1; i <= 2; i++ {
		var err error
		if addresses[i], err = b.attach(i); err != nil {
			t.Fatal(err)
		}
	}
	l, err := inside(t, b, 1, func() (net.Listener, error) { return net.Listen("tcp", addresses[1]) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, strings.Repeat("x", 1<<16)) // the other end sees what is missing
			_ = conn.Close()
		}
	}()
	receive := func(limit time.Duration) (int, error) {
		return inside(t, b, 2, func() (int, error) {
			conn, err := net.DialTimeout("tcp", addresses[1], limit)
			if err != nil {
				return 0, err
			}
			p, err := io.ReadAll(conn)
			return len(p), err
		})
	}
	const long, short = 10 * time.Second, 300 * time.Millisecond
	works := func(when string) {
		t.Helper()
		if n, err := receive(long); n != 1<<16 || err != nil {
			t.Errorf("%s: received %d bytes, %v", when, n, err)
		}
	}
	works("new")
	if err := b.drop(1, addresses[2]); err != nil {
		t.Fatal(err)
	}
	if n, err := receive(short); err == nil {
		t.Errorf("after the link was cut: received %d bytes", n)
	}
	if err := b.heal(1); err != nil {
		t.Fatal(err)
	}
	works("healed")
	if err := b.rate(1, 50); err != nil {
		t.Fatal(err)
	}
	works("slowed down")
	if err := b.rate(1, 0); err != nil {
		t.Fatal(err)
	}
	works("fast again")
}

// complaints is a TB that keeps what a test would have failed with.
type complaints struct {
	testing.TB
	said []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}
func (c *complaints) Failed() bool   { return len(c.said) > 0 }
func (c *complaints) Cleanup(func()) {}

func TestCloseReportsWhatIsLeft(t *testing.T) {
	needRoot(t)
	tb := &complaints{TB: t}
	c := &Cluster{t: tb, tag: fmt.Sprintf("dmt%dleft", os.Getpid()), dir: t.TempDir(), net: loopback(1)}
	n := c.Declare()
	cmd := n.Command(context.Background(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }() // Close kills it
	// The kernel shows the environment of a program a moment after it started it.
	if !Eventually(10*time.Second, func() bool { return len(tagged(c.tag)) == 1 }) {
		t.Fatal("the process is not found by its tag")
	}
	bare := n.Mount
	if err := unix.Mount("none", bare, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	c.Close()
	text := strings.Join(tb.said, "\n")
	if !strings.Contains(text, bare) || !strings.Contains(text, "sleep 600") || len(tb.said) != 2 {
		t.Errorf("it complains about a mount and a process left behind with:\n%s", text)
	}
	if mounted(bare) || len(tagged(c.tag)) != 0 {
		t.Error("what is left is reported and still there")
	}
}
