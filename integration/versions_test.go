package integration

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The tests here publish versions of an array whose elements are all of one value in each, while readers look for an array of several values.

// versionElements is the length of the array: more than two pieces of a large read(2), and three extents.
const versionElements = 300_000

// ways are those in which readers get a version: one read() of the live name, one read of it from end to end in pieces, read(), sendfile() and
// mmap of versions/N, and snapshot() of the Python package.
var ways = []string{"live", "pieces", "version", "sendfile", "mmap", "snapshot"}

// wholeReaders are readers of all ways on some nodes.
type wholeReaders struct {
	t    *testing.T
	all  []*harness.Client
	what []string
	wait sync.WaitGroup
	seen []int
}

// versioned makes the array with a first version, all ones, at the first node, and starts a writer there.
func versioned(t *testing.T, c *harness.Cluster) (writer *harness.Client) {
	t.Helper()
	needNumPy(t)
	cl := c.Node(1).Client()
	f := cl.Open("w", "rw,creat,excl")
	cl.SetXattr("w", "user.dsm.mode", "versioned")
	f.Truncate(8 * versionElements)
	f.Close()
	writer = versionProgram(t, c.Node(1), "writer.py", filepath.Join(c.Node(1).Mount, "w"))
	writer.Must("1 2 mapping")
	return writer
}

func versionProgram(t *testing.T, n *harness.Node, script string, args ...string) *harness.Client {
	t.Helper()
	python, _ := harness.Interpreter()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	return n.Program("/usr/bin/env", append([]string{"PYTHONPATH=" + filepath.Join(root, "pybind"), python, "-W", "ignore", filepath.Join("versions", script)}, args...)...)
}

func readWhole(t *testing.T, ways []string, nodes ...*harness.Node) *wholeReaders {
	t.Helper()
	r := &wholeReaders{t: t}
	for _, n := range nodes {
		for _, way := range ways {
			r.all = append(r.all, versionProgram(t, n, "reader.py", way, n.Mount, "w", strconv.Itoa(versionElements)))
			r.what = append(r.what, way+" on "+n.Name)
		}
	}
	r.seen = make([]int, len(r.all))
	return r
}

// until has all of them read until they see a value, or a later one. It does not wait.
func (r *wholeReaders) until(value int) {
	for i, cl := range r.all {
		r.wait.Go(func() {
			words, err := cl.Do("%d", value)
			if err != nil || words[1] != "0" {
				r.t.Errorf("%s: %v, %v torn, want that %d comes", r.what[i], err, words, value)
				return
			}
			r.seen[i], _ = strconv.Atoi(words[0])
		})
	}
}

// whole waits for them.
func (r *wholeReaders) whole() {
	r.t.Helper()
	r.wait.Wait()
	for i, n := range r.seen {
		r.t.Logf("%-20s %4d versions, 0 torn", r.what[i], n)
	}
}

// TestVersionsAreWhole has a writer that stores through a mapping, and one that attaches.
func TestVersionsAreWhole(t *testing.T) { wholeByBoth(t, 120, "") }

// TestVersionsOfClosesAreWhole has a writer that opens the file again and again: what the kernel says of a close comes when the program stores again.
func TestVersionsOfClosesAreWhole(t *testing.T) { wholeByBoth(t, 200, " again") }

// wholeByBoth has half of so many versions be stored through a mapping, and the others by attaching.
func wholeByBoth(t *testing.T, last int, how string) {
	t.Helper()
	c := nodes(t, 2)
	writer := versioned(t, c)
	readers := readWhole(t, ways, c.Nodes()...)
	readers.until(last - 1)
	writer.Must("2 %d mapping%s", last/2, how)
	writer.Must("%d %d memory%s", last/2, last, how)
	readers.whole()
}

// TestVersionsAreWholeUnderLoss loses packets in both directions.
func TestVersionsAreWholeUnderLoss(t *testing.T) {
	long(t)
	c := cluster(t, harness.Options{Nodes: 2, Network: harness.Namespaces})
	writer := versioned(t, c)
	readers := readWhole(t, ways, c.Nodes()...)
	for _, n := range c.Nodes() {
		n.Lose(1)
	}
	const last = 80
	readers.until(last - 1)
	writer.Must("2 %d mapping", last)
	readers.whole()
}

