package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestLocksExclude has processes of two nodes, and two of one, lock a file in all ways.
func TestLocksExclude(t *testing.T) {
	c := nodes(t, 2)
	var a, b, a2 *locker // a2 is on a's node
	begin := func(t *testing.T, one, other *harness.Node) {
		a, b, a2 = newLocker(t, one), newLocker(t, other), newLocker(t, one)
		for _, l := range []*locker{a, b, a2} {
			l.do("ok", "op('x')")
		}
	}
	for i, name := range []string{"fcntl", "fcntl, the other way round"} {
		t.Run(name, func(t *testing.T) {
			begin(t, c.Node(1+i), c.Node(2-i))
			a.do("ok", "posix(W, 0, 10)")
			b.do("EAGAIN", "posix(R, 5, 1)")
			a2.do("EAGAIN", "posix(R, 5, 1)")
			b.do("1 0 10 0", "get(W, 3, 20)")
			a.do("free", "get(W, 0, 0)")
			b.do("ok", "posix(W, 10, 0)")
			a2.do(fmt.Sprintf("1 0 10 %d", a.cmd.Process.Pid), "get(R, 3, 20)")
			a.do("ok", "posix(R, 0, 10)")
			b.do("ok", "posix(R, 5, 3)")
			a2.do("EAGAIN", "posix(W, 0, 1)")
			a.do("ok", "posix(U, 0, 0)")
			a2.do("ok", "posix(W, 0, 1)")
		})
	}
	t.Run("flock", func(t *testing.T) {
		begin(t, c.Node(2), c.Node(1))
		a.do("ok", "flock(EX)")
		b.do("EAGAIN", "flock(SH | NB)")
		a2.do("EAGAIN", "flock(EX | NB)")
		b.do("ok", "posix(W, 0, 0)") // another world
		a.do("ok", "flock(SH)")
		b.do("ok", "flock(SH | NB)")
		a.do("EAGAIN", "flock(EX | NB)")
		b.do("ok", "flock(EX | NB)") // a has lost its lock by that
	})
	t.Run("open files", func(t *testing.T) {
		begin(t, c.Node(1), c.Node(2))
		a.do("ok", "op('x', 'g')")
		a.do("ok", "ofd(W, 0, 10)")
		a.do("EAGAIN", "ofd(W, 0, 10, 'g')") // another open file of the same process
		b.do("EAGAIN", "ofd(R, 0, 1)")
		b.do("EAGAIN", "posix(R, 0, 1)")
		a.do("ok", "close('g')") // is not the one with the lock
		b.do("EAGAIN", "ofd(R, 0, 1)")
		b.start("ofd(W, 0, 10, wait=True)")
		b.waits()
		a.do("ok", "close()")
		b.expect("ok")
	})
}

// TestPlainLocks: with locks=plain a lock excludes on all nodes, and what was stored under it is not published by giving it up.
func TestPlainLocks(t *testing.T) {
	c := nodes(t, 2)
	for kind, sees := range map[string]string{"meet": "b'new'", "plain": "b'old'"} {
		one := c.Node(1)
		a, b := newLocker(t, one), newLocker(t, c.Node(2))
		for _, l := range []*locker{a, b} {
			l.do("ok", "op('"+kind+"')")
		}
		if res := one.CLI("set", filepath.Join(one.Mount, kind), "interval=0", "locks="+kind); res.Err != nil {
			t.Fatal(res.Err)
		}
		a.do("3", "os.pwrite(files['f'], b'old', 0)")
		a.do("None", "os.fsync(files['f'])")
		a.do("ok", "posix(W)")
		a.do("3", "os.pwrite(files['f'], b'new', 0)")
		b.do("EAGAIN", "posix(R)")
		b.start("posix(R, wait=True)")
		b.waits()
		a.do("ok", "posix(U)")
		b.expect("ok")
		b.do(sees, "os.pread(files['f'], 3, 0)")
		a.do("EAGAIN", "posix(W)")
	}
}

