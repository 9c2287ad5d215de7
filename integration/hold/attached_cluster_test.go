package hold_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestAttachedOverKilledMembers: programs of three nodes have attached files of their own, one that they all store to, and one to which they all add, and others map files through the mount. The daemons of all nodes are killed again
// and again. The programs go on with the memory that they have, see no error, and nothing that they store is lost.
func TestAttachedOverKilledMembers(t *testing.T) {
	rnd := seeded(t)
	nodes := heldCluster(t, sharesFor, "--lease", "10s").Nodes()
	common(t, nodes[0])
	here := nodes[0].Client()
	path := filepath.Join(nodes[0].Mount, "common", joinedFile)
	for _, what := range []string{"open " + path + " rw,creat", fmt.Sprint("truncate ", path, " ", sharesLast)} {
		if _, err := here.Do("%s", what); err != nil && !strings.Contains(err.Error(), "EEXIST") {
			t.Fatalf("%s: %v", what, err)
		}
	}
	here.Close()
	var all []running
	for i, n := range nodes {
		for _, kind := range []string{"attached", "maps", "names"} {
			all = append(all, start(t, n, kind, n.Name, rnd.Uint64()))
		}
		all = append(all, start(t, n, fmt.Sprint("joins", i), "common", rnd.Uint64()))
		for k := range 2 {
			all = append(all, start(t, n, fmt.Sprint("adds", 2*i+k), "common", rnd.Uint64()))
		}
	}
	last := make([]int, len(nodes))
	for i := range *kills {
		k := i % len(nodes)
		covered(t, nodes[(k+len(nodes)-1)%len(nodes)])
		last[k] = killDaemon(t, nodes[k], last[k], time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
	}
	end(t, all, nodes)
	all = nil
	for _, n := range nodes {
		all = append(all, start(t, n, "looksAtJoined", "common", 0), start(t, n, "looksAtAdded", "common", 0))
	}
	end(t, all, nodes)
}

// TestAttachedSumsOverAKilledDaemon: two programs of a node alone add, each in memory of its own. Everything counts once.
func TestAttachedSumsOverAKilledDaemon(t *testing.T) {
	rnd := seeded(t)
	n := held(t)
	common(t, n)
	var all []running
	for k := range 2 {
		all = append(all, start(t, n, fmt.Sprint("adds", k), "common", rnd.Uint64()))
	}
	last := 0
	for range *kills {
		last = killDaemon(t, n, last, time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
	}
	end(t, all, []*harness.Node{n})
	end(t, []running{start(t, n, "looksAtAdded", "common", 0)}, []*harness.Node{n})
}

// TestPreparedOverAKilledDaemon: the daemon is killed between PREPARE and NAME. The file is there when it has its name, with all that was stored before.
func TestPreparedOverAKilledDaemon(t *testing.T) {
	n := held(t)
	c := &attachClient{socket: n.AttachSocket()}
	if err := c.connect(); err != nil {
		t.Fatal(err)
	}
	last := 0
	for i := range 3 {
		f, err := c.prepare(fmt.Sprint("/prepared", i), 3*page)
		if err != nil {
			t.Fatal(err)
		}
		f.mem[5], f.mem[2*page] = 1, 2
		last = killDaemon(t, n, last, 0, syscall.SIGKILL)
		f.mem[6] = 3
		if err := f.name(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(n.Mount, fmt.Sprint("prepared", i))
		got := n.Run(limit, "od", "-An", "-tu1", "-j5", "-N2", path).Stdout + n.Run(limit, "od", "-An", "-tu1", "-j8192", "-N1", path).Stdout
		if want := "   1   3\n   2\n"; got != want {
			t.Errorf("the file has %q, want %q", got, want)
		}
	}
}
