package integration

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// ranges returns the data of an open file as SEEK_DATA and SEEK_HOLE tell it: "first-last" pages, the last one not included.
func ranges(t *testing.T, cl *harness.Client, f *harness.File) string {
	t.Helper()
	var out []string
	for at := "0"; ; {
		from, err := cl.Do("seek %d %s data", f.FD, at)
		if err == harness.Failure("ENXIO") {
			return strings.Join(out, " ")
		}
		if err != nil {
			t.Fatalf("SEEK_DATA from %s: %v", at, err)
		}
		to := cl.Must("seek %d %s hole", f.FD, from[0])
		var first, end int64
		if _, err := fmt.Sscan(from[0]+" "+to[0], &first, &end); err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%d-%d", first/page, (end+page-1)/page))
		at = to[0]
	}
}

// TestSparse: which parts of a file are holes, and how many blocks it has, is the same on every node, whoever has stored and whoever
// has read; and holes that are punched count.
func TestSparse(t *testing.T) {
	for _, residency := range []string{"full", "demand"} {
		t.Run(residency, func(t *testing.T) {
			c := nodes(t, 2)
			all := clients(c)
			const size = 3 * mib
			f := all[0].Open("w", "rw,creat")
			all[0].SetXattr("w", "user.dsm.residency", residency)
			f.Truncate(size)
			g := all[1].Open("w", "r")
			want := func(what, data string, pages int64) {
				t.Helper()
				for i, h := range []*harness.File{f, g} {
					if got := ranges(t, all[i], h); got != data {
						t.Errorf("%s: node %d finds data at %q, want %q", what, i+1, got, data)
					}
					blocks := int64(-1)
					if !harness.Eventually(limit, func() bool { blocks = all[i].Stat("w").Blocks; return blocks == max(8*pages, 1) }) {
						t.Errorf("%s: node %d counts %d blocks, want %d", what, i+1, blocks, 8*pages)
					}
				}
			}
			want("new", "", 0)
			f.Write(page, []byte("one"))
			if got := ranges(t, all[0], f); got != "1-2" {
				t.Errorf("not published, and the node finds data at %q", got)
			}
			m := f.Map(size)
			m.Store(700*page+5, []byte("two"))
			if got := ranges(t, all[0], f); got != "1-2 700-701" {
				t.Errorf("stored to a mapping, and the node finds data at %q", got)
			}
			f.Write(2*page, make([]byte, 3*page))
			f.Write(300*page, []byte(strings.Repeat("x", 4*page)))
			f.Sync()
			want("written", "1-2 300-304 700-701", 6)
			if got := len(g.Read(0, size)); got != size {
				t.Errorf("%d bytes", got)
			}
			want("read", "1-2 300-304 700-701", 6)
			all[0].Must("punch %d %d %d", f.FD, 301*page, 2*page)
			f.Sync()
			want("punched", "1-2 300-301 303-304 700-701", 4)
			f.Truncate(301 * page)
			want("cut", "1-2 300-301", 2)
			if _, err := all[1].Do("seek %d %d data", g.FD, 301*page); err != harness.Failure("ENXIO") {
				t.Errorf("SEEK_DATA at the end: %v", err)
			}
		})
	}
}

// TestSparseTools: cp and tar keep holes, and du counts what there is.
func TestSparseTools(t *testing.T) {
	c := nodes(t, 2)
	one, two := c.Node(1), c.Node(2)
	sh(t, one, `truncate -s 8M w; printf x | dd of=w bs=1 seek=4194304 conv=notrunc status=none; cp --sparse=always w v; tar -Scf w.tar w v; sync w v w.tar`)
	for _, f := range []string{"w", "v"} {
		du := ""
		if !harness.Eventually(limit, func() bool { du = sh(t, two, "du -k %s | cut -f 1", f); return du == "4\n" }) {
			t.Errorf("du of %s: %q KiB on the other node", f, du)
		}
	}
	if got := sh(t, two, "[ $(stat -c %%s w.tar) -lt 100000 ] && mkdir x && tar -C x -xf w.tar && cmp w x/w && cmp w x/v && cp --sparse=auto w u && cmp w u && echo same"); got != "same\n" {
		t.Errorf("what tar and cp brought: %q", got)
	}
	if du := ""; !harness.Eventually(limit, func() bool { du = sh(t, one, "du -k u | cut -f 1"); return du == "4\n" }) {
		t.Errorf("du of a copy: %q KiB", du)
	}
}

// TestPunchUnderAMapping: of a page that a program has mapped, and goes on storing to, a part is punched out again and again, while
// another node stores to that part. In the end both nodes have the same, and of what was outside of the hole nothing is lost.
func TestPunchUnderAMapping(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	f, m := all[0].Create("w", 4*page)
	_, om := all[1].Attach("w", 4*page)
	const hole, n = page + 100, 2 * page
	for round := range 60 {
		m.Store(page, []byte{byte(round + 1)}) // before the hole, in its first page
		om.Store(hole+8, []byte{byte(round + 1)})
		om.Sync()
		all[0].Must("punch %d %d %d", f.FD, hole, n)
		m.Sync()
		om.Store(hole+16, []byte{byte(round + 1)})
		om.Sync()
		m.Store(page+1, []byte{byte(round + 1)})
		m.Sync()
		if b := m.Load(page, 2); b[0] != byte(round+1) || b[1] != byte(round+1) {
			t.Fatalf("round %d: beside the hole memory has %v", round, b)
		}
		if b := m.Load(hole, 24); b[8] != 0 || b[16] != byte(round+1) {
			t.Fatalf("round %d: in the hole memory has %v", round, b)
		}
	}
	om.Sync()
	if a, b := m.Load(0, 4*page), om.Load(0, 4*page); !bytes.Equal(a, b) {
		t.Error("the nodes differ")
	}
}

// TestPunchedAndRewritten: a program punches a hole that begins and ends inside of pages, and goes on with the file. What another node
// then writes there is what it reads after fsync, and what a program reads that opens the file.
func TestPunchedAndRewritten(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	const size = 4 * page
	f := all[0].Open("punched", "rw,creat")
	f.Write(0, bytes.Repeat([]byte{'a'}, size))
	f.Sync()
	g := all[1].Open("punched", "rw")
	for n := range byte(24) {
		how := []string{"fsync", "open", "close and open"}[n%3]
		all[0].Must("punch %d %d %d", f.FD, page+100, 2*page)
		switch how {
		case "fsync":
			f.Sync()
		case "open":
			<-time.After(200 * time.Millisecond)
			if !harness.Eventually(limit, func() bool { return g.Read(page+100, 1)[0] == 0 }) {
				t.Fatalf("punch %v is not published at the interval", n)
			}
		default:
			all[0].Open("punched", "rw").Close() // publishes
		}
		want := bytes.Repeat([]byte{'b' + n}, size)
		g.Write(0, want)
		g.Sync()
		h := f
		if how == "fsync" {
			f.Sync()
		} else {
			h = all[0].Open("punched", "r")
		}
		if got := h.Read(0, size); !bytes.Equal(got, want) {
			t.Fatalf("punch %v, %s: %q from %d on", n, how, got[page+98:page+102], page+98)
		}
		if h != f {
			h.Close()
		}
	}
}
