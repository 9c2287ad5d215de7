package integration

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestDaemonDiesUnderItsPrograms kills a daemon whose files are open, mapped and
// dirty: its programs get errors and can end; the other nodes go on with names.
func TestDaemonDiesUnderItsPrograms(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	const size = 8 << 20
	f, m := all[0].Create("w", size)
	_, om := all[1].Attach("w", size)
	m.Store(0, []byte("dirty"))
	c.Node(1).Kill()
	for what, do := range map[string]func() error{
		"stat":  func() error { _, err := all[0].Do("stat %s", all[0].Path("w")); return err },
		"fsync": func() error { _, err := all[0].Do("fsync %d", f.FD); return err },
		"load":  func() error { return m.LoadFails(size - page) }, // a page it never had
	} {
		var failure harness.Failure
		if err := do(); !errors.As(err, &failure) {
			t.Errorf("%s on a dead mount: %v, want an errno or SIGBUS", what, err)
		}
	}
	all[0].Close()
	om.Load(0, 1)
	all[1].Close()
	survivor := c.Node(2).Client()
	if !harness.Eventually(limit, func() bool {
		_, err := survivor.Do("mkdir %s", survivor.Path("after"))
		return err == nil || errors.Is(err, harness.Failure("EEXIST"))
	}) {
		t.Error("names do not go on after a node died")
	}
	if st := c.Node(3).Client().Stat("after"); st.Nlink == 0 {
		t.Error("a directory made after a node died has no links on the other survivor")
	}
}

// TestBlockedFaultEnds touches a page whose home does not answer: the fault ends
// by itself, and once the home is back the same page can be had.
func TestBlockedFaultEnds(t *testing.T) {
	c := cluster(t, harness.Options{Flags: lasting})
	impatient(c, 3, 2, "1s")
	all := clients(c)
	name := ""
	for _, candidate := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"} {
		_, m := all[0].Create(candidate, 4*page)
		m.Store(2*page, []byte("there"))
		m.Sync()
		if home(t, c.Node(1), all[0], candidate) == "n3" {
			name = candidate
			break
		}
	}
	if name == "" {
		t.Fatal("14 areas, and the third node is home of none")
	}
	c.Node(3).Pause()
	words, err := all[1].Do("open %s rw", all[1].Path(name))
	if err == nil {
		fd := words[0]
		if words, err = all[1].Do("mmap %s 0 %d rw", fd, 4*page); err == nil {
			_, err = all[1].Do("load %s %d 5", words[0], 2*page)
		}
	}
	c.Node(3).Resume()
	var failure harness.Failure
	if !errors.As(err, &failure) {
		t.Errorf("the first touch of a page whose home is stopped: %v, want EIO or SIGBUS", err)
	}
	fresh := c.Node(2).Client()
	if !harness.Eventually(limit, func() bool {
		words, err := fresh.Do("open %s rw", fresh.Path(name))
		if err != nil {
			return false
		}
		words, err = fresh.Do("pread %s %d 5", words[0], 2*page)
		return err == nil && words[0] == "7468657265"
	}) {
		t.Error("the page cannot be had after its home went on")
	}
}

// homedAt makes a file of which the bytes are homed at the node of the name.
func homedAt(t *testing.T, c *harness.Cluster, cl *harness.Client, node string) (name string) {
	for i := range 40 {
		name = fmt.Sprintf("homed%d", i)
		_, m := cl.Create(name, 4*page)
		m.Store(2*page, []byte("there"))
		m.Sync()
		if home(t, c.Node(1), cl, name) == node {
			return name
		}
	}
	t.Fatalf("40 areas, and %s is home of none", node)
	return ""
}

// fails wants an error number, and the node of the name in what the log says of it.
func fails(t *testing.T, n *harness.Node, what string, err error, log ...string) {
	t.Helper()
	var failure harness.Failure
	if !errors.As(err, &failure) || failure != "EIO" {
		t.Errorf("%s: %v, want EIO", what, err)
	}
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range log {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s: the log does not say %q", what, want)
		}
	}
}

// withoutItsHome returns a file that a program on the second node has stored to, after its home, the third node, became silent.
func withoutItsHome(t *testing.T, timeout string, silence func(*harness.Node)) (c *harness.Cluster, all []*harness.Client, name string, fd int) {
	c = cluster(t, harness.Options{Single: true, Nodes: 3, Flags: append([]string{"--fault-timeout", timeout}, lasting...)})
	all = clients(c)
	name = homedAt(t, c, all[1], "n3")
	f, m := all[1].Attach(name, 4*page)
	silence(c.Node(3))
	m.Store(0, []byte("late"))
	return c, all, name, f.FD
}

// TestHomeDiesUnderAnFsync kills the home of a file. Whoever waits for it gets an error when the cluster has marked it as gone, not
// after --fault-timeout, and so does who comes later. Without its bytes the file is good again.
func TestHomeDiesUnderAnFsync(t *testing.T) {
	c, all, name, fd := withoutItsHome(t, "10m", (*harness.Node).Kill)
	began := time.Now()
	_, err := all[1].Do("fsync %d", fd)
	t.Logf("fsync fails after %v", time.Since(began).Round(time.Millisecond))
	fails(t, c.Node(2), "fsync", err, "n3 at ", "has died")
	_, err = all[1].Do("fsync %d", fd)
	fails(t, c.Node(2), "a second fsync", err)
	_, err = all[1].Do("close %d", fd)
	fails(t, c.Node(2), "close", err)
	_, err = all[0].Do("open %s r", all[0].Path(name))
	fails(t, c.Node(1), "open", err, "n3 at ", "has died")
	if _, err := all[0].Do("truncate %s 0", all[0].Path(name)); err != nil {
		t.Error("truncate: ", err)
	}
	if _, err := all[0].Do("open %s r", all[0].Path(name)); err != nil {
		t.Error("open of a file of nothing: ", err)
	}
}

// TestCloseDoesNotWaitAgain: of an fsync and the close after it only the first waits for a home that does not answer.
func TestCloseDoesNotWaitAgain(t *testing.T) {
	c, all, _, fd := withoutItsHome(t, "2s", (*harness.Node).Pause)
	began := time.Now()
	_, err := all[1].Do("fsync %d", fd)
	fails(t, c.Node(2), "fsync", err, "no answer from home")
	_, err = all[1].Do("close %d", fd)
	t.Logf("fsync and close fail after %v", time.Since(began).Round(time.Millisecond))
	fails(t, c.Node(2), "close", err, "has not answered since an earlier sync")
	c.Node(3).Resume()
}
