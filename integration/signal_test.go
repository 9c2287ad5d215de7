package integration

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// flusher stores into the file that it is told and flushes it, once for each line of its input.
const flusher = `
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 4096)
for line in sys.stdin:
    try:
        if line == "pid\n":
            print("ok", os.getpid(), flush=True)
            continue
        m[0] = (m[0] + 1) % 256
        m.flush()
        print("ok flushed", flush=True)
    except KeyboardInterrupt:
        print("ok interrupted", flush=True)
`

// atOnce is how long a program may need to end, or to go on, after a signal. It takes less than 100 ms, but not on a machine that is busy with
// other tests.
const atOnce = 2 * time.Second

// TestSignalsWhileAHomeIsSilent: a program that waits for a home which does not answer ends at once when it is
// killed or interrupted, and one that handles the interrupt goes on. The requests could wait for two minutes.
func TestSignalsWhileAHomeIsSilent(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	c := cluster(t, harness.Options{Single: true, Nodes: 3, Flags: append([]string{"--fault-timeout", "2m"}, lasting...)})
	one := c.Node(1).Client()
	name := ""
	for i := range 64 {
		name = "w" + strconv.Itoa(i)
		one.Create(name, page)
		if home(t, c.Node(1), one, name) == "n3" {
			break
		}
	}
	if got := home(t, c.Node(1), one, name); got != "n3" {
		t.Fatalf("the home of %s is %s", name, got)
	}
	start := func() (*harness.Client, int) {
		t.Helper()
		p := c.Node(1).Program("python3", "-c", flusher, one.Path(name))
		pid, err := strconv.Atoi(p.Must("pid")[0])
		if err != nil {
			t.Fatal(err)
		}
		p.Must("flush")
		return p, pid
	}
	type result struct {
		words []string
		err   error
	}
	// flush begins a flush and returns when it waits.
	flush := func(p *harness.Client, pid int) <-chan result {
		t.Helper()
		done := make(chan result, 1)
		go func() {
			words, err := p.Do("flush")
			done <- result{words, err}
		}()
		var text []byte
		if !harness.Eventually(limit, func() bool {
			text, _ = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/wchan")
			return strings.Contains(string(text), "request_wait")
		}) {
			select {
			case r := <-done:
				t.Fatalf("the program does not wait, it says %v, %v", r.words, r.err)
			default:
				t.Fatalf("the program does not wait for the mount, but in %s", text)
			}
		}
		return done
	}
	signal := func(pid int, sig syscall.Signal, done <-chan result) result {
		t.Helper()
		began := time.Now()
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		r := <-done
		took := time.Since(began)
		if t.Logf("%v after %v", sig, took); took > atOnce {
			t.Errorf("%v takes %v", sig, took)
		}
		return r
	}
	killed, pidKilled := start()
	caught, pidCaught := start()
	c.Node(3).Pause()

	done := flush(killed, pidKilled)
	if r := signal(pidKilled, syscall.SIGKILL, done); !errors.Is(r.err, harness.ErrDied) {
		t.Errorf("the killed program: %v, %v", r.words, r.err)
	}
	killed.Close()

	done = flush(caught, pidCaught)
	if r := signal(pidCaught, syscall.SIGINT, done); r.err != nil || r.words[0] != "interrupted" {
		t.Errorf("the interrupted program: %v, %v", r.words, r.err)
	}
	c.Node(3).Resume()
	if got := caught.Must("flush"); got[0] != "flushed" {
		t.Errorf("after the home went on: %v", got)
	}
	caught.Close()
}
