package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// lockerProgram does what a line on its standard input says, in Python, and prints what it is or the errno.
const lockerProgram = `
import errno, fcntl, mmap, os, signal, sqlite3, struct, sys
mnt = sys.argv[1]
files = {}
maps = {}

def path(name): return os.path.join(mnt, name)

def op(name, f='f', flags=os.O_RDWR | os.O_CREAT):
    files[f] = os.open(path(name), flags, 0o644)
    return 'ok'

def close(f='f'):
    if f in maps:
        maps.pop(f).close()
    os.close(files.pop(f))
    return 'ok'

def posix(t, start=0, n=1, f='f', wait=False):
    fcntl.fcntl(files[f], fcntl.F_SETLKW if wait else fcntl.F_SETLK, struct.pack('hhqqi4x', t, os.SEEK_SET, start, n, 0))
    return 'ok'

def ofd(t, start=0, n=1, f='f', wait=False):
    fcntl.fcntl(files[f], 38 if wait else 37, struct.pack('hhqqi4x', t, os.SEEK_SET, start, n, 0))
    return 'ok'

def get(t, start=0, n=1, f='f'):
    t, _, start, n, pid = struct.unpack('hhqqi4x', fcntl.fcntl(files[f], fcntl.F_GETLK, struct.pack('hhqqi4x', t, os.SEEK_SET, start, n, 0)))
    return 'free' if t == fcntl.F_UNLCK else f'{t} {start} {n} {pid}'

def flock(how, f='f'):
    fcntl.flock(files[f], how)
    return 'ok'

def connect(name):
    files['d'] = sqlite3.connect(path(name), timeout=60, isolation_level=None)
    return 'ok'

def sql(text, times=1):
    for _ in range(times):
        row = files['d'].execute(text).fetchone()
    return ' '.join(str(x) for x in row) if row else 'ok'

def disconnect():
    files.pop('d').close()
    return 'ok'

def mapped(name):
    if name not in maps:
        maps[name] = mmap.mmap(files[name], 0)
    return maps[name]

def fork():
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(0, 1)
        os._exit(0)
    return f'{pid}'

def interruptible():
    # Python restarts a call that a signal interrupts, unless the handler raises.
    class Alarm(Exception): pass
    def ring(*_): raise Alarm
    signal.signal(signal.SIGALRM, ring)
    return 'ok'

R, W, U = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
SH, EX, UN, NB = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN, fcntl.LOCK_NB
print('ready', flush=True)
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except OSError as e:
        print('EDEADLK' if e.errno == errno.EDEADLK else errno.errorcode[e.errno], flush=True)
    except Exception as e:
        print(type(e).__name__, e, flush=True)
`

// locker is a process with files of a mount open, that locks them.
type locker struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out chan string
}

func newLocker(t *testing.T, n *harness.Node) *locker {
	t.Helper()
	python, skip := harness.Interpreter()
	if skip != "" {
		t.Skip(skip)
	}
	l := &locker{t: t, cmd: n.Command(context.Background(), python, "-c", lockerProgram, n.Mount), out: make(chan string, 16)}
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(l.out)
		for s := bufio.NewScanner(out); s.Scan(); {
			l.out <- s.Text()
		}
	}()
	t.Cleanup(func() { l.kill() })
	l.expect("ready")
	return l
}

// interrupt sends the process the signal that interruptible is about. It must be waiting: elsewhere the signal ends it.
func (l *locker) interrupt() {
	l.t.Helper()
	l.waits()
	if err := l.cmd.Process.Signal(syscall.SIGALRM); err != nil {
		l.t.Fatal(err)
	}
}

func (l *locker) kill() {
	_ = l.cmd.Process.Kill()
	_ = l.cmd.Wait()
}

// start has the process do something and does not wait for it.
func (l *locker) start(format string, args ...any) {
	l.t.Helper()
	if _, err := fmt.Fprintf(l.in, format+"\n", args...); err != nil {
		l.t.Fatal(err)
	}
}

// answer is what the process says next.
func (l *locker) answer() string {
	l.t.Helper()
	select {
	case s, ok := <-l.out:
		if !ok {
			l.t.Fatal("the process has ended")
		}
		return s
	case <-time.After(limit):
		l.t.Fatal("no answer")
	}
	return ""
}

func (l *locker) expect(want string) {
	l.t.Helper()
	if got := l.answer(); got != want {
		l.t.Fatalf("%q, want %q", got, want)
	}
}

// do has the process do something, and expects what it is.
func (l *locker) do(want, what string) {
	l.t.Helper()
	l.start("%s", what)
	if got := l.answer(); got != want {
		l.t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

// waits checks that the process has not answered: it is in the kernel, waiting for a lock.
func (l *locker) waits() {
	l.t.Helper()
	if !harness.Eventually(limit, func() bool {
		text, err := exec.Command("cat", fmt.Sprintf("/proc/%d/wchan", l.cmd.Process.Pid)).Output()
		return err == nil && strings.Contains(string(text), "request_wait_answer")
	}) {
		l.t.Fatal("the process does not wait for the mount")
	}
	select {
	case s := <-l.out:
		l.t.Fatalf("%q: it was to wait", s)
	default:
	}
}
