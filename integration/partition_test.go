package integration

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// cutOffTimeout is --fault-timeout where a node is cut off.
const cutOffTimeout = 2 * time.Second

// parted returns three nodes that can be cut off from each other, with a directory whose files live at a node and have so many copies.
func parted(t *testing.T, home string, replicas int, flags ...string) (c *harness.Cluster, all []*harness.Client) {
	flags = append(flags, "--lease", "1s", "--fault-timeout", cutOffTimeout.String())
	c = cluster(t, harness.Options{Nodes: 3, Network: harness.Namespaces, Flags: flags})
	all = clients(c)
	all[0].Must("mkdir %s", all[0].Path("d"))
	all[0].SetXattr("d", "user.dsm.placement", home)
	all[0].SetXattr("d", "user.dsm.replicas", fmt.Sprint(replicas))
	return c, all
}

// cannotPublish wants a call of a node that is cut off to end with EIO, after the timeout of a call and not after twice that.
func cannotPublish(t *testing.T, what string, call func() error) {
	t.Helper()
	began := time.Now()
	err := call()
	if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "EIO") || took < cutOffTimeout/2 || took > cutOffTimeout*3/2 {
		t.Errorf("%s of a node that is cut off: %v after %v", what, err, took)
	}
}

// cutOff cuts the third node off, and returns when the others have evicted it.
func cutOff(t *testing.T, c *harness.Cluster) {
	t.Helper()
	c.Partition([]*harness.Node{c.Node(3)}, []*harness.Node{c.Node(1), c.Node(2)})
	evicted(t, c.Node(1), "n3")
}

// healed heals the network, and returns when the third node is a member again, and publishes.
func healed(t *testing.T, c *harness.Cluster, maps []*harness.Map) {
	t.Helper()
	c.Heal()
	member(t, c.Node(1), "n3")
	if !harness.Eventually(limit, func() bool { return maps[2].TrySync() == nil }) {
		t.Fatal("the node that was cut off publishes nothing")
	}
}

// looksCutOff wants a node to say that it is cut off, and for how long a file has not been brought up to date.
func looksCutOff(t *testing.T, cl *harness.Client, name string) {
	t.Helper()
	if text := cl.Control("stats"); !strings.Contains(text, "cut_off true\n") {
		t.Errorf("the stats of a node that is cut off: %s", text)
	}
	age, err := strconv.Atoi(stat(cl, name, "staleness_ms"))
	if least := int(time.Second.Milliseconds()); err != nil || age < least {
		t.Errorf("on a node that is cut off for more than %d ms memory is %d ms old (%v)", least, age, err)
	}
}

// kept returns the lines of the conflicts of a file, as a node shows them, without who keeps them, numbers and times.
func kept(cl *harness.Client, name string) (list []string) {
	for line := range strings.Lines(cl.Control("areas/" + name + "/conflicts")) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), " offset=")
		list = append(list, rest)
	}
	return list
}

