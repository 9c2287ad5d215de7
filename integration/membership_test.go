package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

func TestLeaveHandsSlotsOver(t *testing.T) {
	c := nodes(t, 3)
	a := c.Node(1).Client()
	const size = 12 << 20 // twelve extents: every node is home of some
	a.SetXattr(".", "user.dsm.placement", "spread")
	_, am := a.Create("w", size)
	am.Fill(0, size, 5)
	am.Sync()
	a.Close()
	c.Node(2).Stop()
	third := c.Node(3).Client()
	_, m := third.Attach("w", size) // it had nothing of it before, except what it was home of
	if at := m.Check(0, size, 5); at >= 0 {
		t.Fatalf("byte %d is lost after node 2 left", at)
	}
	m.Fill(0, size, 6)
	m.Sync()
	c.Node(1).Stop()
	if at := m.Check(0, size, 6); at >= 0 {
		t.Fatalf("byte %d is lost after node 1 left", at)
	}
	if members := report[[]row](t, c.Node(3), "members"); len(members) != 1 {
		t.Errorf("members after two left: %v", members)
	}
	third.Open("still", "rw,creat,excl").Close() // names go on with one voter

	fresh := c.Add()
	_, m = fresh.Client().Attach("w", size)
	if at := m.Check(0, size, 6); at >= 0 {
		t.Errorf("byte %d is lost on a node that joined later", at)
	}
}

func TestJoinGetsItsShare(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	const size = 12 << 20
	all[0].SetXattr(".", "user.dsm.placement", "spread")
	_, _ = all[0].Create("w", size)
	maps := attachAll(all, "w", size)
	maps[0].Fill(0, size, 7)
	maps[0].Sync()
	n := c.Add()
	cl := n.Client()
	shared := harness.Eventually(limit, func() bool { return strings.Contains(home(t, n, cl, "w"), n.Name) })
	if !shared {
		t.Errorf("a node that joined is home of nothing: %q", home(t, n, cl, "w"))
	}
	_, m := cl.Attach("w", size)
	if at := m.Check(0, size, 7); at >= 0 {
		t.Fatalf("byte %d differs on the new node", at)
	}
	for off := int64(100); off < size; off += 1 << 20 { // one store in every extent, whoever its home is now
		maps[1].Store(off, []byte("moved"))
	}
	maps[1].Sync()
	for off := int64(100); off < size; off += 1 << 20 {
		m.Await(off, []byte("moved"), limit)
		maps[0].Await(off, []byte("moved"), limit)
	}
}

// TestSumWhileNodesComeAndGo keeps adding on one node while others join and leave.
func TestSumWhileNodesComeAndGo(t *testing.T) {
	long(t)
	c := nodes(t, 2)
	all := clients(c)
	f := all[0].Open("w", "rw,creat,excl")
	all[0].SetXattr("w", "user.dsm.merge", "sum")
	all[0].SetXattr("w", "user.dsm.dtype", "i64")
	all[0].SetXattr("w", "user.dsm.interval", "20ms")
	all[0].SetXattr("w", "user.dsm.placement", "spread")
	const size = 3 << 20 // homes on several nodes
	f.Truncate(size)
	maps := attachAll(all, "w", size)
	want := int64(0)
	work := func(count int) {
		t.Helper()
		for _, m := range maps {
			for off := int64(0); off < size; off += 1 << 20 {
				m.Add("i64", off, 512, 1, count)
			}
		}
		want += int64(count * len(maps))
	}
	work(20_000)
	joined := c.Add()
	joinAll(t, maps)
	work(20_000)
	joined.Stop()
	joinAll(t, maps)
	work(20_000)
	joinAll(t, maps)
	settle(maps)
	for i, m := range maps {
		for off := int64(0); off < size; off += 1 << 20 {
			if lo, hi := m.Range("i64", off, 512); lo != want || hi != want {
				t.Errorf("node %d, offset %d: from %d to %d, want %d", i+1, off, lo, hi, want)
			}
		}
	}
}

// homedAway creates areas of one extent until one has its home on none of the
// nodes to avoid, so that those are only subscribers of it.
func homedAway(t *testing.T, n *harness.Node, cl *harness.Client, avoid string) (name string, m *harness.Map, size int64) {
	t.Helper()
	size = 1 << 20
	for i := range 64 {
		name = fmt.Sprintf("away%d", i)
		_, m = cl.Create(name, size)
		if !strings.Contains(home(t, n, cl, name), avoid) {
			return name, m, size
		}
	}
	t.Fatalf("64 areas, and %s is home of all", avoid)
	return "", nil, 0
}

