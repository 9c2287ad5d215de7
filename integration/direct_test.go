package integration

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// directNodes starts a cluster of n nodes in which all new files are direct, and skips
// the test where the kernel has no FUSE passthrough.
func directNodes(t *testing.T, n int) (*harness.Cluster, []*harness.Client) {
	t.Helper()
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	out, err := exec.Command(harness.Binary(), "doctor").CombinedOutput()
	if err != nil {
		t.Fatalf("doctor: %v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "FUSE passthrough") && !strings.HasPrefix(line, "ok ") {
			t.Skip(line)
		}
	}
	c := nodes(t, n)
	all := clients(c)
	all[0].SetXattr("", "user.dsm.access", "direct")
	return c, all
}

// access fails the test unless the node serves a file that way.
func access(t *testing.T, cl *harness.Client, name, want string) {
	t.Helper()
	if got := figure(cl, name, "access"); got != want {
		t.Fatalf("access %q, want %q", got, want)
	}
}

// figure returns a line of a file's stats.
func figure(cl *harness.Client, name, key string) string {
	for line := range strings.Lines(cl.Control("areas/" + name + "/stats")) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// TestDirect maps a file on two nodes by plain open and mmap. Stores show elsewhere after
// fsync, after close, and after the interval when the file is long closed; not by msync.
func TestDirect(t *testing.T) {
	_, all := directNodes(t, 2)
	f, a := all[0].Create("w", 4*page)
	g, b := all[1].Attach("w", 4*page)
	for _, cl := range all {
		access(t, cl, "w", "direct")
	}
	all[0].SetXattr("w", "user.dsm.interval", "0")

	a.Store(0, []byte("by msync"))
	a.Sync()
	if err := all[1].SetControl("areas/w/acquire", "1"); err != nil {
		t.Fatal(err)
	}
	if got := b.Load(0, 8); !bytes.Equal(got, make([]byte, 8)) {
		t.Errorf("msync of a direct file published %q", got)
	}
	all[0].Must("utimens %s 1000", all[0].Path("w")) // which publishes
	b.Await(0, []byte("by msync"), limit)
	a.Store(8, []byte("by fsync"))
	f.Sync()
	b.Await(8, []byte("by fsync"), limit)
	for i, cl := range all {
		if got := cl.Stat("w").Mtime; got <= 1000 {
			t.Errorf("node %d: modified at %d after stores that were published", i+1, got)
		}
	}

	b.Store(page, []byte("by close"))
	g.Close()
	a.Await(page, []byte("by close"), limit)

	b.Store(2*page, []byte("by control file"))
	if err := all[1].SetControl("areas/w/publish", "1"); err != nil {
		t.Fatal(err)
	}
	a.Await(2*page, []byte("by control file"), limit)

	f.Close()
	all[0].SetXattr("w", "user.dsm.interval", "10ms")
	for i, m := range []*harness.Map{b, a} {
		m.Store(3*page+int64(i)*8, []byte("no call"))
		[]*harness.Map{a, b}[i].Await(3*page+int64(i)*8, []byte("no call"), limit)
	}
	if got := string(all[0].Open("w", "r").Read(3*page, 7)); got != "no call" {
		t.Errorf("read(2) gives %q", got)
	}
}

// TestDirectReader: a mapping for reading is kept up to date after its file was
// closed, and the node compares nothing for it.
func TestDirectReader(t *testing.T) {
	_, all := directNodes(t, 2)
	f, a := all[0].Create("w", 2*page)
	g := all[1].Open("w", "r")
	b := g.MapRead(2 * page)
	g.Close()
	if !harness.Eventually(limit, func() bool { return figure(all[1], "w", "handles") == "1" }) {
		t.Fatalf("%s handles are left of a file that is mapped and closed, want 1", figure(all[1], "w", "handles"))
	}
	for i := range 5 {
		word := []byte{'r', byte('0' + i)}
		a.Store(page, word)
		f.Sync()
		b.Await(page, word, limit)
	}
	access(t, all[1], "w", "direct")
	if got := figure(all[1], "w", "pages_compared"); got != "0" {
		t.Errorf("%s pages were compared for a reader", got)
	}
	if got := figure(all[0], "w", "pages_compared"); got == "0" {
		t.Error("no pages were compared for a writer")
	}
	b.Unmap()
	if !harness.Eventually(limit, func() bool { return figure(all[1], "w", "handles") == "0" }) {
		t.Errorf("%s handles are left of a file that is neither open nor mapped", figure(all[1], "w", "handles"))
	}
}

// TestDirectBesideCached: one node gives its programs the memory, the other has a page cache.
func TestDirectBesideCached(t *testing.T) {
	c, all := directNodes(t, 1)
	n := c.Declare()
	n.Flags = []string{"--passthrough=off"}
	n.Start()
	all = append(all, n.Client())
	const elements, rounds = 512, 2000
	f := all[0].Open("w", "rw,creat,excl")
	all[0].SetXattr("w", "user.dsm.merge", "sum")
	all[0].SetXattr("w", "user.dsm.dtype", "i64")
	all[0].SetXattr("w", "user.dsm.interval", "10ms")
	f.Truncate(2 * page)
	maps := attachAll(all, "w", 2*page)
	access(t, all[0], "w", "direct")
	access(t, all[1], "w", "cached --passthrough=off")
	for _, m := range maps {
		m.Add("i64", 0, elements, 1, rounds)
	}
	joinAll(t, maps)
	f.Sync()
	maps[1].Sync()
	f.Sync()
	for i, m := range maps {
		if lo, hi := m.Range("i64", 0, elements); lo != 2*rounds || hi != 2*rounds {
			t.Errorf("node %d: elements from %d to %d, want %d", i+1, lo, hi, 2*rounds)
		}
	}
	text, err := os.ReadFile(n.LogFile())
	if err != nil || strings.Count(string(text), "are served through the page cache") != 1 {
		t.Errorf("the log (%v) says %d times that files are not direct, want once",
			err, strings.Count(string(text), "are served through the page cache"))
	}
	if text, _ := os.ReadFile(c.Node(1).LogFile()); strings.Contains(string(text), "page cache on this node") {
		t.Error("so says the other node")
	}
}

// TestDirectSumIsExact adds on three nodes at the same time, of which one closes the file
// at once, while the areas publish at an interval.
func TestDirectSumIsExact(t *testing.T) {
	_, all := directNodes(t, 3)
	const elements, rounds, threads = 700, 3000, 2
	f := all[0].Open("w", "rw,creat,excl")
	all[0].SetXattr("w", "user.dsm.merge", "sum")
	all[0].SetXattr("w", "user.dsm.dtype", "i64")
	all[0].SetXattr("w", "user.dsm.interval", "10ms")
	f.Truncate(2 * page)
	files, maps := []*harness.File{f}, []*harness.Map{f.Map(2 * page)}
	for _, cl := range all[1:] {
		g, m := cl.Attach("w", 2*page)
		files, maps = append(files, g), append(maps, m)
	}
	files[1].Close()
	for _, m := range maps {
		for range threads {
			m.Add("i64", 0, elements, 1, rounds)
		}
	}
	joinAll(t, maps)
	files[1] = all[1].Open("w", "rw")
	for range 2 {
		for _, f := range files {
			f.Sync()
		}
	}
	const want = 3 * threads * rounds
	for i, m := range maps {
		if lo, hi := m.Range("i64", 0, elements); lo != want || hi != want {
			t.Errorf("node %d: elements from %d to %d, want %d", i+1, lo, hi, want)
		}
	}
}

// TestDirectSize: programs see the end of the file where it is, what they write past it
// makes it longer everywhere, and a size set on one node is that of all mappings.
func TestDirectSize(t *testing.T) {
	_, all := directNodes(t, 2)
	f := all[0].Open("w", "rw,creat,append")
	f.Append([]byte("one two"))
	if st := f.Stat(); st.Size != 7 {
		t.Fatalf("size %d after appending 7 bytes", st.Size)
	}
	f.Append([]byte(" three"))
	if got := string(f.Read(0, 100)); got != "one two three" {
		t.Errorf("read %q", got)
	}
	f.Sync()
	g := all[1].Open("w", "rw")
	if got := string(g.Read(0, 100)); got != "one two three" || g.Stat().Size != 13 {
		t.Errorf("on the other node: %q, size %d", got, g.Stat().Size)
	}
	// Past the end, by the interval alone; into memory that is mapped already.
	b := g.Map(4 * page)
	plain := all[0].Open("w", "rw")
	plain.Write(2*page+10, []byte("far"))
	if !harness.Eventually(limit, func() bool { return b.LoadFails(2*page) == nil }) {
		t.Fatal("what was written past the end is not seen on the other node")
	}
	b.Await(2*page+10, []byte("far"), limit)
	if got := string(b.Load(0, 13)); got != "one two three" {
		t.Errorf("before it: %q", got)
	}
	// Set on the other node.
	g.Truncate(5)
	for i, h := range []*harness.File{f, g} {
		if st := h.Stat(); st.Size != 5 {
			t.Errorf("node %d: size %d after truncating to 5", i+1, st.Size)
		}
		if got := string(h.Read(0, 100)); got != "one t" {
			t.Errorf("node %d: %q", i+1, got)
		}
	}
	if err := b.LoadFails(2 * page); err != harness.Failure("SIGBUS") {
		t.Errorf("memory past the end: %v, want SIGBUS", err)
	}
	f.Append([]byte("!"))
	if got := string(f.Read(0, 100)); got != "one t!" {
		t.Errorf("appended after the other node shortened the file: %q", got)
	}
	f.Sync()
	g.Truncate(2 * page)
	want := append([]byte("one t!"), make([]byte, 2*page-6)...)
	for i, h := range []*harness.File{f, g} {
		if err := all[i].SetControl("areas/w/acquire", "1"); err != nil {
			t.Fatal(err)
		}
		if got := h.Read(0, 3*page); !bytes.Equal(got, want) {
			t.Errorf("node %d: %d bytes, not as written and zero after growing", i+1, len(got))
		}
	}
	all[0].Must("fallocate %d 0 %d", plain.FD, 3*page)
	if st := g.Stat(); st.Size != 3*page {
		t.Errorf("size %d after fallocate to %d", st.Size, 3*page)
	}
	all[0].Open("w", "rw,trunc")
	if st := g.Stat(); st.Size != 0 {
		t.Errorf("size %d after O_TRUNC", st.Size)
	}
	// More than there is: fsync says so, and the file has its old size again.
	plain.Write(100, []byte("x"))
	plain.Write(300<<20, []byte("x")) // the cluster has 256 MiB
	if st := plain.Stat(); st.Size > 101 {
		t.Errorf("size %d of a file that there is no room for", st.Size)
	}
	all[0].Fails("ENOSPC", "fsync %d", plain.FD)
	if st := plain.Stat(); st.Size != 0 && st.Size != 101 {
		t.Errorf("size %d after ENOSPC", st.Size)
	}
	plain.Sync() // which is said once
	plain.Write(page, []byte("fits"))
	plain.Sync()
	if st := g.Stat(); st.Size != page+4 {
		t.Errorf("size %d on the other node, want %d", st.Size, page+4)
	}
}

// TestDirectOpens opens a file in all ways at once, and says otherwise how it is to be
// opened while it is open: no open fails, none sees other bytes, and what was said
// counts when all have closed it. In between the page cache has had pages of the file.
func TestDirectOpens(t *testing.T) {
	c, all := directNodes(t, 1)
	cl := all[0]
	cl.Open("w", "rw,creat").Close()
	// opens opens and closes the file in every way while it is open.
	opens := func(round int, want string) {
		t.Helper()
		var files []*harness.File
		for _, how := range []string{"r", "rw", "w", "rw,append", "rw,creat", "r"} {
			files = append(files, cl.Open("w", how))
		}
		for i, f := range files {
			if i != 2 {
				if got := string(f.Read(0, int64(len(want)))); got != want {
					t.Fatalf("round %d: read %q, want %q", round, got, want)
				}
			}
			f.Close()
		}
	}
	for round, how := range []string{"direct", "cached", "direct", "cached"} {
		f := cl.Open("w", "rw")
		access(t, cl, "w", how)
		f.Truncate(3 * page)
		m := f.Map(3 * page)
		if got := m.Load(0, 3*page); !bytes.Equal(got, make([]byte, 3*page)) {
			t.Fatalf("round %d: a new file is not empty", round)
		}
		word := []byte{'w', byte('0' + round)}
		m.Store(2*page, word)
		f.Write(0, word)
		opens(round, string(word))
		if got := m.Load(0, 2); !bytes.Equal(got, word) {
			t.Errorf("round %d: %q in memory, written %q", round, got, word)
		}
		f.Truncate(0)
		next, still := "cached", "direct"
		if how == "cached" {
			next, still = "direct", "cached until all that have it open have closed it"
		}
		cl.SetXattr("w", "user.dsm.access", next)
		access(t, cl, "w", still)
		f.Truncate(page)
		m.Store(0, []byte("more"))
		opens(round, "more")
		cl.Open("w", "rw,trunc").Close()
		m.Unmap()
		f.Close()
		if !harness.Eventually(limit, func() bool { return figure(cl, "w", "handles") == "0" }) {
			t.Fatalf("round %d: %s handles are left", round, figure(cl, "w", "handles"))
		}
	}
	if text, _ := os.ReadFile(c.Node(1).LogFile()); strings.Contains(string(text), "level=ERROR") {
		t.Errorf("the log has errors:\n%s", text)
	}
}

// TestDirectPosix runs the conformance tests on direct files.
func TestDirectPosix(t *testing.T) {
	long(t)
	c, _ := directNodes(t, 2)
	posix(t, c.Node(2))
}

// TestDirectPinned: the memory can be pinned, as that of a page cache cannot.
func TestDirectPinned(t *testing.T) {
	_, all := directNodes(t, 1)
	cl := all[0]
	_, m := cl.Create("w", 16*page)
	m.Lock()
	switch err := m.Pin(0, 16*page); err {
	case nil:
	case harness.Failure("ENOSYS"), harness.Failure("EPERM"):
		t.Skip("no io_uring on this machine: ", err)
	default:
		t.Errorf("pin: %v", err)
	}
	cl.SetXattr("", "user.dsm.access", "cached")
	_, m = cl.Create("c", 16*page)
	if err := m.Pin(0, 16*page); err == nil {
		t.Error("the page cache can be pinned; then what direct files are for has changed")
	}
}