// TestVersionsPassAStoppedSubscriber stops a daemon: the writer goes on, others see its versions, and the subscriber sees whole ones later.
func TestVersionsPassAStoppedSubscriber(t *testing.T) {
	c := cluster(t, harness.Options{Nodes: 3, Flags: lasting})
	writer := versioned(t, c)
	slow := readWhole(t, []string{"live", "mmap"}, c.Node(3))
	slow.until(1)
	slow.wait.Wait()
	others := readWhole(t, []string{"live", "mmap"}, c.Node(2))
	const stopped, last = 20, 40
	c.Node(3).Pause()
	others.until(stopped - 1)
	writer.Must("2 %d mapping", stopped)
	others.wait.Wait()
	c.Node(3).Resume()
	others.until(last - 1)
	slow.until(last - 1)
	writer.Must("%d %d memory", stopped, last)
	others.whole()
	slow.whole()
}

// TestVersionsAreWholeWhileTheOwnerChanges moves the area from node to node between versions.
func TestVersionsAreWholeWhileTheOwnerChanges(t *testing.T) {
	c := nodes(t, 3)
	writers := []*harness.Client{versioned(t, c)}
	for _, n := range c.Nodes()[1:] {
		writers = append(writers, versionProgram(t, n, "writer.py", filepath.Join(n.Mount, "w")))
	}
	readers := readWhole(t, []string{"live", "mmap", "snapshot"}, c.Node(1), c.Node(2))
	const turns, each = 9, 8
	readers.until(2 + turns*each - 1)
	for i := range turns {
		at, asked := c.Node(1+(i+1)%3), c.Node(1+i%2) // who asks is in turn the old owner, the new one, and neither
		res := asked.CLI("area", "transfer", asked.Mount+"/w", at.Name)
		done(t, "transfer", res)
		plane := []string{"mapping", "memory"}[i%2]
		writers[(i+1)%3].Must("%d %d %s", 2+i*each, 2+(i+1)*each, plane)
	}
	readers.whole()
	cl := c.Node(3).Client()
	if got := cl.Control("areas/w/owner"); got != "n1\n" {
		t.Errorf("the owner is %q", got)
	}
}

// keepsVersions makes an empty versioned file of which many versions are kept.
func keepsVersions(cl *harness.Client, name string) {
	cl.Open(name, "rw,creat").Close()
	cl.SetXattr(name, "user.dsm.mode", "versioned")
	cl.SetXattr(name, "user.dsm.retain", "8")
}

// TestOnePublishIsOneVersion: what has come by write(2) is not published before what is found in a mapping.
func TestOnePublishIsOneVersion(t *testing.T) {
	c := nodes(t, 1)
	n := c.Node(1)
	cl := n.Client()
	keepsVersions(cl, "w")
	f := cl.Open("w", "rw")
	f.Truncate(2 * page)
	m := f.Map(2 * page)
	f.Write(0, []byte("one"))
	m.Store(page, []byte("one"))
	m.Sync()
	versions := func() []string {
		t.Helper()
		res := n.Run(limit, "ls", cl.Path(".dsm/areas/w/versions"))
		done(t, "ls", res)
		return strings.Fields(res.Stdout)
	}
	before := versions()
	f.Write(0, []byte("two"))
	m.Store(page, []byte("two"))
	if err := cl.SetControl("areas/w/publish", "1"); err != nil {
		t.Fatal(err)
	}
	now := versions()
	if len(now) != len(before)+1 {
		t.Errorf("one publish has made %d versions", len(now)-len(before))
	}
	v := cl.Open(".dsm/areas/w/versions/"+now[len(now)-1], "r")
	if got := string(v.Read(0, 3)) + string(v.Read(page, 3)); got != "twotwo" {
		t.Errorf("the version has %q", got)
	}
}

// TestChildrenPublishNothing: a child that a program starts in the midst of a version closes what it has inherited. Who has been left a file publishes it.
func TestChildrenPublishNothing(t *testing.T) {
	c := nodes(t, 1)
	n := c.Node(1)
	cl := n.Client()
	keepsVersions(cl, "w")
	python, _ := harness.Interpreter()
	res := n.Run(limit, python, "-c", childrenOfAWriter, cl.Path("w"), cl.Path(".dsm/areas/w/versions"))
	done(t, "python", res)
	if got, want := strings.TrimSpace(res.Stdout), "0 0 1 1 3"; got != want {
		t.Errorf("there are %s versions, want %s", got, want)
	}
}

