package hold_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// heldCluster starts nodes with --hold.
func heldCluster(t *testing.T, nodes int, flags ...string) *harness.Cluster {
	t.Helper()
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	return harness.New(t, harness.Options{Nodes: nodes, Memory: "256M", Flags: append([]string{"--hold"}, flags...)})
}

// largeCluster is heldCluster for sparse files of more than 64 GiB, for which five nodes together may have memory: what a node has of these as the home ends with its daemon.
func largeCluster(t *testing.T) *harness.Cluster {
	t.Helper()
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	return harness.New(t, harness.Options{Nodes: 5, Memory: "20G", Flags: []string{"--hold"}})
}

// makeLarge makes such a file, with one copy, and stores abc into it: at the node of the home. No program of another node has it open, so the daemons of others can be followed.
func makeLarge(t *testing.T, n *harness.Node, name string) {
	t.Helper()
	path := filepath.Join(n.Mount, name)
	do(t, n, []string{"touch", path}, []string{harness.Binary(), "set", path, "replicas=1", "residency=demand"}, []string{"truncate", "-s", "65G", path}, []string{"sh", "-c", "printf abc | dd conv=notrunc status=none of=" + path})
}

// running is a program.
type running struct {
	*harness.Client
	name string
}

// start starts a program of a kind in a directory.
func start(t *testing.T, n *harness.Node, kind, dir string, seed uint64) running {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := n.Program(exe, programWord, kind, filepath.Join(n.Mount, dir))
	if _, err := c.Do("begin %d", seed); err != nil {
		t.Errorf("%s on %s: %v", kind, n.Name, err)
	}
	return running{c, kind + " on " + n.Name}
}

// load starts programs of all kinds on the nodes: in directories of each node's own, and one on each that counts together with those of the others.
func load(t *testing.T, rnd *rand.Rand, nodes []*harness.Node) (all []running) {
	t.Helper()
	common(t, nodes[0])
	for i, n := range nodes {
		for _, kind := range []string{"maps", "names", "owner", "writes", "appends", "cuts"} {
			all = append(all, start(t, n, kind, n.Name, rnd.Uint64()))
		}
		all = append(all, start(t, n, fmt.Sprint("counter", i), "common", rnd.Uint64()), start(t, n, fmt.Sprint("shares", i), "common", rnd.Uint64()))
	}
	return all
}

// common makes the files that programs of kind shares have in common.
func common(t *testing.T, n *harness.Node) {
	t.Helper()
	commonIn(t, n, "common")
}

