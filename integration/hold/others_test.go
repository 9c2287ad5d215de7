package hold_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// whileKilled runs a program on each node that the function gives one for, and kills daemons of the nodes in turn until all programs have ended.
func whileKilled(t *testing.T, rnd *rand.Rand, nodes, victims []*harness.Node, program func(n *harness.Node) string) {
	t.Helper()
	if _, skip := harness.Interpreter(); skip != "" {
		t.Skip(skip)
	}
	var programs sync.WaitGroup
	for _, n := range nodes {
		code := program(n)
		if code == "" {
			continue
		}
		programs.Go(func() {
			if res := n.TryPython(code); res.Err != nil {
				t.Errorf("%s: %v\n%s%s", n.Name, res.Err, res.Stdout, res.Stderr)
			}
		})
	}
	done := make(chan struct{})
	go func() { programs.Wait(); close(done) }()
	last := make([]int, len(victims))
	for i := 0; ; i++ {
		k := i % len(victims)
		for _, n := range victims { // the one that was killed last: it is back when it answers
			covered(t, n)
		}
		select {
		case <-done:
			if t.Logf("daemons were killed %d times", i); i == 0 {
				t.Error("the programs were over before a daemon was killed")
			}
			return
		default:
		}
		last[k] = killDaemon(t, victims[k], last[k], time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
	}
}

// TestSQLiteOverKilledMembers: programs of three nodes add to a counter and insert rows in one database, and the daemons of all nodes are killed. No transaction
// fails, and every one counts once.
func TestSQLiteOverKilledMembers(t *testing.T) {
	rnd := seeded(t)
	nodes := heldCluster(t, 3, "--lease", "10s").Nodes()
	db := harness.SQLite{Name: "/db", Journal: "DELETE", Rounds: 60}
	nodes[0].Python(db.Create())
	whileKilled(t, rnd, nodes, nodes, db.Count)
	look, want := db.Check(len(nodes))
	for _, n := range nodes {
		if got := n.Python(look); got != want {
			t.Errorf("%s: %s, want %s", n.Name, got, want)
		}
	}
}

// TestRoundsOverAKilledMember: programs of two nodes put together in rounds what both have added, and the daemon of the third is killed, which is the home of some of
// the files or has their group. Every part counts once.
func TestRoundsOverAKilledMember(t *testing.T) {
	rnd := seeded(t)
	nodes := heldCluster(t, 3, "--lease", "10s").Nodes()
	const rounds, files, elements = 60, 8, 4 << 10
	nodes[0].Python(fmt.Sprintf(`
for k in range(%d):
    open(mnt + '/parts%%d' %% k, 'wb').close()
`, files))
	for k := range files {
		settings := []string{"merge=sum", "dtype=i64"}
		if k%2 != 0 { // the group is not at the home then
			settings = append(settings, "replicas=3")
		}
		if res := nodes[0].CLI(append([]string{"set", filepath.Join(nodes[0].Mount, fmt.Sprint("parts", k))}, settings...)...); res.Err != nil {
			t.Fatalf("set: %v: %s", res.Err, res.Stderr)
		}
	}
	nodes[0].Python(fmt.Sprintf(`
for k in range(%d):
    with open(mnt + '/parts%%d' %% k, 'r+b') as f:
        f.truncate(8 * %d)
`, files, elements))
	members := nodes[:2]
	whileKilled(t, rnd, members, nodes[2:], func(*harness.Node) string {
		return fmt.Sprintf(`
import numpy as np
def tell(g, line):
    g.write(line.encode() + b'\n')
    answer = g.readline().decode()
    assert not answer.startswith('error'), (line, answer)
all = []
for k in range(%d):
    g = open(mnt + '/.dsm/areas/parts%%d/group' %% k, 'r+b', buffering=0)
    tell(g, 'join %d')
    all.append((k, g, np.memmap(mnt + '/parts%%d' %% k, dtype='<i8', mode='r+')))
for i in range(%d):
    for k, g, m in all:
        m += 1
        tell(g, 'round parts%%d' %% k)
        assert (m == %d * (i + 1)).all(), (i, k, m.min(), m.max())
`, files, len(members), rounds, len(members))
	})
	for _, n := range nodes {
		got := n.Python(fmt.Sprintf(`
import numpy as np
all = [np.fromfile(mnt + '/parts%%d' %% k, dtype='<i8') for k in range(%d)]
print(min(a.min() for a in all), max(a.max() for a in all))
`, files))
		if want := fmt.Sprint(len(members)*rounds, " ", len(members)*rounds); got != want {
			t.Errorf("%s: %s, want %s", n.Name, got, want)
		}
	}
}
