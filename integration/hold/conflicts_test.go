package hold_test

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// control returns what a control file has at a node.
func control(n *harness.Node, name string) string {
	return n.Run(limit, "cat", filepath.Join(n.Mount, ".dsm", name)).Stdout
}

func conflicts(n *harness.Node) string { return control(n, "areas/d/f/conflicts") }

// evicted waits until a node is no member any more at another one.
func evicted(t *testing.T, at, n *harness.Node) {
	t.Helper()
	member := func() bool {
		for line := range strings.Lines(control(at, "members")) {
			if strings.Contains(line, n.Name) && !strings.Contains(line, "gone") {
				return true
			}
		}
		return false
	}
	if !harness.Eventually(limit, func() bool { return !member() }) {
		t.Fatalf("the node is not evicted:\n%s", control(at, "members"))
	}
}

// fileAt makes a file of which a node is the home, with attributes, and has programs of two nodes open it: there at the home, and here at another. It has backups.
func fileAt(t *testing.T, home, n *harness.Node, attributes ...string) (program *harness.Client, there, here *harness.File) {
	t.Helper()
	program = home.Client()
	program.Must("mkdir %s", program.Path("d"))
	for pair := range slices.Chunk(append(attributes, "user.dsm.placement", home.Name), 2) {
		program.SetXattr("d", pair[0], pair[1])
	}
	there = program.Open("d/f", "rw,creat")
	there.Write(0, []byte("aaaabbbb"))
	there.Sync()
	here = n.Client().Open("d/f", "rw")
	if got := here.Read(0, 8); string(got) != "aaaabbbb" {
		t.Fatalf("the node reads %q", got)
	}
	covered(t, home)
	return program, there, here
}

// TestConflictsOutliveTheirDaemon: a node was cut off while both sides stored to a file, and keeps what it had stored as conflicts. Then its daemon is killed, twice. The conflicts are there
// until they are cleared, and not again after that.
func TestConflictsOutliveTheirDaemon(t *testing.T) {
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	c := harness.New(t, harness.Options{Nodes: 3, Network: harness.Namespaces, Memory: "256M", Flags: []string{"--hold", "--lease", "1s", "--fault-timeout", "2s"}})
	nodes := c.Nodes()
	n := nodes[2]
	there, f, here := fileAt(t, nodes[0], n)
	c.Partition([]*harness.Node{n}, nodes[:2])
	here.Write(0, []byte("mino"))
	f.Write(0, []byte("MAJO"))
	evicted(t, nodes[0], n)
	f.Sync()
	c.Heal()
	const want = " offset=0 length=4 kept=6d696e6f taken=4d414a4f\n"
	var found string
	if !harness.Eventually(limit, func() bool {
		found = conflicts(nodes[0])
		return strings.HasSuffix(found, want)
	}) {
		t.Fatalf("conflicts %q, want one that ends with %q", found, want)
	}
	last := 0
	for range 2 {
		covered(t, nodes[0])
		last = killDaemon(t, n, last, 0, syscall.SIGKILL)
		for _, o := range []*harness.Node{n, nodes[0]} {
			if !harness.Eventually(limit, func() bool { return conflicts(o) == found }) {
				t.Errorf("%s shows conflicts %q, want %q", o.Name, conflicts(o), found)
			}
		}
		if got := here.Read(0, 8); string(got) != "MAJObbbb" {
			t.Errorf("the node reads %q", got)
		}
	}
	if err := there.SetControl("areas/d/f/conflicts", "clear"); err != nil {
		t.Fatal(err)
	}
	covered(t, nodes[0])
	killDaemon(t, n, last, 0, syscall.SIGKILL)
	here.Write(4, []byte("more"))
	here.Sync()
	if got := conflicts(n); got != "" {
		t.Errorf("cleared, and there again: %q", got)
	}
	if got := f.Read(0, 8); string(got) != "MAJOmore" {
		t.Errorf("another node reads %q", got)
	}
}

// TestConflictsOfADaemonThatIsKilled: a daemon is killed that has not published what a program has stored, and the cluster evicts the node before another one follows. What others have published
// meanwhile stays, and what the program had stored is a conflict.
func TestConflictsOfADaemonThatIsKilled(t *testing.T) {
	c := heldCluster(t, 3, "--lease", "1s")
	nodes := c.Nodes()
	n := nodes[2]
	_, f, here := fileAt(t, nodes[0], n, "user.dsm.interval", "0")
	here.Write(0, []byte("mino.."))
	n.Pause() // the holder
	killDaemon(t, n, 0, 0, syscall.SIGKILL)
	evicted(t, nodes[0], n)
	f.Write(0, []byte("MAJO"))
	f.Sync()
	n.Resume()
	here.Sync()
	const want = " offset=0 length=4 kept=6d696e6f taken=4d414a4f\n"
	if got := conflicts(n); !strings.HasSuffix(got, want) {
		t.Errorf("conflicts %q, want one that ends with %q", got, want)
	}
	if got := f.Read(0, 8); string(got) != "MAJO..bb" {
		t.Errorf("another node reads %q", got)
	}
}