// commonIn is common for a directory.
func commonIn(t *testing.T, n *harness.Node, dir string) {
	t.Helper()
	common := filepath.Join(n.Mount, dir)
	here := n.Client()
	for name, size := range map[string]int{lastFile: sharesLast, sumFile: sharesSum} {
		path := filepath.Join(common, name)
		for _, what := range []string{"mkdir " + common, "open " + path + " rw,creat", fmt.Sprint("truncate ", path, " ", size)} {
			if _, err := here.Do("%s", what); err != nil && !strings.Contains(err.Error(), "EEXIST") {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	if res := n.CLI("set", filepath.Join(common, sumFile), "merge=sum", "dtype=i64"); res.Err != nil {
		t.Fatalf("set: %v: %s", res.Err, res.Stderr)
	}
	here.Close()
}

// end ends the programs, which say what they have seen.
func end(t *testing.T, all []running, nodes []*harness.Node) {
	t.Helper()
	for _, p := range all {
		words, err := p.Do("end")
		t.Logf("%s: %s %v", p.name, strings.Join(words, " "), err)
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
	if t.Failed() {
		for _, n := range nodes {
			log, _ := os.ReadFile(n.LogFile())
			t.Logf("log of %s:\n%s", n.Name, log)
		}
	}
	for _, p := range all {
		p.Close()
	}
}

// covered waits until backups can take over from every node: what only one node has would be lost with its daemon, and the mount with it.
func covered(t *testing.T, n *harness.Node) {
	t.Helper()
	var text string
	if !harness.Eventually(limit, func() bool {
		text = n.Run(limit, "cat", filepath.Join(n.Mount, ".dsm/cluster")).Stdout
		return strings.Contains(text, "uncovered_anywhere 0\n")
	}) {
		t.Fatalf("not all of %s has backups:\n%s", n.Name, text)
	}
}

func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano()) % 1e9
	}
	t.Logf("-seed=%d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// probe is a program that looks how long one waits.
type probe struct {
	t *testing.T
	*harness.Client
	fd   string
	next int
}

func newProbe(t *testing.T, n *harness.Node) *probe {
	t.Helper()
	p := &probe{t: t, Client: n.Client()}
	words, err := p.Do("open %s rw,creat", filepath.Join(n.Mount, "probe"+n.Name))
	if err != nil {
		t.Fatal(err)
	}
	p.fd = words[0]
	return p
}

// write returns how long a write with fsync takes.
func (p *probe) write() time.Duration {
	p.t.Helper()
	begin := time.Now()
	if _, err := p.Do("pwrite %s %d 616263", p.fd, p.next); err != nil {
		p.t.Errorf("write: %v", err)
	}
	if _, err := p.Do("fsync %s", p.fd); err != nil {
		p.t.Errorf("fsync: %v", err)
	}
	p.next += 3
	return time.Since(begin).Round(time.Millisecond)
}

// TestHeldMembersOutliveTheirDaemons: in a cluster of three the daemons of all nodes are killed again and again, and programs of all kinds see no error
// and lose nothing: what they have stored is there on every node.
func TestHeldMembersOutliveTheirDaemons(t *testing.T) {
	rnd := seeded(t)
	c := heldCluster(t, sharesFor, "--lease", "60s")
	nodes := c.Nodes()
	all := load(t, rnd, nodes)
	last, probes := make([]int, len(nodes)), make([]*probe, len(nodes))
	for i, n := range nodes {
		probes[i] = newProbe(t, n)
	}
	var pauses []time.Duration
	for i := range *kills {
		k := i % len(nodes)
		covered(t, nodes[(k+len(nodes)-1)%len(nodes)]) // the one that was killed last: it is back when it answers
		last[k] = killDaemon(t, nodes[k], last[k], time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
		pauses = append(pauses, probes[k].write())
	}
	end(t, all, nodes)
	slices.Sort(pauses)
	t.Logf("%d kills; a write and fsync that begins with the kill takes p50 %v, max %v", len(pauses), pauses[len(pauses)/2], pauses[len(pauses)-1])
	all = nil
	for _, n := range nodes {
		all = append(all, start(t, n, "looks", "common", 0))
	}
	end(t, all, nodes)
}

// TestHeldMemberThatWasEvicted: no daemon follows until the cluster has taken the node for dead. It joins again then, and what programs had stored is
// published. Their locks are lost.
func TestHeldMemberThatWasEvicted(t *testing.T) {
	rnd := seeded(t)
	c := heldCluster(t, sharesFor, "--lease", "1s")
	nodes := c.Nodes()
	n := nodes[sharesFor-1]
	common(t, nodes[0])
	commonIn(t, nodes[0], "attached")
	var all []running
	for i, o := range nodes {
		all = append(all, start(t, o, "maps", o.Name, rnd.Uint64()), start(t, o, fmt.Sprint("shares", i), "common", rnd.Uint64()), start(t, o, fmt.Sprint("adds", i), "attached", rnd.Uint64()))
		if o == n {
			all = append(all, start(t, o, "attached", o.Name, rnd.Uint64()))
		}
	}
	last := 0
	for range 3 {
		covered(t, nodes[0])
		n.Pause() // the holder
		last = killDaemon(t, n, last, time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
		members := func() string { return nodes[0].Run(limit, "cat", filepath.Join(nodes[0].Mount, ".dsm/members")).Stdout }
		gone := func() bool {
			for line := range strings.Lines(members()) {
				if strings.Contains(line, n.Name) && !strings.Contains(line, "gone") {
					return false
				}
			}
			return true
		}
		if !harness.Eventually(limit, gone) {
			t.Fatalf("the node is not evicted:\n%s", members())
		}
		n.Resume()
		if !harness.Eventually(limit, func() bool { return !gone() }) {
			t.Fatalf("the node does not join again:\n%s", members())
		}
	}
	end(t, all, nodes)
	all = nil
	for _, n := range nodes {
		all = append(all, start(t, n, "looks", "common", 0), start(t, n, "looksAtAdded", "attached", 0))
	}
	end(t, all, nodes)
}

// TestSizesThatChangeMeanwhile: files grow, and shrink, on another node while no daemon is there. Programs that have mapped them, and ask for nothing, see it.
func TestSizesThatChangeMeanwhile(t *testing.T) {
	const page = 4096
	nodes := heldCluster(t, 3, "--lease", "10s").Nodes()
	n, here, there := nodes[1], nodes[1].Client(), nodes[0].Client()
	names := []string{"grows", "shrinks"}
	var maps []*harness.Map
	var files []*harness.File
	for _, name := range names {
		f := there.Open(name, "rw,creat")
		f.Truncate(2 * page)
		f.Write(0, make([]byte, 2*page))
		f.Sync()
		files = append(files, f)
	}
	files[0].Truncate(page)
	for i, name := range names {
		maps = append(maps, here.Open(name, "r").MapForReading(2*page))
		if err := maps[i].LoadFails(page); (err != nil) != (i == 0) {
			t.Fatalf("the second page of the file that %s: %v", name, err)
		}
	}
	covered(t, n)
	killDaemon(t, n, 0, 0, syscall.SIGKILL)
	files[0].Truncate(2 * page)
	files[1].Truncate(page)
	for i, name := range names {
		if !harness.Eventually(limit, func() bool { return (maps[i].LoadFails(page) != nil) == (i == 1) }) {
			t.Errorf("a program does not see that the file %s", name)
		}
	}
}

// TestToldToEndWhileNoDaemonServes: the holder is told to end while a daemon takes over. The node leaves when that serves: what programs have stored is there, and its exit is that of
// a node that leaves.
func TestToldToEndWhileNoDaemonServes(t *testing.T) {
	for _, after := range []time.Duration{time.Millisecond, 30 * time.Millisecond, 150 * time.Millisecond} {
		nodes := heldCluster(t, 3, "--lease", "10s").Nodes()
		n, here := nodes[2], nodes[2].Client()
		f := here.Open("f", "rw,creat")
		f.Write(0, []byte("stored"))
		covered(t, n)
		killDaemon(t, n, 0, 0, syscall.SIGKILL)
		<-time.After(after)
		if err := syscall.Kill(n.PID(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		here.Close()
		if !harness.Eventually(limit, func() bool { return !n.Running() }) {
			log, _ := os.ReadFile(n.LogFile())
			t.Fatalf("told to end %v after its daemon was killed, it goes on:\n%s", after, log)
		}
		if got := nodes[0].Client().Open("f", "r").Read(0, 6); string(got) != "stored" {
			t.Errorf("after %v: another node reads %q", after, got)
		}
	}
}

// TestLeaveWhileADaemonIsReplaced: a node leaves when the daemon of another one has just been killed. It waits for the next one, which gets what the leaver
// was the home of; what a program there has open stays.
func TestLeaveWhileADaemonIsReplaced(t *testing.T) {
	for _, count := range []int{2, 3} {
		nodes := heldCluster(t, count, "--lease", "10s").Nodes()
		n, leaver := nodes[0], nodes[1]
		f := n.Client().Open("f", "rw,creat")
		f.Write(0, []byte("stored"))
		var names []string
		there := leaver.Client()
		for i := range 20 { // each node is the home of some
			names = append(names, fmt.Sprint("f", i))
			there.Open(names[i], "rw,creat").Write(0, []byte(names[i]))
		}
		there.Close()
		covered(t, n)
		killDaemon(t, n, 0, 0, syscall.SIGKILL)
		if res := leaver.CLI("umount", leaver.Mount); res.Err != nil {
			t.Errorf("the other of %d leaves: %v: %s", count, res.Err, res.Stderr)
		}
		here := n.Client()
		for _, name := range names {
			if got := here.Open(name, "r").Read(0, int64(len(name))); string(got) != name {
				t.Errorf("%d nodes: %s reads %q", count, name, got)
			}
		}
		f.Write(0, []byte("again!"))
		f.Sync()
	}
}