// TestLocksWait has a process wait for another on the same node, and on another one.
func TestLocksWait(t *testing.T) {
	c := nodes(t, 3)
	for _, x := range []struct {
		name     string
		from, to *harness.Node
	}{{"one node", c.Node(2), c.Node(2)}, {"two nodes", c.Node(1), c.Node(2)}, {"away from the leader", c.Node(2), c.Node(3)}} {
		t.Run(x.name, func(t *testing.T) {
			a, b, third := newLocker(t, x.from), newLocker(t, x.to), newLocker(t, c.Node(1))
			file := strings.ReplaceAll(x.name, " ", "-")
			for _, l := range []*locker{a, b, third} {
				l.do("ok", "op('"+file+"')")
			}
			// Until it is given up.
			a.do("ok", "posix(W)")
			b.start("posix(W, wait=True)")
			b.waits()
			a.do("ok", "posix(U)")
			b.expect("ok")
			// Until any descriptor of the file is closed.
			a.start("posix(W, wait=True)")
			a.waits()
			b.do("ok", "op('"+file+"', 'g', os.O_RDONLY)")
			b.do("ok", "close('g')")
			a.expect("ok")
			// Until a signal; then somebody else gets it.
			b.do("ok", "interruptible()")
			b.start("posix(W, wait=True)")
			b.interrupt()
			if got := b.answer(); !strings.HasPrefix(got, "Alarm") {
				t.Fatalf("%q, want a signal", got)
			}
			third.start("posix(W, wait=True)")
			third.waits()
			a.do("ok", "posix(U)")
			third.expect("ok")
			// Until the process dies, although one that it forked has the file open too.
			b.start("posix(R, wait=True)")
			b.waits()
			third.start("fork()")
			third.answer()
			third.kill()
			b.expect("ok")
			// A flock is the open file's: it lasts until the last process that has it is gone.
			b.do("ok", "posix(U)")
			b.do("ok", "flock(EX)")
			a.start("flock(EX)")
			a.waits()
			b.kill()
			a.expect("ok")
		})
	}
}

// TestLocksDeadlock closes a circle on one node and over two.
func TestLocksDeadlock(t *testing.T) {
	c := nodes(t, 2)
	for _, x := range []struct {
		name     string
		from, to *harness.Node
	}{{"one node", c.Node(2), c.Node(2)}, {"two nodes", c.Node(1), c.Node(2)}} {
		t.Run(x.name, func(t *testing.T) {
			a, b := newLocker(t, x.from), newLocker(t, x.to)
			for _, l := range []*locker{a, b} {
				l.do("ok", "op('one')")
				l.do("ok", "op('two', 'g')")
			}
			a.do("ok", "posix(W)")
			b.do("ok", "posix(W, f='g')")
			a.start("posix(W, f='g', wait=True)")
			a.waits()
			b.start("posix(W, wait=True)")
			select {
			case got := <-a.out:
				if got != "EDEADLK" {
					t.Fatalf("%q, want EDEADLK", got)
				}
				a.do("ok", "posix(U)")
				b.expect("ok")
			case got := <-b.out:
				if got != "EDEADLK" {
					t.Fatalf("%q, want EDEADLK", got)
				}
				b.do("ok", "posix(U, f='g')")
				a.expect("ok")
			}
		})
	}
}

// TestLocksOfDeadNode kills a node whose programs hold locks, of a file that is delegated to it and of one
// that is not. Those that wait on other nodes get them.
func TestLocksOfDeadNode(t *testing.T) {
	c := nodes(t, 3)
	a, b := newLocker(t, c.Node(3)), newLocker(t, c.Node(2))
	b.do("ok", "op('delegated')")
	b.do("ok", "op('shared', 'g')")
	a.do("ok", "op('delegated')")
	a.do("ok", "op('shared', 'g')")
	a.do("ok", "posix(W)")
	a.do("ok", "posix(W, 0, 1, 'g')")
	b.do("ok", "posix(W, 5, 1, 'g')")
	c.Node(3).Kill()
	b.start("posix(W, wait=True)")
	b.expect("ok")
	b.do("ok", "posix(W, 0, 1, 'g', wait=True)")
}