// childrenOfAWriter prints how many versions there are when a program has stored, when a child of it has ended, when it has closed the file; when it has stored again and left the file to a child, and when that has closed it.
const childrenOfAWriter = `
import os, subprocess, sys
path, versions = sys.argv[1:]
count = lambda: print(len(os.listdir(versions)), end=" ", flush=True)
f = os.open(path, os.O_RDWR)
os.pwrite(f, b"one", 0)
count()
subprocess.run(["true"], check=True)
count()
os.close(f)
count()
f = os.open(path, os.O_RDWR)
os.pwrite(f, b"two", 0)
child = os.fork()
if not child:
    os.close(f)
    os._exit(0)
os.waitpid(child, 0)
count()
begin, go = os.pipe()
child = os.fork()
if not child:
    os.close(go)
    os.read(begin, 1)
    os.pwrite(f, b"six", 4)
    os.close(f)
    os._exit(0)
os.close(f)
os.close(go)
os.waitpid(child, 0)
count()
`

// TestOthersPublishNothing: programs that read, and what a program does that opens a file, maps it and closes one of two descriptors, publish nothing of what a program is storing.
func TestOthersPublishNothing(t *testing.T) {
	c := nodes(t, 1)
	n := c.Node(1)
	cl := n.Client()
	cl.Open("w", "rw,creat").Close()
	cl.SetXattr("w", "user.dsm.mode", "versioned")
	cl.SetXattr("w", "user.dsm.retain", "64")
	python, _ := harness.Interpreter()
	res := n.Run(limit, python, "-c", othersOfAWriter, cl.Path("w"), cl.Path(".dsm/areas/w/versions"))
	done(t, "python", res)
	if got := strings.TrimSpace(res.Stdout); got != "" {
		t.Errorf("versions were made: %s", got)
	}
}

// othersOfAWriter prints what others have done to a file that has made a version.
const othersOfAWriter = `
import ctypes, mmap, os, subprocess, sys
path, versions = sys.argv[1:]
READER = '''
import fcntl, os, sys
path, what = sys.argv[1:]
f = os.open(path, os.O_RDONLY)
if what == "fsync":
    os.fsync(f)
elif what == "flock":
    fcntl.flock(f, fcntl.LOCK_SH)
    fcntl.flock(f, fcntl.LOCK_UN)
    fcntl.flock(f, fcntl.LOCK_SH)
elif what == "lockf":
    fcntl.lockf(f, fcntl.LOCK_SH)
    fcntl.lockf(f, fcntl.LOCK_UN)
    fcntl.lockf(f, fcntl.LOCK_SH)
elif what == "utime":
    os.utime(path, (1, 1))
os.close(f)
'''
count = lambda: len(os.listdir(versions))
def others(what):
    for act in "nothing", "fsync", "flock", "lockf", "utime":
        os.pwrite(f, (what + act).encode(), 0)
        before = count()
        subprocess.run([sys.executable, "-c", READER, path, act], check=True)
        if count() != before:
            print(what, act)
f = os.open(path, os.O_RDWR)
os.ftruncate(f, 4096)
os.fsync(f)
others("one descriptor")
g, f = f, os.dup(f)
os.close(g)
others("one of two")
m = mmap.mmap(f, 4096)
others("a mapping")
m.close()
os.close(f)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
f = os.open(path, os.O_RDWR)
at = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, f, 0)
begin, go = os.pipe()
child = os.fork()
if not child:
    os.close(go)
    os.read(begin, 1)
    os.close(f)
    os._exit(0)
os.close(f)
ctypes.memmove(at, b"left", 4)
before = count()
os.close(go)
os.waitpid(child, 0)
if count() != before:
    print("a mapping without a descriptor")
`

// TestWhatIsLeftGoesWithTheNextClose: a program has another file open when one that has attached it is killed, and publishes nothing. What that one had stored is a version when the first closes the file.
func TestWhatIsLeftGoesWithTheNextClose(t *testing.T) {
	c := nodes(t, 1)
	n := c.Node(1)
	cl := n.Client()
	cl.Open("w", "rw,creat").Close()
	cl.SetXattr("w", "user.dsm.mode", "versioned")
	f := cl.Open("w", "rw")
	f.Truncate(page)
	f.Write(0, []byte("one"))
	f.Sync()
	python, _ := harness.Interpreter()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	res := n.Run(limit, "env", "PYTHONPATH="+filepath.Join(root, "pybind"), python, "-c", "import dsmfs, os, sys\nw = dsmfs.open(sys.argv[1], 'r+', dtype='u1', plane='memory')\nw.array[:3] = list(b'two')\nos._exit(0)", cl.Path("w"))
	done(t, "python", res)
	f.Close()
	if got := string(cl.Open("w", "r").Read(0, 3)); got != "two" {
		t.Errorf("the newest version has %q, want what was left", got)
	}
}

