package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestStoresUnderALockThatIsLost: a program stores under a lock, its node is cut off, and another node gets the lock. What the program had stored, and what it
// stores until it closes the file, is not merged with what was stored under the lock later, neither element by element nor page by page: the program gets EIO, and
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
	}{
		{"fcntl, written", "n1", "posix(W, 0, 10)", put, "4"},
		{"fcntl, written, home cut off", "n3", "posix(W, 0, 10)", put, "4"},
		{"fcntl, mapped", "n1", "posix(W, 0, 10)", store, "None"},
		{"flock, mapped", "n2", "flock(EX)", store, "None"},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, all := parted(t, x.home, 2)
			f := all[0].Open("d/x", "rw,creat,excl")
			f.Truncate(4 * page)
			a, b := newLocker(t, c.Node(3)), newLocker(t, c.Node(2))
			a.do("ok", "op('d/x')")
			b.do("ok", "op('d/x')")
			a.do("ok", x.lock)
			a.do("ok", "mapped('f') and 'ok'")
			c.Partition([]*harness.Node{c.Node(3)}, []*harness.Node{c.Node(1), c.Node(2)})
			a.do(x.returns, x.put(0, "aaaa"))
			a.do(x.returns, x.put(page, "aaaa"))
			evicted(t, c.Node(1), "n3")
			wait := strings.Replace(x.lock, "10)", "10, wait=True)", 1)
			b.do("ok", wait)
			b.do("2", put(1, "bb"))
			b.do("None", "os.fsync(files['f'])")
			c.Heal()
			member(t, c.Node(1), "n3")
			a.do("EIO", x.lock)
			a.do(x.returns, x.put(2*page, "late"))
			a.do("EIO", "os.fsync(files['f'])")
			a.do("ok", "close()")
			b.do("ok", "close()")
			a.do("ok", "op('d/x')")
			a.do("ok", x.lock)
			b.do("ok", "op('d/x')")
			for _, l := range []*locker{a, b} {
				l.do(`b'\x00bb\x00'`, "os.pread(files['f'], 4, 0)")
				l.do(`b'\x00\x00\x00\x00'`, fmt.Sprintf("os.pread(files['f'], 4, %d)", page))
				l.do(`b'\x00\x00\x00\x00'`, fmt.Sprintf("os.pread(files['f'], 4, %d)", 2*page))
			}
			got := strings.Join(kept(all[1], "d/x"), "\n")
			for _, text := range []string{"aaaa", "aaaa", "late"} {
				line := fmt.Sprintf("length=4 kept=%x", text)
				if !strings.Contains(got, line) {
					t.Errorf("no %q among the conflicts:\n%s", line, got)
				}
				got = strings.Replace(got, line, "", 1)
			}
		})
	}
}
