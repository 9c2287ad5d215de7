package integration

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

const page = 4096

func TestStoreAndMsyncIsSeenInExistingMapping(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	_, am := a.Create("w", 16*page)
	bf, bm := b.Attach("w", 16*page)
	if got := bm.Load(5, 4); !bytes.Equal(got, make([]byte, 4)) {
		t.Fatalf("a new area has %x", got)
	}
	for i := range 20 {
		off := int64(i%3) * 5 * page
		want := fmt.Appendf(nil, "round %d", i)
		am.Store(off+7, want)
		am.Sync()
		bm.Await(off+7, want, limit)
		if got := bf.Read(off+7, int64(len(want))); !bytes.Equal(got, want) {
			t.Fatalf("mapping has %q, read has %q", want, got)
		}
		want = fmt.Appendf(nil, "answer %d", i) // and the other way
		bm.Store(off+100, want)
		bm.Sync()
		am.Await(off+100, want, limit)
	}
}

func TestStoreIsSeenWithinIntervals(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	_, am := a.Create("w", 4*page)
	_, bm := b.Attach("w", 4*page)
	for i := range 5 {
		want := fmt.Appendf(nil, "unsynced %d", i)
		am.Store(page+3, want)
		t.Logf("seen after %v", bm.Await(page+3, want, limit))
	}
}

func TestPublishThroughControlFile(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	_, am := a.Create("w", page)
	a.SetXattr("w", "user.dsm.interval", "0")
	_, bm := b.Attach("w", page)
	am.Store(0, []byte("by echo"))
	res := c.Node(1).Run(limit, "sh", "-c", "echo 1 > "+a.Path(".dsm/areas/w/publish"))
	if res.Err != nil {
		t.Fatalf("echo 1 > publish: %v %s", res.Err, res.Stderr)
	}
	bm.Await(0, []byte("by echo"), limit)
	if res := c.Node(2).Run(limit, "sh", "-c", "echo 1 > "+b.Path(".dsm/areas/w/acquire")); res.Err != nil {
		t.Fatalf("echo 1 > acquire: %v %s", res.Err, res.Stderr)
	}
}

func TestReadWriteAndMmapAgreeOnOneNode(t *testing.T) {
	c := nodes(t, 1)
	a, other := c.Node(1).Client(), c.Node(1).Client()
	f, m := a.Create("w", 8*page)
	of, om := other.Attach("w", 8*page)
	for i := range 50 {
		off := int64(i * 613 % (7 * page))
		want := fmt.Appendf(nil, "written %d", i)
		f.Write(off, want)
		if got := m.Load(off, int64(len(want))); !bytes.Equal(got, want) {
			t.Fatalf("wrote %q, own mapping has %q", want, got)
		}
		if got := om.Load(off, int64(len(want))); !bytes.Equal(got, want) {
			t.Fatalf("wrote %q, mapping of another process has %q", want, got)
		}
		want = fmt.Appendf(nil, "stored %d", i)
		om.Store(off+20, want)
		if got := f.Read(off+20, int64(len(want))); !bytes.Equal(got, want) {
			t.Fatalf("stored %q, read %q", want, got)
		}
		if i%7 == 0 {
			om.Sync()
			of.Sync()
		}
	}
}

func TestWriteOnOneNodeIsReadOnAnother(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	f := all[0].Open("w", "rw,creat")
	for i := range 10 {
		want := bytes.Repeat(fmt.Appendf(nil, "block %d ", i), 700)
		f.Write(int64(i*len(want)), want) // grows the file
		f.Sync()
		for n, cl := range all {
			g := cl.Open("w", "r") // opening acquires
			if got := g.Read(int64(i*len(want)), int64(len(want))); !bytes.Equal(got, want) {
				t.Fatalf("block %d on node %d: %d bytes, %.20q", i, n+1, len(got), got)
			}
			g.Close()
		}
	}
}

func TestDifferentBytesOfOnePageAreBothKept(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	maps := make([]*harness.Map, len(all))
	_, maps[0] = all[0].Create("w", page)
	for i := 1; i < len(all); i++ {
		_, maps[i] = all[i].Attach("w", page)
	}
	for round := range 30 {
		want := make([]byte, 0, 9)
		for i, m := range maps { // neighbouring bytes, all before anybody publishes
			b := []byte{byte(round), byte(i + 1), byte(round * i)}
			m.Store(int64(64+3*i), b)
			want = append(want, b...)
		}
		for _, m := range maps {
			m.Sync()
		}
		for _, m := range maps {
			m.Await(64, want, limit)
		}
	}
}

func TestUnpublishedStoresSurviveAnUpdate(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	_, am := a.Create("w", 2*page)
	a.SetXattr("w", "user.dsm.interval", "0") // nothing is published but on request
	_, bm := b.Attach("w", 2*page)
	for i := range byte(20) {
		bm.Store(10, []byte{i, 'b', i})
		am.Store(20, []byte{i, 'a', i})
		am.Store(9, []byte{i})
		am.Sync()
		bm.Await(20, []byte{i, 'a', i}, limit)
		bm.Await(9, []byte{i, i, 'b', i}, limit)
		if got := am.Load(10, 3); i > 0 && !bytes.Equal(got, []byte{i - 1, 'b', i - 1}) {
			t.Fatalf("round %d: an unpublished store is seen elsewhere: %x", i, got)
		}
		bm.Sync()
		am.Await(9, []byte{i, i, 'b', i}, limit)
	}
}

func TestLateSubscriberSeesEverything(t *testing.T) {
	c := nodes(t, 3)
	a := c.Node(1).Client()
	const size = 5 << 20
	_, am := a.Create("w", size)
	am.Fill(0, size, 1)
	am.Sync()
	for i := 2; i <= 3; i++ {
		_, m := c.Node(i).Client().Attach("w", size)
		if at := m.Check(0, size, 1); at >= 0 {
			t.Errorf("node %d: byte %d differs after opening", i, at)
		}
	}
}

func TestManyScatteredPages(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	const size = 4 << 20
	_, am := a.Create("w", size)
	_, bm := b.Attach("w", size)
	bm.Load(0, size)
	for off := int64(0); off < size; off += 3 * page {
		am.Store(off+off/page%4000, []byte{1, 2, 3})
	}
	am.Store(size-1, []byte{9})
	am.Sync()
	for off := int64(0); off < size; off += 3 * page {
		bm.Await(off+off/page%4000, []byte{1, 2, 3}, limit)
	}
	bm.Await(size-1, []byte{9}, limit)
}
