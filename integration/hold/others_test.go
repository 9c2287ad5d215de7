package hold_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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

// awaitsOne is the line of a group of which all members but one are at a barrier, or in a round.
var awaitsOne = regexp.MustCompile(` members=3 .* awaited=\d `)

// TestKilledInARound: the daemon of a member is killed when the homes have its part of a round, which is not over. What is in the files may have the part, or not, so no
// daemon follows. The others end the round when the cluster has taken the node for dead, and nothing counts twice.
func TestKilledInARound(t *testing.T) {
	if _, skip := harness.Interpreter(); skip != "" {
		t.Skip(skip)
	}
	c := heldCluster(t, 3, "--lease", "5s", "--fault-timeout", "20s")
	nodes := c.Nodes()
	const elements = 4 << 10
	nodes[0].Python(fmt.Sprintf(`
with open(mnt + '/parts', 'wb') as f:
    f.truncate(8 * %d)
`, elements))
	if res := nodes[0].CLI("set", filepath.Join(nodes[0].Mount, "parts"), "merge=sum", "dtype=i64"); res.Err != nil {
		t.Fatalf("set: %v: %s", res.Err, res.Stderr)
	}
	program := func(n *harness.Node, before string) harness.Result {
		return n.TryPython(fmt.Sprintf(`
import mmap, os, sys, time
import numpy as np
def tell(line):
    g.write(line.encode() + b'\n')
    return g.readline().decode()
g = open(mnt + '/.dsm/areas/parts/group', 'r+b', buffering=0)
assert tell('join 3').startswith('rank='), 'join'
m = np.memmap(mnt + '/parts', dtype='<i8', mode='r+')
%s
m += 1
answer = tell('round parts')
print(answer.strip(), m.min(), m.max())
`, before))
	}
	for _, n := range nodes {
		covered(t, n)
	}
	results := make([]harness.Result, len(nodes))
	var programs sync.WaitGroup
	for i, n := range nodes {
		before := ""
		if i == 0 { // it comes when the node is gone
			before = `
while sum('gone' not in l for l in open(mnt + '/.dsm/members')) > 2:
    time.sleep(0.1)`
		}
		programs.Go(func() { results[i] = program(n, before) })
	}
	text := ""
	if !harness.Eventually(limit, func() bool { // the two others have added their parts, and wait for the first
		text = ""
		for _, n := range nodes { // one of them coordinates the group
			text += n.Run(limit, "cat", filepath.Join(n.Mount, ".dsm/groups")).Stdout
		}
		return awaitsOne.MatchString(text)
	}) {
		t.Fatalf("not two of three wait in a round:\n%s", text)
	}
	killDaemon(t, nodes[2], 0, 0, syscall.SIGKILL)
	nodes[2].ExpectDead()
	programs.Wait()
	if results[2].Err == nil {
		t.Errorf("the program of the node that was lost: %s", results[2].Stdout)
	}
	for i, r := range results[:2] {
		if r.Err != nil || strings.Contains(r.Stdout, "missing= ") || !strings.HasSuffix(strings.TrimSpace(r.Stdout), " 2 2") {
			t.Errorf("%s: %v: %s%s", nodes[i].Name, r.Err, r.Stdout, r.Stderr)
		}
	}
	log, err := os.ReadFile(nodes[2].LogFile())
	if err != nil || !strings.Contains(string(log), "killed in a round") {
		t.Errorf("the log does not say it (%v):\n%s", err, log)
	}
}
