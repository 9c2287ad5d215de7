package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Failure is the answer of a client whose system call failed or whose access
// was a signal: "ENOENT", "SIGBUS".
type Failure string

func (f Failure) Error() string { return string(f) }

// ErrHung is the answer of a client that gave none in time. The mount has been
// aborted and the client killed by then.
var ErrHung = errors.New("no answer: the access hangs")

// ErrDied is the answer of a client that gave none because it ended, as by SIGBUS.
var ErrDied = errors.New("the client died")

// Client is a process on a node's mount that does what it is told. One goroutine
// at a time may use it; different clients do not wait for each other.
type Client struct {
	n       *Node
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan string // closed when the process has ended

	mu struct {
		sync.Mutex
		closed bool
	}
}

// Client starts a client process.
func (n *Node) Client() *Client {
	n.c.t.Helper()
	return n.Program(tools.client)
}

// Program starts a program of a test's own that answers each line with a line, as a client does.
func (n *Node) Program(name string, args ...string) *Client {
	n.c.t.Helper()
	c := &Client{n: n, answers: make(chan string, 1)}
	c.cmd = n.Command(context.Background(), name, args...)
	in, err := c.cmd.StdinPipe()
	if err != nil {
		n.c.t.Fatalf("client: %v", err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		n.c.t.Fatalf("client: %v", err)
	}
	c.in, c.cmd.Stderr = in, os.Stderr
	if err := c.cmd.Start(); err != nil {
		n.c.t.Fatalf("client: %v", err)
	}
	go func() {
		defer close(c.answers)
		const longest = 64 << 20
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, longest)
		for lines.Scan() {
			c.answers <- lines.Text()
		}
	}()
	n.c.mu.Lock()
	n.c.mu.clients = append(n.c.mu.clients, c)
	n.c.mu.Unlock()
	return c
}

// Do sends one command and returns the words of the answer. The error is a
// Failure if the command failed, and something else if there was no answer.
func (c *Client) Do(format string, args ...any) ([]string, error) {
	return c.do(callLimit, fmt.Sprintf(format, args...))
}

func (c *Client) do(limit time.Duration, line string) ([]string, error) {
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		return nil, fmt.Errorf("client on %s: %w", c.n.Name, err)
	}
	select {
	case answer, ok := <-c.answers:
		if !ok {
			return nil, fmt.Errorf("client on %s: %.80s: %w", c.n.Name, line, ErrDied)
		}
		words := strings.Split(answer, " ")
		if words[0] == "ok" {
			return words[1:], nil
		}
		return nil, Failure(strings.Join(words[1:], " "))
	case <-time.After(limit):
		c.giveUp()
		return nil, fmt.Errorf("client on %s: %.80s: %w (%v)", c.n.Name, line, ErrHung, limit)
	}
}

// giveUp tells where the process hangs and sets it free.
func (c *Client) giveUp() {
	stack, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stack", c.cmd.Process.Pid))
	c.n.c.t.Logf("client on %s hangs in:\n%s", c.n.Name, stack)
	abort(c.n.Mount)
	_ = c.cmd.Process.Kill()
}

// Close ends the process, which closes and unmaps all that it has. It may be
// called again.
func (c *Client) Close() {
	c.n.c.t.Helper()
	c.mu.Lock()
	closed := c.mu.closed
	c.mu.closed = true
	c.mu.Unlock()
	if closed {
		return
	}
	_ = c.in.Close() // the client ends when its input does
	ended := make(chan struct{})
	go func() {
		for range c.answers { // answers to commands that were given up
		}
		_ = c.cmd.Wait() // how a client ended says nothing
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(callLimit):
		c.n.c.t.Errorf("client on %s does not end", c.n.Name)
		c.giveUp()
		<-ended
	}
}

// Kill ends the process with SIGKILL, in the middle of whatever it does.
func (c *Client) Kill() {
	_ = c.cmd.Process.Kill()
	c.Close()
}
