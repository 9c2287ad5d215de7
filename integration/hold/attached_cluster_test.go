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
