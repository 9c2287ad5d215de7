package integration

import (
	"bytes"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

func TestTruncateIsSeenEverywhere(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	f, _ := all[0].Create("w", 4*page)
	maps := attachAll(all, "w", 4*page)
	maps[0].Fill(0, 4*page, 3)
	maps[0].Sync()
	for i, m := range maps {
		if !harness.Eventually(limit, func() bool { return m.Check(0, 4*page, 3) < 0 }) {
			t.Fatalf("node %d never sees the fill", i+1)
		}
	}

	f.Truncate(page + 100)
	for i, m := range maps {
		if st := all[i].Stat("w"); st.Size != page+100 {
			t.Fatalf("node %d: size %d after shrinking to %d", i+1, st.Size, page+100)
		}
		if !harness.Eventually(limit, func() bool { return m.LoadFails(2*page) != nil }) {
			t.Errorf("node %d: memory beyond the new end is still there", i+1)
		}
		if err := m.LoadFails(3 * page); err != harness.Failure("SIGBUS") {
			t.Errorf("node %d: load beyond the new end: %v, want SIGBUS", i+1, err)
		}
		if at := m.Check(0, page+100, 3); at >= 0 {
			t.Errorf("node %d: byte %d changed by shrinking", i+1, at)
		}
	}

	f.Truncate(4 * page)
	for i, m := range maps {
		if st := all[i].Stat("w"); st.Size != 4*page {
			t.Fatalf("node %d: size %d after growing", i+1, st.Size)
		}
		if got := m.Load(page+100, 3*page-100); !bytes.Equal(got, make([]byte, len(got))) {
			t.Errorf("node %d: not all zero after shrinking and growing", i+1)
		}
		if at := m.Check(0, page+100, 3); at >= 0 {
			t.Errorf("node %d: byte %d changed by growing", i+1, at)
		}
	}
	maps[2].Store(3*page, []byte("again"))
	maps[2].Sync()
	maps[1].Await(3*page, []byte("again"), limit)
}

// TestWriteAfterATruncateElsewhere: a program writes when another one, of another node, has told it that the file is empty now. What it writes is the file.
func TestWriteAfterATruncateElsewhere(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	f := all[0].Open("w", "rw,creat,excl")
	g := all[1].Open("w", "rw")
	const rounds = 200
	wrong := 0
	for range rounds {
		f.Truncate(256 * page)
		g.Write(255*page, []byte("it knows how long it is"))
		f.Truncate(0)
		g.Write(0, []byte("after"))
		if st := g.Stat(); st.Size != 5 {
			wrong++
		}
	}
	if wrong > 0 {
		t.Errorf("what was written is gone in %d of %d rounds", wrong, rounds)
	}
}

// TestShrinkDropsUnpublishedStores has stores beyond the new end that nobody has
// published when another node shrinks the area: they are gone for good once their node has seen the shrink.
func TestShrinkDropsUnpublishedStores(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	_, _ = all[0].Create("w", 2*page)
	all[0].SetXattr("w", "user.dsm.interval", "0")
	maps := attachAll(all, "w", 2*page)
	maps[1].Store(page+5, []byte("beyond"))
	maps[1].Store(5, []byte("within"))
	all[0].Must("truncate %s %d", all[0].Path("w"), page)
	if st := all[1].Stat("w"); st.Size != page {
		t.Fatalf("size %d on the other node", st.Size)
	}
	all[0].Must("truncate %s %d", all[0].Path("w"), 2*page)
	all[1].Stat("w")
	maps[1].Sync()
	maps[0].Await(5, []byte("within"), limit)
	for i, m := range maps {
		all[i].Stat("w")
		if got := m.Load(page+5, 6); !bytes.Equal(got, make([]byte, 6)) {
			t.Errorf("node %d: %q came back after shrinking and growing", i+1, got)
		}
	}
}

// TestStoresOfBeforeARewrite: a program has stored to a mapping, and does not sync. One of another node makes the file empty, and as long again. What was stored
// before is not in what the file is then: there is so much of it that the kernel tells of some when the file has grown. A store that the program makes after the
// truncate is in the file.
func TestStoresOfBeforeARewrite(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	const size = 4 << 20
	f := all[0].Open("w", "rw,creat,excl")
	all[0].SetXattr("w", "user.dsm.interval", "0")
	f.Truncate(size)
	g := all[1].Open("w", "rw")
	m := f.Map(size)
	for i := range 8 {
		m.Fill(0, size, i+1)
		g.Truncate(0)
		g.Truncate(size)
		g.Write(page, []byte("new"))
		g.Sync()
		if i%2 == 0 {
			f.Stat() // and with that its kernel, which may have been told of the empty file
			m.Store(2*page, []byte("after"))
		}
		f.Sync()
		g.Sync()
		want := make([]byte, size)
		copy(want[page:], "new")
		if i%2 == 0 {
			copy(want[2*page:], "after")
		}
		for at, got := int64(0), g.Read(0, size); at < size; at += page {
			if !bytes.Equal(got[at:at+page], want[at:at+page]) {
				t.Fatalf("round %d: page %d begins with %q, want %q", i, at/page, got[at:at+10], want[at:at+10])
			}
		}
	}
}

// TestGrowthIsUsableElsewhere grows a file on one node and uses the new memory on another.
func TestGrowthIsUsableElsewhere(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	af, _ := a.Create("w", page)
	bf := b.Open("w", "rw")
	bm := bf.Map(8 * page) // beyond the end, as POSIX lets one
	if err := bm.LoadFails(4 * page); err != harness.Failure("SIGBUS") {
		t.Errorf("load beyond the end: %v, want SIGBUS", err)
	}
	af.Truncate(8 * page)
	am := af.Map(8 * page)
	am.Store(7*page, []byte("grown"))
	am.Sync()
	if st := bf.Stat(); st.Size != 8*page {
		t.Fatalf("size %d on the other node", st.Size)
	}
	bm.Await(7*page, []byte("grown"), limit)
	bf.Write(8*page, []byte("appended")) // a write past the end grows too
	if st := af.Stat(); st.Size != 8*page+8 {
		t.Errorf("size %d after a write past the end elsewhere", st.Size)
	}
}

// TestOneStatShowsGrowthToMappings grows a file again and again while updates
// arrive: a node that has seen the new size can touch the new memory. The kernel
// keeps its old idea of the size if an invalidation meets the answer to the stat.
func TestOneStatShowsGrowthToMappings(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	const pages = 64
	af, am := a.Create("w", page)
	bf := b.Open("w", "rw")
	bm := bf.Map(pages * page)
	am.Unmap()
	am = af.Map(pages * page)
	for i := int64(2); i <= pages; i++ {
		am.Store(0, []byte{byte(i)})
		am.Sync()
		af.Truncate(i * page)
		am.Store((i-1)*page, []byte("new"))
		if st := bf.Stat(); st.Size != i*page {
			t.Fatalf("size %d after growing to %d", st.Size, i*page)
		}
		if err := bm.LoadFails(i*page - 1); err != nil {
			t.Fatalf("%d pages: the other node sees the size and not the memory: %v", i, err)
		}
	}
}

func TestUnlinkedAreaLivesWhileMapped(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	_, _ = all[0].Create("w", page)
	maps := attachAll(all, "w", page)
	maps[0].Store(0, []byte("before"))
	maps[0].Sync()
	maps[1].Await(0, []byte("before"), limit)
	all[2].Must("unlink %s", all[2].Path("w"))
	all[0].Fails("ENOENT", "stat %s", all[0].Path("w"))
	for i, from := range maps { // updates still travel between those that have it
		text := []byte("after " + string(rune('a'+i)))
		from.Store(0, text)
		from.Sync()
		for _, m := range maps {
			m.Await(0, text, limit)
		}
	}
	// A new file of that name is another area.
	_, fresh := all[1].Create("w", page)
	if got := fresh.Load(0, 6); !bytes.Equal(got, make([]byte, 6)) {
		t.Errorf("a new file has the bytes of an unlinked one: %q", got)
	}
}

// TestSizeOverTheBudget grows past what the nodes have: ENOSPC where the size is
// set, and nothing else is harmed.
func TestSizeOverTheBudget(t *testing.T) {
	c := cluster(t, harness.Options{Nodes: 2, Memory: "32M"})
	a, b := c.Node(1).Client(), c.Node(2).Client()
	f, m := a.Create("w", page)
	if _, err := a.Do("ftruncate %d %d", f.FD, int64(1)<<30); err != harness.Failure("ENOSPC") {
		t.Errorf("truncate to 1 GiB with a budget of 32 MiB: %v, want ENOSPC", err)
	}
	if _, err := b.Do("open %s rw,creat", b.Path("other")); err != nil {
		t.Errorf("create after ENOSPC: %v", err)
	}
	if st := b.Stat("w"); st.Size != page {
		t.Errorf("size %d after a refused truncate", st.Size)
	}
	m.Store(0, []byte("fine"))
	m.Sync()
	_, bm := b.Attach("w", page)
	bm.Await(0, []byte("fine"), limit)
}
