package hold_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestDemandFilesOutliveTheirDaemons: in a directory whose files are on demand programs of all kinds see no error and lose nothing while the daemons of all nodes are killed again and again: alone, and in a cluster.
func TestDemandFilesOutliveTheirDaemons(t *testing.T) {
	for _, count := range []int{1, sharesFor} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			rnd := seeded(t)
			nodes := heldCluster(t, count, "--lease", "60s").Nodes()
			if res := nodes[0].CLI("set", nodes[0].Mount, "residency=demand"); res.Err != nil {
				t.Fatalf("set: %v: %s", res.Err, res.Stderr)
			}
			var all []running
			if count == 1 {
				for _, kind := range kinds {
					if kind == "attached" { // which files on demand cannot be on a mount with --hold
						continue
					}
					all = append(all, start(t, nodes[0], kind, "", rnd.Uint64()))
				}
			} else {
				all = load(t, rnd, nodes)
			}
			last := make([]int, len(nodes))
			for i := range *kills {
				k := i % len(nodes)
				if count > 1 {
					covered(t, nodes[(k+len(nodes)-1)%len(nodes)])
				}
				last[k] = killDaemon(t, nodes[k], last[k], time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
			}
			end(t, all, nodes)
			for _, n := range nodes {
				if s := stats(n.Client()); s["outlives_daemon"] != "true" {
					t.Errorf("%s ends with its daemon: %s", n.Name, s["lost_with_daemon_because"])
				}
			}
			if count == 1 {
				return
			}
			all = nil
			for _, n := range nodes {
				all = append(all, start(t, n, "looks", "common", 0))
			}
			end(t, all, nodes)
		})
	}
}

// TestLargerThanMemoryOverKilledDaemons: a program stores to all of a file that is larger than its node's memory, by a mapping and by write(2), while the daemons of its node and of the other one are killed. All of it is there on both.
func TestLargerThanMemoryOverKilledDaemons(t *testing.T) {
	const size, rounds = 96 << 20, 3
	rnd := seeded(t)
	c := heldCluster(t, 2, "--memory", "64M")
	n, other := c.Node(1), c.Node(2)
	here := n.Client()
	here.Must("mkdir %s", here.Path("d"))
	if res := n.CLI("set", filepath.Join(n.Mount, "d"), "residency=demand", "replicas=1"); res.Err != nil {
		t.Fatalf("set: %v: %s", res.Err, res.Stderr)
	}
	f, m := here.Create("d/f", size)
	want := make(map[int64]uint64)
	last := map[bool]int{}
	kill := func(own bool) {
		victim := other
		if own {
			victim = n
		}
		for _, o := range c.Nodes() { // both are back when they answer
			stats(o.Client())
		}
		last[own] = killDaemon(t, victim, last[own], 0, syscall.SIGKILL)
	}
	for round := range uint64(rounds) {
		for p := int64(0); p < size/dsm.PageSize; p += 7 {
			off, v := p*dsm.PageSize+8*rnd.Int64N(dsm.PageSize/8), 1+rnd.Uint64()>>1
			bytes := binary.LittleEndian.AppendUint64(nil, v)
			if want[off] = v; rnd.IntN(2) == 0 {
				m.Store(off, bytes)
			} else {
				f.Write(off, bytes)
			}
			if p%4096 == 0 {
				kill(rnd.IntN(3) > 0)
			}
		}
		if m.Sync(); round+1 < rounds {
			kill(true)
		}
	}
	check := func(what string, at func(off, n int64) []byte) {
		t.Helper()
		for off, v := range want {
			if got := binary.LittleEndian.Uint64(at(off, 8)); got != v {
				t.Fatalf("%s reads %#x at %d, want %#x", what, got, off, v)
			}
		}
	}
	check("the program", m.Load)
	check("another node", other.Client().Open("d/f", "r").Read)
	if s := stats(here); s["outlives_daemon"] != "true" {
		t.Errorf("the mount ends with its daemon: %s", s["lost_with_daemon_because"])
	}
}
