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
