package integration

import (
	"path/filepath"
	"strconv"
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
func TestVersionsAreWhole(t *testing.T) {
	c := nodes(t, 2)
	writer := versioned(t, c)
	readers := readWhole(t, ways, c.Nodes()...)
	const half, last = 60, 120
	readers.until(last - 1)
	writer.Must("2 %d mapping", half)
	writer.Must("%d %d memory", half, last)
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
