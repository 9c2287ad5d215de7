package integration

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestStoresUnderALockThatIsLost: a program stores under a lock, its node is cut off, or its daemon is killed and no other follows for a while, and another node gets the lock. What the program had stored, and what it
// stores until it closes the file or has been told by an unlock, is not merged with what was stored under the lock later, neither element by element nor page by page: the program gets EIO, and
// the bytes are kept as conflicts.
func TestStoresUnderALockThatIsLost(t *testing.T) {
	put := func(off int, text string) string { return fmt.Sprintf("os.pwrite(files['f'], b'%s', %d)", text, off) }
	store := func(off int, text string) string {
		return fmt.Sprintf("mapped('f').__setitem__(slice(%d, %d), b'%s')", off, off+len(text), text)
	}
	for _, x := range []struct {
		name, home, lock string
		put              func(off int, text string) string
		returns          string
		killed           bool
		unlock           string // the program does that in place of closing the file
	}{
		{"fcntl, written", "n1", "posix(W, 0, 10)", put, "4", false, ""},
		{"fcntl, written, home cut off", "n3", "posix(W, 0, 10)", put, "4", false, "posix(U, 0, 0)"},
		{"fcntl, mapped", "n1", "posix(W, 0, 10)", store, "None", false, ""},
		{"flock, mapped", "n2", "flock(EX)", store, "None", false, "flock(UN)"},
		{"fcntl, written, killed", "n1", "posix(W, 0, 10)", put, "4", true, "posix(U, 0, 0)"},
		{"flock, mapped, home killed", "n3", "flock(EX)", store, "None", true, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			var flags []string
			if x.killed {
				flags = []string{"--hold"}
			}
			c, all := parted(t, x.home, 2, flags...)
			f := all[0].Open("d/x", "rw,creat,excl")
			f.Truncate(4 * page)
			a, b := newLocker(t, c.Node(3)), newLocker(t, c.Node(2))
			a.do("ok", "op('d/x')")
			b.do("ok", "op('d/x')")
			a.do("ok", x.lock)
			a.do("ok", "mapped('f') and 'ok'")
			stores := func() {
				a.do(x.returns, x.put(0, "aaaa"))
				a.do(x.returns, x.put(page, "aaaa"))
			}
			heal := c.Heal
			if x.killed {
				all[0].SetXattr("d/x", "user.dsm.interval", "0") // nothing is published before
				stores()
				heal = killedAlone(t, c.Node(3), all[2])
			} else {
				c.Partition([]*harness.Node{c.Node(3)}, []*harness.Node{c.Node(1), c.Node(2)})
				stores()
			}
			evicted(t, c.Node(1), "n3")
			wait := strings.Replace(x.lock, "10)", "10, wait=True)", 1)
			b.do("ok", wait)
			b.do("2", put(1, "bb"))
			b.do("None", "os.fsync(files['f'])")
			heal()
			member(t, c.Node(1), "n3")
			a.do("EIO", x.lock)
			a.do(x.returns, x.put(2*page, "late"))
			a.do("EIO", "os.fsync(files['f'])")
			got := strings.Join(kept(all[1], "d/x"), "\n")
			for _, text := range []string{"aaaa", "aaaa", "late"} {
				line := fmt.Sprintf("length=4 kept=%x", text)
				if !strings.Contains(got, line) {
					t.Errorf("no %q among the conflicts:\n%s", line, got)
				}
				got = strings.Replace(got, line, "", 1)
			}
			if x.killed { // this time another daemon follows at once
				before := kept(all[1], "d/x")
				killedAlone(t, c.Node(3), all[2])()
				a.do("EIO", x.lock)
				if !harness.Eventually(limit, func() bool { return slices.Equal(kept(all[1], "d/x"), before) }) {
					t.Errorf("the next daemon keeps conflicts %q, want %q", kept(all[1], "d/x"), before)
				}
			}
			if x.unlock == "" {
				a.do("ok", "close()")
				a.do("ok", "op('d/x')")
			} else {
				a.do(x.returns, x.put(3*page, "last"))
				a.do("EIO", x.unlock)
			}
			b.do("ok", "close()")
			a.do("ok", x.lock)
			b.do("ok", "op('d/x')")
			for _, l := range []*locker{a, b} {
				l.do(`b'\x00bb\x00'`, "os.pread(files['f'], 4, 0)")
				l.do(`b'\x00\x00\x00\x00'`, fmt.Sprintf("os.pread(files['f'], 4, %d)", page))
				l.do(`b'\x00\x00\x00\x00'`, fmt.Sprintf("os.pread(files['f'], 4, %d)", 2*page))
				l.do(`b'\x00\x00\x00\x00'`, fmt.Sprintf("os.pread(files['f'], 4, %d)", 3*page))
			}
			a.do("None", "os.close(os.dup(files['f']))") // of what was stored under the lock the program has been told
		})
	}
}

// TestDatabaseGoesOnAfterItsLockIsLost: a program has begun to change a database when its node is cut off. It cannot commit, and goes on with the same connection when the node is back.
func TestDatabaseGoesOnAfterItsLockIsLost(t *testing.T) {
	c, _ := parted(t, "n1", 2)
	a, b := newLocker(t, c.Node(3)), newLocker(t, c.Node(2))
	a.do("ok", "connect('d/db')")
	a.do("ok", "sql('CREATE TABLE t (who)')")
	b.do("ok", "connect('d/db')")
	a.do("ok", "sql('BEGIN IMMEDIATE')")
	a.do("ok", `sql("INSERT INTO t VALUES ('lost')")`)
	c.Partition([]*harness.Node{c.Node(3)}, []*harness.Node{c.Node(1), c.Node(2)})
	evicted(t, c.Node(1), "n3")
	b.do("ok", `sql("INSERT INTO t VALUES ('n2')")`)
	c.Heal()
	member(t, c.Node(1), "n3")
	a.do("OperationalError disk I/O error", "sql('COMMIT')")
	const tries = 5 // each may be told of what the one before had stored
	said := ""
	for i := 0; said != "ok"; i++ {
		if i == tries {
			t.Fatalf("the connection does not work again: %s", said)
		}
		a.start(`sql("INSERT INTO t VALUES ('n3')")`)
		said = a.answer()
	}
	for _, l := range []*locker{a, b} {
		l.do("n2 n3", "' '.join(r[0] for r in files['d'].execute('SELECT who FROM t ORDER BY who'))")
		l.do("ok", "sql('PRAGMA integrity_check')")
	}
}

// killedAlone kills the daemon of a node when others have all of which it is the home, and keeps another from following until the function that it returns is called.
func killedAlone(t *testing.T, n *harness.Node, cl *harness.Client) (follow func()) {
	t.Helper()
	if !harness.Eventually(limit, func() bool { return strings.Contains(cl.Control("cluster"), "\nuncovered 0\n") }) {
		t.Fatalf("parts of the memory are at the node alone:\n%s", cl.Control("cluster"))
	}
	n.Pause() // the holder
	if err := syscall.Kill(n.Daemon(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return n.Resume
}
