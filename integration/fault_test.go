package integration

import (
	"errors"
	"testing"

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
	c := cluster(t, harness.Options{Nodes: 3, Flags: []string{"--fault-timeout", "1s"}})
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
