package integration

import (
	"strings"
	"testing"

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
	c := cluster(t, harness.Options{Nodes: 4, Flags: lasting})
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
