package integration

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestHardLinks gives files several names on one node and uses them on the other.
func TestHardLinks(t *testing.T) {
	c := nodes(t, 2)
	b := c.Node(2)
	sh := func(where int, script string) string {
		t.Helper()
		n := c.Node(where)
		res := n.Run(2*time.Minute, "sh", "-ec", "cd "+n.Mount+"\n"+script)
		if res.Err != nil {
			t.Fatalf("%s: %v\n%s%s\n%s", n.Name, res.Err, res.Stdout, res.Stderr, script)
		}
		return res.Stdout
	}
	sh(1, `mkdir d; echo one > d/f; ln d/f d/g; ln d/f h; test d/f -ef h`)
	if got := sh(2, `stat -c %h d/f d/g h; test d/f -ef h; cat d/g; echo two > h`); got != "3\n3\n3\none\n" {
		t.Errorf("links and content %q", got)
	}
	if got := sh(1, `cat d/f; rm d/f; stat -c %h h`); got != "two\n2\n" {
		t.Errorf("after rm of one name of three: %q", got)
	}
	cl := b.Client()
	cl.Must("rename %s %s", cl.Path("d/g"), cl.Path("h")) // two names of one file: nothing happens
	if got := sh(1, `stat -c %h d/g h; rm d/g; stat -c %h h; cat h`); got != "2\n2\n1\ntwo\n" {
		t.Errorf("after a rename of one name to another: %q", got)
	}
	if got := sh(2, `! ln d e 2> /dev/null; ln -s h s; ln -P s s2; readlink s2; stat -c %h s2`); got != "h\n2\n" {
		t.Errorf("directories and symbolic links: %q", got)
	}
	// A file stays until its last name and its last descriptor are gone.
	sh(1, `exec 3< h; rm h; cat <&3`)
	sh(1, `mkdir src; for i in 1 2 3; do echo $i > src/$i; done`)
	if got := sh(2, `cp -al src dst; stat -c %h dst/1 dst/2 dst/3; rm -r src; cat dst/*`); got != "2\n2\n2\n1\n2\n3\n" {
		t.Errorf("cp -al: %q", got)
	}
	if got := sh(1, `stat -c %h dst/2`); got != "1\n" {
		t.Errorf("links after the other tree was removed: %q", got)
	}
}

// TestTemporaryFileGetsAName opens a file without a name and names it when it is written, as savers do.
func TestTemporaryFileGetsAName(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	c := nodes(t, 2)
	a, b := c.Node(1), c.Node(2)
	const script = `
import ctypes, os, sys
d = sys.argv[1]
here, empty = -100, 0x1000 # AT_FDCWD, AT_EMPTY_PATH
fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(fd, b'whole')
assert os.fstat(fd).st_nlink == 0 and os.listdir(d) == [], os.listdir(d)
os.link(str(fd), d + '/named', src_dir_fd=os.open('/proc/self/fd', os.O_PATH), follow_symlinks=True)
assert os.fstat(fd).st_nlink == 1
fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(fd, b'second')
assert ctypes.CDLL(None).linkat(fd, b'', here, (d + '/second').encode(), empty) == 0
gone = os.open(d, os.O_TMPFILE | os.O_RDWR)
os.write(gone, b'nobody')
os.close(gone)
`
	if res := a.Run(time.Minute, "python3", "-c", script, a.Mount); res.Err != nil {
		t.Fatalf("%v: %s", res.Err, res.Stderr)
	}
	if res := b.Run(time.Minute, "cat", b.Mount+"/named", b.Mount+"/second"); res.Stdout != "wholesecond" {
		t.Errorf("the other node reads %q, %v", res.Stdout, res.Err)
	}
}

// TestGitOnTwoNodes clones a repository of the mount, with hard links, and commits on both nodes in turn.
func TestGitOnTwoNodes(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	c := nodes(t, 2)
	git := `git -c user.name=n -c user.email=n@example.org -c safe.directory='*' -c init.defaultBranch=main`
	for i, script := range []string{
		`mkdir repo && cd repo && ` + git + ` init -q . && echo 0 > f && ` + git + ` add f && ` + git + ` commit -qm first`,
		git + ` clone -q repo clone && cd clone && echo 1 >> f && ` + git + ` commit -qam second && ` + git + ` push -q origin HEAD:other`,
		`cd clone && echo 2 >> f && ` + git + ` commit -qam third && ` + git + ` fsck --strict`,
		`cd clone && ` + git + ` status --porcelain && cat f && cd ../repo && ` + git + ` merge -q other && cat f && ` + git + ` fsck --strict`,
	} {
		n := c.Node(i%2 + 1)
		res := n.Run(2*time.Minute, "sh", "-ec", "cd "+n.Mount+"\n"+script)
		if res.Err != nil {
			t.Fatalf("step %d on %s: %v\n%s%s", i, n.Name, res.Err, res.Stdout, res.Stderr)
		}
		if i == 3 && !strings.HasPrefix(res.Stdout, "0\n1\n2\n0\n1\n") {
			t.Errorf("files in the end: %q", res.Stdout)
		}
	}
}

// TestDirectIO reads and writes a file with O_DIRECT while the same program has it mapped, another reads
// it through the page cache, and a third on the other node has it open.
func TestDirectIO(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	c := nodes(t, 2)
	a, b := c.Node(1), c.Node(2)
	const script = `
import mmap, os, sys
here, there = sys.argv[1] + '/f', sys.argv[2] + '/f'
page = 4096
fd = os.open(here, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_DIRECT)
buf = mmap.mmap(-1, page)  # aligned
def write(at, c):
    buf[:] = c * page
    assert os.pwritev(fd, [buf], at) == page
def acquire(path):
    os.close(os.open(path, os.O_RDONLY))
def read(at):
    assert os.preadv(fd, [buf], at) == page
    return buf[:1]
for i in range(16):
    write(i * page, bytes([65 + i]))
assert os.fstat(fd).st_size == 16 * page
plain = os.open(here, os.O_RDWR)
m = mmap.mmap(plain, 16 * page)
other = os.open(there, os.O_RDWR)
for i in range(16):
    at = i * page
    assert m[at] == 65 + i, (i, m[at])
    write(at, b'1')
    assert m[at:at+1] == b'1' and os.pread(plain, 1, at) == b'1', (i, m[at])
    m[at + 1] = ord('2')
    assert read(at) == b'1' and buf[:2] == b'12', buf[:2]
    os.fsync(fd)
    acquire(there)
    assert os.pread(other, 2, at) == b'12', (i, os.pread(other, 2, at))
    os.pwrite(other, b'3', at + 2)
    os.fsync(other)
    acquire(here)
    assert read(at) == b'1' and buf[:3] == b'123', buf[:3]
    assert m[at:at+3] == b'123'
assert os.preadv(fd, [buf], 16 * page) == 0
`
	if res := a.Run(time.Minute, "python3", "-c", script, a.Mount, b.Mount); res.Err != nil {
		t.Errorf("%v: %s", res.Err, res.Stderr)
	}
}