// TestKilledWriters: a program that is killed in the midst of a version has published nothing of it. What it had stored is kept as conflicts, and programs see the version before. One that exits has closed the file.
func TestKilledWriters(t *testing.T) {
	c := nodes(t, 1)
	n := c.Node(1)
	needNumPy(t)
	cl := n.Client()
	for _, how := range []string{"write", "memmap", "page-cache", "memory"} {
		t.Run(how, func(t *testing.T) {
			cl.Open(how, "rw,creat").Close()
			cl.SetXattr(how, "user.dsm.mode", "versioned")
			f := cl.Open(how, "rw")
			f.Write(0, bytes.Repeat([]byte{1}, 2*page))
			f.Close()
			newest := func() string {
				r := cl.Open(how, "r")
				defer r.Close()
				b := r.Read(0, 2*page)
				return fmt.Sprint(b[0], b[page])
			}
			conflicts := func() string { return cl.Control("areas/" + how + "/conflicts") }
			victim := versionProgram(t, n, "killed.py", how, cl.Path(how))
			victim.Must("store")
			victim.Kill()
			if !harness.Eventually(limit, func() bool { return strings.Contains(conflicts(), "n1/") }) {
				t.Fatalf("nothing is kept as a conflict: %q", conflicts())
			}
			if got := newest(); got != "1 1" {
				t.Errorf("the newest version has %s, want 1 1", got)
			}
			w := cl.Open(how, "rw")
			if b := w.Read(0, 2*page); b[0] != 1 || b[page] != 1 {
				t.Errorf("a program that opens the file to write has %d and %d, want 1 and 1", b[0], b[page])
			}
			w.Close()
			leaves := versionProgram(t, n, "killed.py", how, cl.Path(how))
			leaves.Must("store")
			leaves.Close()
			if !harness.Eventually(limit, func() bool { return newest() == "7 1" }) {
				t.Errorf("the newest version has %s when a program has exited, want 7 1", newest())
			}
		})
	}
}

// TestOneNodeWritesAVersionedFile: programs elsewhere are refused, and the area does not move while one has it open for writing.
func TestOneNodeWritesAVersionedFile(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	dir := func(cl *harness.Client) string { return cl.Path("w") }
	a.Open("w", "rw,creat").Close()
	a.SetXattr("w", "user.dsm.mode", "versioned")
	refuses(t, c.Node(1).CLI("area", "transfer", a.Path("w"), "nobody"), "no member has this name or id", "n1 n2")
	f := a.Open("w", "rw")
	f.Truncate(page)
	b.Fails("EACCES", "open %s rw", dir(b))
	b.Fails("EACCES", "open %s w,trunc", dir(b))
	b.Fails("EACCES", "truncate %s 5", dir(b))
	logs(t, c.Node(2), "n1 owns it|node .* owns it")
	if got := b.Xattr("w", "user.dsm.owner"); got != "n1" {
		t.Errorf("the owner is %q", got)
	}
	refuses(t, c.Node(2).CLI("area", "transfer", b.Path("w")), "programs of node n1 have it open for writing")
	f.Close()
	done(t, "transfer", c.Node(2).CLI("area", "transfer", b.Path("w")))
	g := b.Open("w", "rw")
	g.Write(0, []byte("from n2"))
	g.Sync()
	a.Fails("EACCES", "open %s rw", dir(a))
	refuses(t, c.Node(1).CLI("area", "transfer", a.Path("w"), "n1"), "programs of node n2 have it open for writing")
	if !harness.Eventually(limit, func() bool { r := a.Open("w", "r"); defer r.Close(); return string(r.Read(0, 7)) == "from n2" }) {
		t.Error("what the new owner has published does not come")
	}
	res := c.Node(1).CLI("areas", c.Node(1).Mount)
	done(t, "areas", res)
	t.Log(res.Stdout)
	a.Fails("EBUSY", "setxattr %s user.dsm.mode relaxed", dir(a))
	refuses(t, c.Node(1).CLI("set", a.Path("w"), "mode=relaxed"), "fixed while the file is not empty")
	refuses(t, c.Node(1).CLI("set", a.Path("w"), "merge=sum"), "merge sum is for areas of mode relaxed")
	refuses(t, c.Node(1).CLI("set", a.Path("w"), "retain=0"), "retain")
	r := a.Open("r", "rw,creat")
	r.Close()
	refuses(t, c.Node(1).CLI("area", "transfer", a.Path("r")), "only a file with mode=versioned has an owner; its mode is relaxed")
}
