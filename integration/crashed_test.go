package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestCrashedMemberIsReplaced kills a node and starts it again at once, under its name and at its address, several times: there
// are as many members as nodes. Then another dies, and the others leave cleanly all the same.
func TestCrashedMemberIsReplaced(t *testing.T) {
	c := harness.New(t, harness.Options{Nodes: 4})
	first := c.Node(1)
	members := func() int {
		res := first.CLI("members", first.Mount)
		if res.Err != nil {
			t.Fatalf("members: %v: %s", res.Err, res.Stderr)
		}
		return strings.Count(strings.TrimSpace(res.Stdout), "\n") // a line is the heading
	}
	for round := range 3 {
		n := c.Node(4)
		n.Kill()
		n.Start()
		if got := members(); got != 4 {
			t.Errorf("round %d: %d members, want 4", round, got)
		}
	}
	c.Node(4).Kill()
	c.Node(3).Stop()
	cl := first.Client()
	cl.Open("f", "rw,creat").Close()
	c.Node(2).Client().Stat("f")
	if !harness.Eventually(limit, func() bool { return members() == 2 }) {
		t.Errorf("%d members in the end, want 2", members())
	}
}

// TestTakerDiesWhileANodeLeaves stops a node, has another leave, whose slots are to go to the first as well, and kills the first: the
// leave ends in order, and what the leaver was the home of is at the node that is left.
func TestTakerDiesWhileANodeLeaves(t *testing.T) {
	c := cluster(t, harness.Options{Single: true, Nodes: 4, Flags: lasting})
	all := clients(c)
	name := homedAt(t, c, all[0], "n3")
	c.Node(4).Pause()
	left := make(chan harness.Result, 1)
	go func() { left <- c.Node(3).CLI("umount", c.Node(3).Mount) }()
	if !harness.Eventually(limit, func() bool {
		return strings.Contains(c.Node(1).CLI("members", c.Node(1).Mount).Stdout, "leaving")
	}) {
		t.Error("the node does not begin to leave")
	}
	c.Node(4).Kill()
	if res := <-left; res.Err != nil {
		t.Errorf("leave: %v: %s", res.Err, res.Stderr)
	}
	fresh := c.Node(2).Client()
	words, err := fresh.Do("open %s r", fresh.Path(name))
	if err == nil {
		words, err = fresh.Do("pread %s %d 5", words[0], 2*page)
	}
	if err != nil || words[0] != "7468657265" {
		t.Errorf("what the node that left was the home of: %v, %v", words, err)
	}
}

// TestNameAndAddressOfADeadNode kills a node and starts one at once at its address under another name, then one under that name at another address,
// and then one that has both. Each is usable before the dead one has run out of its lease, which is long here. Who was the home of a file
// stays in the list of members, as gone, until the file is removed, and is then forgotten.
func TestNameAndAddressOfADeadNode(t *testing.T) {
	c := cluster(t, harness.Options{Single: true, Nodes: 3, Flags: lasting})
	cl := c.Node(1).Client()
	name := homedAt(t, c, cl, "n3")
	n := c.Node(3)
	rows := func() (alive, gone []string) {
		for _, m := range report[[]row](t, c.Node(1), "members") {
			at := m.text("name") + " " + m.text("addr")
			if strings.Contains(m.text("state"), "gone") {
				gone = append(gone, at)
			} else {
				alive = append(alive, at)
			}
		}
		slices.Sort(alive)
		return alive, gone
	}
	address := n.Address
	host, _, _ := strings.Cut(address, ":")
	for _, x := range []struct{ name, address string }{{"other", address}, {"other", host + ":7401"}, {"other", host + ":7401"}, {"n3", address}} {
		began := time.Now()
		n.Kill()
		n.Flags, n.Address = []string{"--name", x.name}, x.address
		n.Start()
		t.Logf("%s at %s: usable %v after the death", x.name, x.address, time.Since(began))
		alive, gone := rows()
		if !harness.Eventually(limit/2, func() bool { // one of which nobody has name or address is dead when it refuses connections
			alive, gone = rows()
			return len(alive) == 3
		}) || !slices.Contains(alive, x.name+" "+x.address) {
			t.Errorf("members %v, want %s at %s", alive, x.name, x.address)
		}
		if !slices.Contains(gone, "n3 "+address) {
			t.Errorf("a dead node that was the home of a file is not shown as gone: %v", gone)
		}
		n.Client().Open("f", "rw,creat").Close()
	}
	cl.Close() // it has the file open
	last := c.Node(1).Client()
	last.Must("unlink %s", last.Path(name))
	if !harness.Eventually(limit, func() bool { _, gone := rows(); return len(gone) == 0 }) {
		_, gone := rows()
		t.Errorf("dead members are remembered when nobody needs them any more: %v", gone)
	}
}
