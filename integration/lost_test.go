package integration

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestFilesAfterADeath kills a node that alone has the bytes of some files. Those are lost; but every new file has what is written to it, on all nodes that live, and so has a file that was lost and is
// truncated, also by an open. New files do not keep the dead node in the cluster.
func TestFilesAfterADeath(t *testing.T) {
	for _, held := range []bool{false, true} { // whether the mounts outlive their daemons, as users have it
		t.Run(fmt.Sprint("held=", held), func(t *testing.T) {
			c := cluster(t, harness.Options{Default: held})
			for range 2 {
				c.Declare().Start()
			}
			victim := c.Declare()
			victim.Flags = []string{"--hold=off"}
			victim.Start()
			filesAfterADeath(t, c)
		})
	}
}

func filesAfterADeath(t *testing.T, c *harness.Cluster) {
	at, other := c.Node(1).Client(), c.Node(2).Client()
	at.Must("mkdir %s", at.Path("d"))
	at.SetXattr("d", "user.dsm.replicas", "1")
	write := func(name, flags, text string) {
		t.Helper()
		f := at.Open(name, flags)
		f.Write(0, []byte(text))
		f.Sync()
		f.Close()
	}
	has := func(name, text string) {
		t.Helper()
		for _, cl := range []*harness.Client{at, other} {
			f := cl.Open(name, "r")
			if got := string(f.Read(0, 100)); got != text {
				t.Errorf("%s has %q, want %q", name, got, text)
			}
			f.Close()
		}
	}
	const files = 40
	for i := range files {
		write(fmt.Sprint("d/old", i), "rw,creat,excl", "old")
	}
	grows := at.Open("d/grows", "rw,creat,excl")
	victim := c.Node(3)
	id := ""
	for _, m := range report[[]row](t, c.Node(1), "members") {
		if m.text("name") == victim.Name {
			id = m.text("id")
		}
	}
	victim.Kill()
	dead := func(want string) bool {
		return harness.Eventually(limit, func() bool {
			return !slices.ContainsFunc(report[[]row](t, c.Node(1), "members"), func(m row) bool { return m.text("id") == id && m.text("state") != want })
		})
	}
	if !dead("gone") {
		t.Fatal("a node that was killed is not gone")
	}
	for i := range files {
		name := fmt.Sprint("d/new", i)
		write(name, "rw,creat,excl", "new")
		has(name, "new")
	}
	for i := range 40 { // of which each megabyte lives elsewhere
		grows.Write(int64(i)<<20, []byte("grown"))
	}
	grows.Sync()
	grows.Close()
	lost := 0
	for i := range files {
		name := fmt.Sprint("d/old", i)
		if _, err := at.Do("open %s r", at.Path(name)); err == nil {
			has(name, "old")
			continue
		}
		at.Fails("EIO", "open %s rw,append", at.Path(name))
		f := at.Open(name, "rw")
		at.Fails("EIO", "pread %d 0 3", f.FD)
		f.Close()
		if lost++; lost%2 == 0 {
			f = at.Open(name, "rw")
			f.Truncate(0)
			f.Write(0, []byte("anew"))
			f.Close()
		} else {
			write(name, "w,trunc", "anew")
		}
		has(name, "anew")
	}
	if lost == 0 || lost == files {
		t.Errorf("%d of %d files were lost", lost, files)
	}
	if !dead("") {
		t.Errorf("nothing is lost any more, and the dead node is not forgotten: %v", report[[]row](t, c.Node(1), "members"))
	}
}