// TestPausedSubscriber stops the daemon of one subscriber: the others neither
// wait for it nor keep more than a bounded amount for it, and it catches up.
func TestPausedSubscriber(t *testing.T) {
	c := cluster(t, harness.Options{Nodes: 3, Flags: lasting})
	all := clients(c)
	name, am, size := homedAway(t, c.Node(1), all[0], "n3")
	maps := attachAll(all, name, size)
	am.Fill(0, size, 100)
	am.Sync()
	for _, m := range maps {
		if !harness.Eventually(limit, func() bool { return m.Check(0, size, 100) < 0 }) {
			t.Fatal("the first fill never arrives")
		}
	}
	before := [2]harness.Memory{c.Node(1).Memory(), c.Node(2).Memory()}
	c.Node(3).Pause()
	resumed := time.AfterFunc(pausable, c.Node(3).Resume)
	const rounds = 60 // of 1 MiB, all changed
	publishAll(am, maps[1], size, rounds, 101)
	if !resumed.Stop() {
		t.Logf("%d rounds took longer than the pause of %v", rounds, pausable)
	} else {
		c.Node(3).Resume()
	}
	for i := range 2 {
		grown := c.Node(i+1).Memory().Private - before[i].Private
		t.Logf("node %d grew by %d KiB while %d MiB were published", i+1, grown>>10, 2*rounds)
		if grown > rounds/2<<20 {
			t.Errorf("node %d keeps %d MiB for a subscriber that does not read", i+1, grown>>20)
		}
	}
	am.Store(size-8, []byte("the last"))
	am.Sync()
	last := maps[2]
	last.Await(size-8, []byte("the last"), limit)
	last.Await(0, fmt.Appendf(nil, "%08d", rounds-1), limit)
	if at := last.Check(8, size-16, 100+rounds); at >= 0 {
		t.Errorf("byte %d is not the newest after catching up", at)
	}
}

// pausable is how long a daemon may be stopped without being taken for dead.
const pausable = 3 * time.Second

// TestPartitionHealsAndCatchesUp cuts one node off, publishes on the other side,
// and heals: the node sees what it missed, and the others what it stored meanwhile.
func TestPartitionHealsAndCatchesUp(t *testing.T) {
	c := cluster(t, harness.Options{Nodes: 3, Network: harness.Namespaces})
	all := clients(c)
	name, am, size := homedAway(t, c.Node(1), all[0], "n3")
	maps := attachAll(all, name, size)
	am.Store(0, []byte("joined"))
	am.Sync()
	maps[2].Await(0, []byte("joined"), limit)

	c.Partition([]*harness.Node{c.Node(1), c.Node(2)}, []*harness.Node{c.Node(3)})
	am.Fill(4096, size-4096, 8)
	am.Sync()
	mark := []byte("apart ")
	am.Store(0, mark)
	am.Sync()
	maps[1].Await(0, mark, limit)
	all[1].Open("made-apart", "rw,creat,excl").Close() // the majority goes on
	maps[2].Store(100, []byte("kept"))                 // nobody hears of it yet
	if got := maps[2].Load(0, 6); string(got) != "joined" {
		t.Errorf("the node that is cut off reads %q", got)
	}

	c.Heal()
	const healing = 60 * time.Second
	maps[2].Await(0, mark, healing)
	if !harness.Eventually(healing, func() bool { return maps[2].Check(4096, size-4096, 8) < 0 }) {
		t.Error("the node that was cut off never sees all it missed")
	}
	maps[0].Await(100, []byte("kept"), healing)
	maps[1].Await(100, []byte("kept"), healing)
	if !harness.Eventually(healing, func() bool {
		_, err := all[2].Do("stat %s", all[2].Path("made-apart"))
		return err == nil
	}) {
		t.Error("the node that was cut off never sees a name made meanwhile")
	}
}

// TestSlowSubscriber gives one subscriber a thin link: it gets the newest bytes,
// not every version of them.
func TestSlowSubscriber(t *testing.T) {
	long(t)
	c := cluster(t, harness.Options{Single: true, Nodes: 3, Network: harness.Namespaces})
	all := clients(c)
	name, am, size := homedAway(t, c.Node(1), all[0], "n3")
	maps := attachAll(all, name, size)
	am.Store(0, []byte("start"))
	am.Sync()
	maps[2].Await(0, []byte("start"), limit)
	const mbit = 16
	c.Node(3).Rate(mbit)
	before := c.Node(3).Received()
	const rounds = 40
	publishAll(am, maps[1], size, rounds, 200)
	maps[2].Await(0, fmt.Appendf(nil, "%08d", rounds-1), time.Minute)
	if !harness.Eventually(time.Minute, func() bool { return maps[2].Check(8, size-8, 199+rounds) < 0 }) {
		t.Error("the slow subscriber never has all of the newest")
	}
	got := c.Node(3).Received() - before
	t.Logf("published %d MiB, %d KiB went over the thin link", rounds*size>>20, got>>10)
	if got > rounds*size*3/4 {
		t.Errorf("%d bytes went over the thin link of %d published: old versions are sent", got, rounds*size)
	}
	c.Node(3).Rate(0)
}

// publishAll changes all of an area in each round, from the seed on, and waits until a
// reader has its number.
func publishAll(from, reader *harness.Map, size int64, rounds, seed int) {
	for i := range rounds {
		from.Fill(0, size, seed+i)
		from.Sync()
		mark := fmt.Appendf(nil, "%08d", i)
		from.Store(0, mark)
		from.Sync()
		reader.Await(0, mark, limit)
	}
}
