package integration

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// evicted waits until a node says that another is no member, or one that is gone.
func evicted(t *testing.T, n *harness.Node, other string) {
	t.Helper()
	if !harness.Eventually(limit, func() bool {
		return !slices.ContainsFunc(report[[]row](t, n, "members"), func(m row) bool { return m.text("name") == other && !strings.Contains(m.text("state"), "gone") })
	}) {
		t.Fatalf("%s is not evicted", other)
	}
}

// member waits until a node says that another is a member.
func member(t *testing.T, n *harness.Node, other string) {
	t.Helper()
	if !harness.Eventually(limit, func() bool {
		return slices.ContainsFunc(report[[]row](t, n, "members"), func(m row) bool { return m.text("name") == other && !strings.Contains(m.text("state"), "gone") })
	}) {
		t.Fatalf("%s does not join again", other)
	}
}

var stopped = flag.Duration("stopped", 0, "how long TestStoppedNodeJoinsAgain stops a daemon that has the default lease; 0: until it is evicted after a short one")

// TestStoppedNodeJoinsAgain stops a daemon for longer than its lease. It is evicted, joins again by itself, and its programs go on with what
// they have open and mapped: what they had stored before is published.
func TestStoppedNodeJoinsAgain(t *testing.T) {
	lease := []string{"--lease", "1s"}
	if *stopped > 0 {
		lease = nil
	}
	c := cluster(t, harness.Options{Nodes: 3, Flags: lease})
	all := clients(c)
	name, own, size := homedAway(t, c.Node(3), all[2], "n3")
	_, other := all[0].Attach(name, size)
	own.Store(0, []byte("before"))
	own.Sync()
	other.Await(0, []byte("before"), limit)
	own.Store(page, []byte("unpublished"))
	c.Node(3).Pause()
	resume := time.After(*stopped)
	evicted(t, c.Node(1), "n3")
	all[0].Must("mkdir %s", all[0].Path("meanwhile"))
	other.Store(2*page, []byte("elsewhere"))
	other.Sync()
	<-resume
	began := time.Now()
	c.Node(3).Resume()
	member(t, c.Node(1), "n3")
	t.Logf("a member again after %v", time.Since(began))
	if !harness.Eventually(limit, func() bool { _, err := all[2].Do("mkdir %s", all[2].Path("again")); return err == nil }) {
		t.Fatal("a node that has joined again makes no directory")
	}
	if st := all[2].Stat("meanwhile"); st.Nlink == 0 {
		t.Error("a node that has joined again does not see what was made while it was away")
	}
	own.Sync()
	other.Await(page, []byte("unpublished"), limit)
	t.Logf("what was unpublished is there after %v", time.Since(began))
	own.Await(2*page, []byte("elsewhere"), limit)
	own.Store(3*page, []byte("after"))
	own.Sync()
	other.Await(3*page, []byte("after"), limit)
	other.Store(4*page, []byte("back"))
	other.Sync()
	own.Await(4*page, []byte("back"), limit)
}

// TestStoppedHomeKeepsWhatNobodyElseHas is the same for a file whose home is the node that was stopped, and that has no replica.
func TestStoppedHomeKeepsWhatNobodyElseHas(t *testing.T) {
	c := cluster(t, harness.Options{Nodes: 3, Flags: []string{"--lease", "1s"}})
	all := clients(c)
	name := homedAt(t, c, all[0], "n3")
	_, m := all[0].Attach(name, 4*page)
	_, own := all[2].Attach(name, 4*page)
	own.Load(2*page, 5)
	c.Node(3).Pause()
	evicted(t, c.Node(1), "n3")
	c.Node(3).Resume()
	member(t, c.Node(1), "n3")
	if !harness.Eventually(time.Minute, func() bool { return m.TrySync() == nil }) {
		t.Fatal("the home has come back, and takes no publish")
	}
	m.Store(0, []byte("after"))
	m.Sync()
	own.Await(0, []byte("after"), limit)
	if got := string(own.Load(2*page, 5)); got != "there" {
		t.Errorf("what was published before reads as %q", got)
	}
}
