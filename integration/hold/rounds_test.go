package hold_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// awaitsOne is the line of a group of which all members but one are at a barrier, or in a round.
var awaitsOne = regexp.MustCompile(` members=3 .* awaited=\d `)

// summed makes files of 64-bit integers that sum, of which nothing is published at an interval: then it is no part of a round.
func summed(t *testing.T, n *harness.Node, files, elements int, settings ...string) {
	t.Helper()
	for k := range files {
		path := filepath.Join(n.Mount, fmt.Sprint("parts", k))
		for _, args := range [][]string{{"touch", path}, append([]string{harness.Binary(), "set", path, "merge=sum", "dtype=i64", "interval=0"}, settings...), {"truncate", "-s", fmt.Sprint(8 * elements), path}} {
			if res := n.Run(limit, args[0], args[1:]...); res.Err != nil {
				t.Fatalf("%v: %v: %s", args, res.Err, res.Stderr)
			}
		}
	}
}

// TestKilledInARound: the daemon of a member is killed when the homes have its part of a round, which is not over. The next one follows. Its program is told that it has left
// the group; what it had stored counts once, in the round if the program joins again, else apart.
func TestKilledInARound(t *testing.T) {
	if _, skip := harness.Interpreter(); skip != "" {
		t.Skip(skip)
	}
	c := heldCluster(t, 3, "--lease", "10s")
	nodes := c.Nodes()
	summed(t, nodes[0], 2, 4<<10)
	for k, again := range []bool{true, false} {
		file := fmt.Sprint("parts", k)
		program := func(n *harness.Node, before, after string) harness.Result {
			return n.TryPython(fmt.Sprintf(`
import time
import numpy as np
def join():
    global g
    g = open(mnt + '/.dsm/areas/%[1]s/group', 'r+b', buffering=0)
    assert tell('join 3').startswith('rank='), 'join'
def tell(line):
    g.write(line.encode() + b'\n')
    return g.readline().decode()
join()
m = np.memmap(mnt + '/%[1]s', dtype='<i8', mode='r+')
%[2]s
m += 1
try:
    answer = tell('round %[1]s')
except OSError as e:
    answer = 'told %%d' %% e.errno
%[3]s
print(answer.strip(), m.min(), m.max())
`, file, before, after))
		}
		for _, n := range nodes {
			covered(t, n)
		}
		gate := filepath.Join(nodes[0].Mount, "gate"+file)
		results := make([]harness.Result, len(nodes))
		var programs sync.WaitGroup
		for i, n := range nodes {
			before, after := "", ""
			if i == 0 { // it comes when the daemon was killed
				before = `
while not os.path.exists('` + gate + `'):
    time.sleep(0.05)`
			}
			if i == 2 && again {
				after = `
assert answer == 'told 9', answer # EBADF
join()
answer = tell('round ` + file + `')`
			}
			programs.Go(func() { results[i] = program(n, before, after) })
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
		if res := nodes[2].Run(limit, "ls", nodes[2].Mount); res.Err != nil {
			t.Fatalf("no daemon follows: %v: %s", res.Err, res.Stderr)
		}
		if res := nodes[0].Run(limit, "touch", gate); res.Err != nil {
			t.Fatal(res.Err)
		}
		programs.Wait()
		for i, r := range results {
			out := strings.TrimSpace(r.Stdout)
			good := strings.HasSuffix(out, "missing= 3 3")
			if !again {
				good = strings.HasPrefix(out, "told 9 ") == (i == 2) && (i == 2 || !strings.Contains(out, "missing= "))
			}
			if r.Err != nil || !good {
				t.Errorf("%s, again %v: %v: %s%s", nodes[i].Name, again, r.Err, r.Stdout, r.Stderr)
			}
		}
		for _, n := range nodes {
			got := ""
			if !harness.Eventually(limit, func() bool {
				got = n.Python(fmt.Sprintf(`
m = numpy.fromfile(mnt + '/%s', dtype='<i8')
print(m.min(), m.max())
`, file))
				return got == "3 3"
			}) {
				t.Errorf("%s, again %v: %s", n.Name, again, got)
			}
		}
	}
	if t.Failed() {
		for _, n := range nodes {
			log, _ := os.ReadFile(n.LogFile())
			t.Logf("log of %s:\n%s", n.Name, log)
		}
	}
}

// TestRoundsOverKilledMembers: programs of three nodes put together in rounds what they have added, each in digits of its own, and the daemon of one, or of any, is killed at any moment of a round. Its program is told that, joins again, and
// goes on with the round. Everything counts once, and what a round has of a member is in all elements of all files.
func TestRoundsOverKilledMembers(t *testing.T) {
	rnd := seeded(t)
	for _, first := range []int{2, 0} { // of those whose daemons are killed
		t.Run(fmt.Sprintf("from %d", first), func(t *testing.T) { roundsOverKilledMembers(t, rnd, first) })
	}
}

func roundsOverKilledMembers(t *testing.T, rnd *rand.Rand, first int) {
	nodes := heldCluster(t, 3, "--lease", "10s", "--fault-timeout", "20s").Nodes()
	const rounds, fewer, files, elements = 40, 12, 6, 4 << 10
	summed(t, nodes[0], files, elements)
	whileKilled(t, rnd, nodes, nodes[first:], func(n *harness.Node) string {
		return fmt.Sprintf(`
import time
import numpy as np
mine, first, rounds, files = %d, %d, %d, %d
if mine >= first:
    rounds = %d
def tell(line):
    g.write(line.encode() + b'\n')
    return g.readline().decode()
def join():
    global g
    while True:
        g = open(mnt + '/.dsm/areas/parts0/group', 'r+b', buffering=0)
        answer = tell('join 3 5')
        if answer.startswith('rank='):
            return
        if sum(os.path.exists(mnt + '/done%%d' %% k) for k in range(3)) == 2: # nobody else comes
            end(i + 1)
def end(stored):
    with open(mnt + '/done%%d' %% mine, 'w') as f:
        f.write(str(stored))
    sys.exit()
def again(what):
    while True:
        try:
            return what()
        except OSError as e:
            assert mine >= first and e.errno == 9, e
            while True:
                try:
                    join()
                    break
                except OSError as e:
                    assert e.errno == 9, e
all = [np.memmap(mnt + '/parts%%d' %% k, dtype='<i8', mode='r+') for k in range(files)]
i = -1
again(join)
for i in range(rounds):
    for m in all:
        m += 1 << (20 * mine)
    answer = again(lambda: tell('round ' + ' '.join('parts%%d' %% k for k in range(files))))
    now = np.array(all)
    assert answer.startswith('number='), answer
    of = [now >> (20 * k) & 0xfffff for k in range(3)]
    assert (of[mine] == i + 1).all(), (i, of[mine].min(), of[mine].max(), answer)
    if mine >= first: # the others may have gone on before it looks
        continue
    if first == 2:
        assert (of[1 - mine] == i + 1).all(), (i, of[1 - mine].min(), of[1 - mine].max(), answer)
    if answer.strip().endswith('missing='):
        for o in of:
            assert o.min() == o.max(), (i, [(x.min(), x.max()) for f in of for x in f], answer)
end(rounds)
`, slices.Index(nodes, n), first, rounds, files, fewer)
	})
	for _, n := range nodes {
		got := ""
		if !harness.Eventually(limit, func() bool { // a part of a round that nobody ends is published after a while
			got = n.Python(fmt.Sprintf(`
now = numpy.array([numpy.fromfile(mnt + '/parts%%d' %% k, dtype='<i8') for k in range(%d)])
of = [now >> 20 * k & 0xfffff for k in range(3)]
want = [int(open(mnt + '/done%%d' %% k).read()) for k in range(3)]
print(want, all([(x == w).all() for x, w in zip(of, want)]), [(int(x.min()), int(x.max())) for x in of])
`, files))
			return strings.Contains(got, "True")
		}) {
			t.Errorf("%s: %s", n.Name, got)
		}
	}
}

// TestAccumulatedOverKilledMembers: programs of three nodes accumulate, each 1 for a round, and the daemon of one is killed at any moment. Each round has what those have accumulated that it names, and nothing else. The other two go on until that one is done:
// it could not join again without them.
func TestAccumulatedOverKilledMembers(t *testing.T) {
	rnd := seeded(t)
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	nodes := heldCluster(t, 3, "--lease", "10s").Nodes()
	const rounds, fewer, elements = 40, 12, 300 << 10
	summed(t, nodes[0], 2, elements, "apply=sync")
	whileKilled(t, rnd, nodes, nodes[2:], func(n *harness.Node) string {
		return fmt.Sprintf(`
sys.path.insert(0, %q)
import dsmfs
import numpy as np
mine, rounds, fewer, elements = %d, %d, %d, %d
def goes_on():
    if mine == 2:
        return i < fewer
    return i < rounds or not os.path.exists(mnt + '/done')
a, b = [dsmfs.open(mnt + '/parts%%d' %% k, 'r', dtype='<i8') for k in range(2)]
ones = np.ones(elements, '<i8')
g, was, i = None, 0, 0
while goes_on():
    while True:
        try:
            if g is None:
                g, was = dsmfs.group(mnt + '/parts0', 3), None
            a.accumulate(ones, g)
            b.accumulate(ones, g)
            meeting = g.round(a, b)
            break
        except dsmfs.DisconnectedError as e:
            assert mine == 2, e
            g = None
    now = [int(x) for m in (a, b) for x in (m.array.min(), m.array.max())]
    assert min(now) == max(now), (now, meeting)
    if was is not None:
        assert now[0] == was + len(meeting.members), (now, was, meeting)
    was = now[0]
    i += 1
if mine == 2:
    open(mnt + '/done', 'w').close()
`, filepath.Join(root, "pybind"), slices.Index(nodes, n), rounds, fewer, elements)
	})
}
