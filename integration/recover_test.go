package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestRecoverCluster: the only voter dies. Nobody can make a name any more, until the node that is left is told to go on alone: with its mount,
// its programs, all names, and what was homed there. The voter was only stopped: when it goes on, the two have nothing to do with each other.
func TestRecoverCluster(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(map[bool]string{false: "insecure", true: "secure"}[secure], func(t *testing.T) {
			c := cluster(t, harness.Options{Single: true, Nodes: 2, Network: harness.Namespaces, Secure: secure, Flags: []string{"--fault-timeout", "2s"}})
			testRecover(t, c)
		})
	}
}

func testRecover(t *testing.T, c *harness.Cluster) {
	all, left := clients(c), c.Node(2)
	here := homedAt(t, c, all[0], "n2")
	there, _, _ := homedAway(t, c.Node(1), all[0], "n2")
	_, other := all[0].Attach(here, 4*page)
	_, m := all[1].Attach(here, 4*page)
	all[1].Must("mkdir %s", all[1].Path("before"))
	if res := left.CLI("cluster", "recover", "--force", left.Mount); res.Err == nil || !strings.Contains(res.Stderr, "works") {
		t.Fatalf("a cluster that works was recovered: %+v", res)
	}
	l := newLocker(t, left)
	l.do("ok", "op('"+here+"')")
	l.do("ok", "posix(W, 0, 1)")
	c.Node(1).Pause()
	if _, err := all[1].Do("mkdir %s", all[1].Path("without")); err == nil {
		t.Fatal("a directory was made without a voter")
	}
	m.Store(page, []byte("unpublished"))
	var res harness.Result
	if !harness.Eventually(limit, func() bool { // control files can be read when the lease has run out
		res = left.CLI("cluster", "recover", left.Mount)
		return res.Err != nil && strings.Contains(res.Stderr, "n1 at")
	}) {
		t.Fatalf("without --force it does not say whom it gives up: %+v", res)
	}
	if res := left.CLI("status", left.Mount); res.Err != nil || !strings.Contains(res.Stdout, "none") {
		t.Errorf("the status of a node that is cut off: %+v", res)
	}
	if res := left.CLI("cluster", "recover", "--force", "--timeout", "200ms", left.Mount); res.Err == nil {
		t.Fatalf("recovered before the leader was missed: %s", res.Stdout)
	}
	if !harness.Eventually(limit, func() bool {
		log, err := os.ReadFile(left.LogFile())
		return err == nil && strings.Contains(string(log), "whoever gave the order has given up")
	}) {
		t.Fatal("an order that nobody waits for is carried out")
	}
	if res := left.CLI("cluster", "recover", "--force", left.Mount); res.Err != nil {
		t.Fatalf("recover: %v: %s", res.Err, res.Stderr)
	}
	all[1].Must("mkdir %s", all[1].Path("after"))
	if st := all[1].Stat("before"); st.Nlink == 0 {
		t.Error("a directory of before is gone")
	}
	m.Sync()
	l.do("None", "os.fsync(files['f'])")
	l.do("ok", "posix(W, 5, 1)") // its locks are still there, and what is stored under them counts
	fresh := left.Client()
	_, again := fresh.Attach(here, 4*page)
	if got := string(again.Load(page, 11)); got != "unpublished" {
		t.Errorf("what was stored before reads as %q", got)
	}
	if got := string(again.Load(2*page, 5)); got != "there" {
		t.Errorf("what was published before reads as %q", got)
	}
	if _, err := fresh.Do("open %s r", fresh.Path(there)); err == nil {
		t.Error("a file that was homed at the other node opens") // its bytes are lost
	}

	c.Node(1).Resume()
	member(t, left, "n2")
	all[0].Must("mkdir %s", all[0].Path("elsewhere")) // the old cluster goes on, too
	other.Store(3*page, []byte("old"))
	if _, err := fresh.Do("stat %s", fresh.Path("elsewhere")); err == nil {
		t.Error("a directory of the old cluster is in the new one")
	}
	c.Node(1).Kill()
	joined := c.Declare()
	joined.Via = left
	joined.Start()
	cl := joined.Client()
	if st := cl.Stat("after"); st.Nlink == 0 {
		t.Error("a node that joined does not see what was made")
	}
	_, m3 := cl.Attach(here, 4*page)
	m3.Store(0, []byte("third"))
	m3.Sync()
	again.Await(0, []byte("third"), limit)
}
