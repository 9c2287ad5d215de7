package integration

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// backupsOf waits until a file has so many copies, and returns the names of its home and of its backups.
func backupsOf(t *testing.T, n *harness.Node, cl *harness.Client, file string, copies int) (home string, backups []string) {
	t.Helper()
	names := make(map[string]string)
	for _, m := range report[[]row](t, n, "members") {
		names[m.text("id")] = m.text("name")
	}
	var text string
	if !harness.Eventually(limit, func() bool {
		text = cl.Xattr(file, "user.dsm.home")
		id, rest, _ := strings.Cut(text, " ")
		ids, found := strings.CutPrefix(rest, "backups=")
		home, backups = names[id], nil
		for other := range strings.SplitSeq(ids, ",") {
			backups = append(backups, names[other])
		}
		return found && home != "" && len(backups) == copies-1 && !slices.Contains(backups, "")
	}) {
		t.Fatalf("%s has not %d copies that are in sync: %q, members %v", file, copies, text, names)
	}
	return home, backups
}

// TestNodeDies kills a node while programs of the two others publish to files of which there are two copies: the home of both, the backup,
// and the node that leads. The programs see a pause, and nothing else: what they added is there once, and what they wrote and synced stays.
func TestNodeDies(t *testing.T) {
	for _, role := range []string{"home", "backup", "leader"} {
		t.Run(role, func(t *testing.T) {
			at := map[string]string{"home": "n2", "backup": "n1", "leader": "n1"}[role]
			nodesDie(t, 3, 2, at, func(home string, backups []string) []string {
				if role == "backup" {
					return backups
				}
				return []string{home}
			})
		})
	}
}

// TestTwoNodesDie kills two of five nodes, before anybody has heard of the first: the home of files of which there are three copies, and one of the backups.
func TestTwoNodesDie(t *testing.T) {
	nodesDie(t, 5, 3, "n2", func(home string, backups []string) []string { return []string{home, backups[0]} })
}

// nodesDie kills nodes of a cluster, one at once after the other. The files live at one node, and have so many copies; dies chooses who is killed.
func nodesDie(t *testing.T, size, copies int, at string, dies func(home string, backups []string) []string) {
	c := nodes(t, size)
	all := clients(c)
	all[0].Must("mkdir %s", all[0].Path("d"))
	all[0].SetXattr("d", "user.dsm.replicas", fmt.Sprint(copies))
	all[0].SetXattr("d", "user.dsm.placement", at)
	sum := all[0].Open("d/sum", "rw,creat,excl")
	all[0].SetXattr("d/sum", "user.dsm.merge", "sum")
	all[0].SetXattr("d/sum", "user.dsm.dtype", "i64")
	all[0].SetXattr("d/sum", "user.dsm.interval", "10ms")
	sum.Truncate(page)
	all[0].Open("d/last", "rw,creat,excl").Truncate(page)
	home, backups := backupsOf(t, c.Node(1), all[0], "d/sum", copies)
	backupsOf(t, c.Node(1), all[0], "d/last", copies)
	victims := dies(home, backups)
	t.Logf("home %s, backups %v: %v die", home, backups, victims)

	const elements, rounds = 512, 10 // rounds before the death, and as many after it
	maps := attachAll(all, "d/sum", page)
	for _, m := range maps { // also what the victim has published counts
		m.Add("i64", 0, elements, 1, 10)
	}
	joinAll(t, maps)
	settle(maps)
	type survivor struct {
		node    *harness.Node
		m       *harness.Map
		last    *harness.File
		cl      *harness.Client
		longest time.Duration
		acked   uint64
		err     error
	}
	var left []*survivor
	var dead []*harness.Node
	for i, n := range c.Nodes() {
		if slices.Contains(victims, n.Name) {
			dead = append(dead, n)
			continue
		}
		left = append(left, &survivor{node: n, m: maps[i], cl: n.Client()})
	}
	begun, killed, done := make(chan struct{}, len(left)), make(chan struct{}), make(chan struct{}, len(left))
	for at, s := range left {
		s.last = s.cl.Open("d/last", "rw")
		go func() {
			defer func() { done <- struct{}{} }()
			for round, end := 0, math.MaxInt; round < end; round++ {
				if round == rounds {
					begun <- struct{}{}
				}
				select {
				case <-killed:
					end = min(end, round+rounds)
				default:
				}
				start := time.Now()
				s.m.Add("i64", 0, elements, 1, 1)
				if _, s.err = s.m.Join(limit); s.err != nil {
					return
				}
				if s.err = s.m.TrySync(); s.err != nil {
					return
				}
				value := binary.LittleEndian.AppendUint64(nil, uint64(round+1))
				if _, s.err = s.cl.Do("pwrite %d %d %x", s.last.FD, at*8, value); s.err != nil {
					return
				}
				if _, s.err = s.cl.Do("fsync %d", s.last.FD); s.err != nil {
					return
				}
				s.acked = uint64(round + 1)
				s.longest = max(s.longest, time.Since(start))
			}
		}()
	}
	for range left {
		select {
		case <-begun:
		case <-done:
			t.Fatal("a program ended before the node died")
		}
	}
	for _, n := range dead {
		n.Kill()
	}
	close(killed)
	for range left {
		<-done
	}
	for at, s := range left {
		if s.err != nil {
			t.Fatalf("a program of a node that lives, after %d rounds: %v", s.acked, s.err)
		}
		t.Logf("the longest pause of a program: %v", s.longest)
		other := left[(at+1)%len(left)]
		got := other.cl.Open("d/last", "r").Read(int64(at*8), 8)
		if v := binary.LittleEndian.Uint64(got); v != s.acked {
			t.Errorf("the other node reads %d, and %d was synced", v, s.acked)
		}
	}
	var survive []*harness.Map
	want := int64(10 * size)
	for _, s := range left {
		survive = append(survive, s.m)
		want += int64(s.acked)
	}
	settle(survive)
	for i, s := range left {
		if lo, hi := s.m.Range("i64", 0, elements); lo != want || hi != want {
			t.Errorf("node %d: elements from %d to %d, want all %d", i, lo, hi, want)
		}
	}
	if now, _ := backupsOf(t, left[0].node, left[0].cl, "d/sum", copies); slices.Contains(victims, now) {
		t.Errorf("the home is still %s", now)
	}
}