// TestPartition cuts off a node of three while both sides store to a file whose home is at the majority. What only one side has changed is
// merged; where both have, the majority's value stays, and the node that was cut off keeps its own.
func TestPartition(t *testing.T) {
	for _, x := range []struct {
		dtype string
		want  []string
	}{
		{"auto", []string{"offset=0 length=4 kept=6d696e6f taken=4d414a4f", fmt.Sprintf("offset=%d length=2 kept=6d69 taken=4d41", page+6)}},
		{"i64", []string{"offset=0 length=8 kept=6d696e6f6d696e6f taken=4d414a4f62626262", fmt.Sprintf("offset=%d length=8 kept=%x taken=%x", page, "....\x00\x00mi", "\x00\x00\x00\x00..MA")}},
	} {
		t.Run(x.dtype, func(t *testing.T) {
			c, all := parted(t, "n1", 1)
			f := all[0].Open("d/last", "rw,creat,excl")
			all[0].SetXattr("d/last", "user.dsm.dtype", x.dtype)
			f.Truncate(4 * page)
			maps := attachAll(all, "d/last", 4*page)
			open := all[2].Open("d/last", "rw")
			maps[0].Store(0, []byte("aaaabbbbccccddddeeee"))
			maps[0].Sync()
			for _, m := range maps {
				m.Await(0, []byte("aaaabbbbccccddddeeee"), limit)
			}
			c.Partition([]*harness.Node{c.Node(3)}, []*harness.Node{c.Node(1), c.Node(2)})
			maps[2].Store(0, []byte("minomino"))
			maps[2].Store(16, []byte("same"))
			maps[2].Store(page, []byte("...."))
			maps[2].Store(page+6, []byte("mi"))
			maps[2].Store(3*page, []byte("alone"))
			cannotPublish(t, "msync", maps[2].TrySync)
			cannotPublish(t, "fsync", func() error { _, err := all[2].Do("fsync %d", open.FD); return err })
			if got := string(open.Read(0, 8)); got != "minomino" {
				t.Errorf("read(2) of a node that is cut off brings %q", got)
			}
			evicted(t, c.Node(1), "n3")
			looksCutOff(t, all[2], "d/last")
			if got := all[2].Control("areas/d/last/conflicts"); got != "silent node=n1\nsilent node=n2\n" {
				t.Errorf("a node that is cut off shows conflicts %q", got)
			}
			maps[1].Store(0, []byte("MAJO"))
			maps[1].Store(12, []byte("MAJOsame"))
			maps[1].Store(page+4, []byte("..MA"))
			maps[1].Store(2*page, []byte("ALONE"))
			maps[1].Sync()
			if got := string(maps[2].Load(0, 20)); got != "minominoccccddddsame" {
				t.Errorf("the node that is cut off reads %q", got)
			}
			healed(t, c, maps)
			merged := "MAJOminoccccMAJOsame"
			if x.dtype == "i64" {
				merged = "MAJObbbbccccMAJOsame"
			}
			for _, m := range maps {
				m.Await(3*page, []byte("alone"), limit)
				m.Await(2*page, []byte("ALONE"), limit)
				m.Await(0, []byte(merged), limit)
				m.Await(page+4, []byte("..MA"), limit)
			}
			var same []string
			for i, m := range maps {
				same = append(same, string(m.Load(0, 4*page)))
				if same[i] != same[0] {
					t.Errorf("n%d has other bytes than n1", i+1)
				}
			}
			want := make([]string, len(x.want))
			for i := range want {
				want[i] = strings.TrimPrefix(x.want[i], "offset=")
			}
			for i, cl := range all {
				if got := kept(cl, "d/last"); !slices.Equal(got, want) {
					t.Errorf("n%d shows conflicts %q, want %q", i+1, got, want)
				}
			}
			if got := all[0].Control("areas/d/last/conflicts"); !strings.HasPrefix(got, "n3/1 time=") || !strings.Contains(got, "\nn3/2 time=") {
				t.Errorf("n1 does not say that n3 keeps them: %q", got)
			}
			if got := stat(all[2], "d/last", "conflicts"); got != "2" {
				t.Errorf("stats have %s conflicts", got)
			}
			clear := func(cl *harness.Client, order string, left []string) {
				t.Helper()
				if err := cl.SetControl("areas/d/last/conflicts", order); err != nil {
					t.Errorf("%s: %v", order, err)
				}
				if got := kept(all[2], "d/last"); !slices.Equal(got, left) {
					t.Errorf("after %s: %q", order, got)
				}
			}
			clear(all[0], "clear 2", want) // those of n1: it has none
			clear(all[0], "clear n3/1", want[1:])
			clear(all[1], "clear", nil)
		})
	}
}

