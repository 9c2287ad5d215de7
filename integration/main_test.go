// Package integration tests dsmfs from outside: real daemons, real mounts, real
// programs. Everything runs through package harness; read its doc first.
//
// go test -short ./integration runs the part that takes less than three minutes.
// Tests that draw random numbers print their seed; -seed repeats it.
package integration

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")
	opsFlag  = flag.Int("ops", 0, "operations of a random test; 0: its own default")
)

// limit is for what should happen soon: it bounds a failure, it measures nothing.
const limit = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(posixMount) != "" {
		os.Exit(m.Run()) // a child of TestPosix needs nothing built
	}
	os.Exit(harness.Main(m, "integration"))
}

// cluster starts a cluster that ends with the test, and skips the test where nothing can be mounted.
func cluster(t *testing.T, o harness.Options) *harness.Cluster {
	t.Helper()
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	return harness.New(t, o)
}

// lasting are flags of nodes that may be stopped or cut off for a while, and stay members.
var lasting = []string{"--lease", "1m"}

// nodes starts a cluster of n nodes on loopback.
func nodes(t *testing.T, n int) *harness.Cluster {
	t.Helper()
	return cluster(t, harness.Options{Nodes: n})
}

// impatient starts n nodes, of which one, counted from 1, gives up its requests after a short time. The others do not: what a
// test prepares must not fail because the machine is busy.
func impatient(c *harness.Cluster, n, one int, timeout string) {
	for i := range n {
		node := c.Declare()
		if i+1 == one {
			node.Flags = []string{"--fault-timeout", timeout}
		}
		node.Start()
	}
}

// long skips a test that -short leaves out.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long")
	}
}

// needNumPy skips a test that runs Python programs where there is no NumPy.
func needNumPy(t *testing.T) {
	t.Helper()
	if _, skip := harness.Interpreter(); skip != "" {
		t.Skip(skip)
	}
}

// seed returns the seed of a random test and prints it.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d: repeat with -run '^%s$' -seed %d", s, t.Name(), s)
	return s
}

// clients starts one client per node.
func clients(c *harness.Cluster) []*harness.Client {
	var all []*harness.Client
	for _, n := range c.Nodes() {
		all = append(all, n.Client())
	}
	return all
}
