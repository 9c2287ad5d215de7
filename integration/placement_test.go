package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestPlacementMovesUnderLoad has all nodes add to a file while it is moved from node to node: no addition is lost, and none counts twice.
func TestPlacementMovesUnderLoad(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	f := all[0].Open("w", "rw,creat,excl")
	for key, value := range map[string]string{"merge": "sum", "dtype": "i64", "interval": "20ms"} {
		all[0].SetXattr("w", "user.dsm."+key, value)
	}
	const size = 3 << 20
	f.Truncate(size)
	maps := attachAll(all, "w", size)
	const count, rounds = 512, 50_000
	for _, m := range maps {
		for off := int64(0); off < size; off += 1 << 20 {
			m.Add("i64", off, count, 1, rounds)
		}
	}
	moves := 0
	for _, to := range []string{"n1", "n2", "n3", "n1", "n3", "n2"} {
		if home(t, c.Node(1), all[0], "w") != to {
			moves++
		}
		done(t, "set placement="+to, c.Node(1+moves%3).CLI("set", c.Node(1+moves%3).Mount+"/w", "placement="+to))
		if !harness.Eventually(limit, func() bool { return home(t, c.Node(1), all[0], "w") == to }) {
			t.Fatalf("the file does not come to %s: %s", to, home(t, c.Node(1), all[0], "w"))
		}
	}
	joinAll(t, maps)
	settle(maps)
	for i, m := range maps {
		for off := int64(0); off < size; off += 1 << 20 {
			if lo, hi := m.Range("i64", off, count); lo != rounds*3 || hi != rounds*3 {
				t.Errorf("node %d, offset %d: from %d to %d, want %d", i+1, off, lo, hi, rounds*3)
			}
		}
	}
	if got := stat(all[1], "w", "home_moves"); got != fmt.Sprint(moves) {
		t.Errorf("home_moves is %s, want %d", got, moves)
	}
	res := c.Node(2).CLI("areas", c.Node(2).Mount)
	done(t, "areas", res)
	if !strings.Contains(res.Stdout, " n2 ") {
		t.Errorf("areas does not show where the file lives:\n%s", res.Stdout)
	}
	refuses(t, c.Node(1).CLI("set", all[0].Path("w"), "placement=nobody"), "no member has this name or id: want auto, spread, one, or one of the members n1 n2 n3")
	refuses(t, c.Node(1).CLI("set", all[0].Path("w"), "placement=spread"), "is n2 and fixed while the file is not empty")

	all[1].Close()
	c.Node(2).Stop() // its file goes to another home
	if got := home(t, c.Node(1), all[0], "w"); got == "n2" || strings.Contains(got, " ") {
		t.Errorf("the home of the file is %s after n2 has left", got)
	}
	maps = []*harness.Map{maps[0], maps[2]}
	for _, m := range maps {
		m.Add("i64", 0, count, 1, 10)
	}
	joinAll(t, maps)
	settle(maps)
	for i, m := range maps {
		if lo, hi := m.Range("i64", 0, count); lo != rounds*3+20 || hi != rounds*3+20 {
			t.Errorf("map %d: from %d to %d after its home left, want %d", i, lo, hi, rounds*3+20)
		}
	}
}

// stat returns a figure of a file.
func stat(cl *harness.Client, name, key string) string {
	for line := range strings.Lines(cl.Control("areas/" + name + "/stats")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+" "); ok {
			return value
		}
	}
	return ""
}

// TestFileFollowsItsWriter has a writer that goes from node to node. The file moves there, and what was stored is right on every node.
func TestFileFollowsItsWriter(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	const size = 2 << 20
	_, _ = all[0].Create("w", size)
	maps := attachAll(all, "w", size)
	maps[0].Fill(0, size, 1)
	maps[0].Sync()
	round := 0
	for _, i := range []int{1, 2} {
		want := fmt.Sprintf("n%d", i+1)
		came := harness.Eventually(2*limit, func() bool {
			for range 20 {
				round++
				maps[i].Store(int64(round%8)*200_000, fmt.Appendf(nil, "%08d", round))
				maps[i].Sync()
			}
			return home(t, c.Node(1), all[0], "w") == want
		})
		if !came {
			t.Fatalf("node %d alone stores, and the home is %s", i+1, home(t, c.Node(1), all[0], "w"))
		}
		t.Logf("at node %d after %d publishes in all, %s moves", i+1, round, stat(all[i], "w", "home_moves"))
	}
	for off := range int64(8) {
		last := round - (round-int(off)+8)%8
		if last <= 0 {
			continue
		}
		for i, m := range maps {
			m.Await(off*200_000, fmt.Appendf(nil, "%08d", last), limit)
			if at := m.Check(off*200_000+8, 199_992, 1); at >= 0 {
				t.Errorf("node %d: byte %d is lost", i+1, at)
			}
		}
	}
}