// TestLocksOfStoppedNode stops a node until its locks are dropped: when it goes on its programs are
// told, until they close the file.
func TestLocksOfStoppedNode(t *testing.T) {
	long(t)
	c := nodes(t, 3)
	a, b := newLocker(t, c.Node(3)), newLocker(t, c.Node(2))
	a.do("ok", "op('x')")
	b.do("ok", "op('x')")
	a.do("ok", "posix(W, 0, 10)")
	c.Node(3).Pause()
	b.do("ok", "posix(W, 0, 10, wait=True)")
	c.Node(3).Resume()
	a.do("EIO", "posix(W, 0, 10)")
	a.do("EIO", "posix(W, 20, 10)")
	a.do("ok", "close()")
	a.do("ok", "op('x')")
	a.do("EAGAIN", "posix(W, 0, 10)")
	a.do("ok", "posix(W, 20, 10)")
}

// TestLocksCarryData has three nodes add to a counter under a lock, by write(2) and by mappings.
func TestLocksCarryData(t *testing.T) {
	c := nodes(t, 3)
	const rounds = 60
	program := func(lock, unlock, add string) string {
		return fmt.Sprintf(`
import fcntl, mmap, struct
f = os.open(mnt + '/counter', os.O_RDWR)
m = mmap.mmap(f, 8)
meet()
for _ in range(%d):
    %s
    %s
    %s
`, rounds, lock, add, unlock)
	}
	written := "n, = struct.unpack('q', os.pread(f, 8, 0)); os.pwrite(f, struct.pack('q', n + 1), 0)"
	stored := "n, = struct.unpack('q', m[:8]); m[:8] = struct.pack('q', n + 1)"
	for _, x := range []struct{ name, code string }{
		{"fcntl, written", program("fcntl.lockf(f, fcntl.LOCK_EX)", "fcntl.lockf(f, fcntl.LOCK_UN)", written)},
		{"fcntl, stored", program("fcntl.lockf(f, fcntl.LOCK_EX)", "fcntl.lockf(f, fcntl.LOCK_UN)", stored)},
		{"flock, stored", program("fcntl.flock(f, fcntl.LOCK_EX)", "fcntl.flock(f, fcntl.LOCK_UN)", stored)},
	} {
		t.Run(x.name, func(t *testing.T) {
			c.Node(1).Python("open(mnt + '/counter', 'wb').write(bytes(8))\nfor x in os.listdir(mnt):\n    if x.startswith('here-'): os.remove(mnt + '/' + x)")
			everywhere(t, c, func(n *harness.Node) string { return x.code })
			got := c.Node(2).Python("print(int.from_bytes(open(mnt + '/counter', 'rb').read(), 'little'))")
			if want := fmt.Sprint(3 * rounds); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// everywhere runs a Python program on each node at once. What comes before a line "meet()" is done by all
// before any goes on.
func everywhere(t *testing.T, c *harness.Cluster, code func(n *harness.Node) string) {
	t.Helper()
	done := make(chan error)
	for _, n := range c.Nodes() {
		go func() {
			res := n.TryPython(fmt.Sprintf(meet, n.Name, len(c.Nodes())) + code(n))
			if res.Err != nil {
				res.Err = fmt.Errorf("%s: %w\n%s%s", n.Name, res.Err, res.Stdout, res.Stderr)
			}
			done <- res.Err
		}()
	}
	for range c.Nodes() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// meet is the Python function of that name.
const meet = `
import time
def meet():
    open(mnt + '/here-%s', 'w').close()
    while len([x for x in os.listdir(mnt) if x.startswith('here-')]) < %d:
        time.sleep(0.01)
`