// TestPartitionAddsOnce has each node add to a file while nothing reaches the third, so that what it sends is merged, and it does not hear of it. Then it
// is cut off, evicted, and comes back. What it, and those that waited for it, sent before is sent again; it counts once.
func TestPartitionAddsOnce(t *testing.T) {
	for _, x := range []struct {
		home     string
		replicas int
	}{{"n1", 1}, {"n1", 2}, {"n3", 2}} {
		t.Run(fmt.Sprintf("%s-%d", x.home, x.replicas), func(t *testing.T) {
			c, all := parted(t, x.home, x.replicas)
			f := all[0].Open("d/sum", "rw,creat,excl")
			all[0].SetXattr("d/sum", "user.dsm.merge", "sum")
			all[0].SetXattr("d/sum", "user.dsm.dtype", "i64")
			all[0].SetXattr("d/sum", "user.dsm.interval", "0")
			f.Truncate(page)
			if x.replicas > 1 {
				if home, _ := backupsOf(t, c.Node(1), all[0], "d/sum", 2); home != x.home {
					t.Fatalf("the home is %s", home)
				}
			}
			maps := attachAll(all, "d/sum", page)
			value := func(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
			add := func(i int, v uint64) {
				maps[i].Store(0, value(binary.LittleEndian.Uint64(maps[i].Load(0, 8))+v))
			}
			add(0, 1)
			maps[0].Sync()
			for _, m := range maps {
				if !harness.Eventually(limit, func() bool { return m.TrySync() == nil && m.Load(0, 1)[0] == 1 }) {
					t.Fatal("the first addition is not seen")
				}
			}
			c.Mute(c.Node(1), c.Node(3))
			c.Mute(c.Node(2), c.Node(3))
			add(2, 10)
			cannotPublish(t, "msync", maps[2].TrySync)
			add(1, 100)
			if !harness.Eventually(limit, func() bool { return maps[1].TrySync() == nil }) {
				t.Fatal("a publish of the majority does not end")
			}
			if got := maps[1].Load(0, 1)[0]; got != 111 {
				t.Fatalf("what the third node has sent was not merged, so nothing is sent twice: there is %d", got)
			}
			cutOff(t, c)
			add(1, 1000)
			if !harness.Eventually(limit, func() bool { return maps[1].TrySync() == nil }) {
				t.Fatal("the majority does not go on")
			}
			add(2, 10000)
			healed(t, c, maps)
			maps[1].Sync()
			maps[0].Sync()
			maps[2].Sync()
			for i, m := range maps {
				m.Await(0, value(11111), limit)
				if got := kept(all[i], "d/sum"); len(got) > 0 {
					t.Errorf("conflicts of sums: %q", got)
				}
			}
		})
	}
}

// TestPartitionedHome cuts off the home of a file that has no copies. Its programs go on with it; what the others have stored meanwhile, and could not
// publish, stays where both sides have stored, and they keep what was published there.
func TestPartitionedHome(t *testing.T) {
	c, all := parted(t, "n3", 1)
	f := all[0].Open("d/last", "rw,creat,excl")
	f.Truncate(page)
	maps := attachAll(all, "d/last", page)
	maps[0].Store(0, []byte("aaaabbbbcccc"))
	maps[0].Sync()
	for _, m := range maps {
		m.Await(0, []byte("aaaabbbbcccc"), limit)
	}
	c.Partition([]*harness.Node{c.Node(3)}, []*harness.Node{c.Node(1), c.Node(2)})
	maps[0].Store(0, []byte("MAJO"))
	maps[0].Store(8, []byte("MAJO"))
	maps[2].Store(0, []byte("minomino"))
	_ = maps[2].TrySync() // its home has it; whether the file is longer elsewhere the catalog says only at first
	evicted(t, c.Node(1), "n3")
	if err := maps[0].TrySync(); err == nil {
		t.Error("the majority publishes to a home that is cut off")
	}
	if got := all[1].Control("areas/d/last/conflicts"); got != "silent node=n3\n" {
		t.Errorf("while n3 is cut off n2 shows conflicts %q", got)
	}
	healed(t, c, maps)
	if !harness.Eventually(limit, func() bool { return maps[0].TrySync() == nil }) {
		t.Fatal("the majority does not publish to its home, which is back")
	}
	for _, m := range maps {
		m.Await(0, []byte("MAJOminoMAJO"), limit)
	}
	for i, cl := range all {
		if got, want := kept(cl, "d/last"), []string{"0 length=4 kept=6d696e6f taken=4d414a4f"}; !slices.Equal(got, want) {
			t.Errorf("n%d shows conflicts %q, want %q", i+1, got, want)
		}
	}
	if got := all[2].Control("areas/d/last/conflicts"); !strings.HasPrefix(got, "n1/1 time=") {
		t.Errorf("the home does not say that n1 keeps them: %q", got)
	}
}
