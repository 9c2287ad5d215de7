package integration

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// ok fails the test if a request to the attach socket failed.
func ok(t *testing.T, what string) func(uint64, error) uint64 {
	t.Helper()
	return func(v uint64, err error) uint64 {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return v
	}
}

// word is element i of an area of 8-byte integers, for stores that are atomic.
func word(a *harness.Attachment, i int) *int64 { return (*int64)(unsafe.Pointer(&a.Mem[8*i])) }

// trackings are the ways in which stores of attached programs are found, with their numbers in the protocol.
var trackings = map[string]uint64{"async": 1, "sync": 2, "compare": 3}

// eachTracking runs a test with each of them that this machine has.
func eachTracking(t *testing.T, n int, test func(t *testing.T, c *harness.Cluster)) {
	for name, how := range trackings {
		t.Run(name, func(t *testing.T) {
			flag := "--tracking=" + name
			out, _ := exec.Command(harness.Binary(), "mount", flag, "/no/such/place").CombinedOutput() // fails in any case
			if strings.Contains(string(out), "--tracking") {
				t.Skip(string(out))
			}
			c := cluster(t, harness.Options{Nodes: n, Flags: []string{flag}})
			_, _ = clients(c)[0].Create("probe", page)
			if got := c.Node(1).Attach("/probe", true).How; got != how {
				t.Fatalf("stores are found in way %d, want %d", got, how)
			}
			test(t, c)
		})
	}
}

// TestAttachedAndMapped shares one area between programs that have attached and such that
// map a file of the mount, on the same node and on another: all see each other.
func TestAttachedAndMapped(t *testing.T) { eachTracking(t, 2, attachedAndMapped) }

func attachedAndMapped(t *testing.T, c *harness.Cluster) {
	all := clients(c)
	const size = 8*page + 100
	f := all[0].Open("w", "rw,creat,excl")
	all[0].SetXattr("w", "user.dsm.interval", "0")
	f.Truncate(size)
	var maps []*harness.Map
	for _, cl := range all {
		_, m := cl.Attach("w", size)
		maps = append(maps, m)
	}
	maps[1].Store(3*page, []byte("before"))
	maps[1].Sync()

	a, b := c.Node(1).Attach("/w", true), c.Node(2).Attach("/w", true)
	if a.Size != size {
		t.Fatalf("size %d, want %d", a.Size, size)
	}
	if got := string(a.Mem[3*page:][:6]); got != "before" {
		t.Fatalf("attached after a publish: %q", got)
	}
	copy(a.Mem[100:], "stored by an attached program")
	ok(t, "publish")(a.Call(harness.PublishOp))
	ok(t, "acquire")(b.Call(harness.AcquireOp))
	if got := b.Mem[100:][:29]; string(got) != "stored by an attached program" {
		t.Fatalf("attached on the other node: %q", got)
	}
	for i, m := range maps {
		m.Await(100, []byte("stored by an attached program"), limit)
		if got := string(m.Load(3*page, 6)); got != "before" {
			t.Fatalf("node %d: %q", i+1, got)
		}
	}
	// In one page, from both planes of both nodes.
	maps[0].Store(5*page+10, []byte("mapped one"))
	a.Mem[5*page] = 'a'
	maps[1].Store(5*page+30, []byte("mapped two"))
	b.Mem[5*page+1] = 'b'
	for _, m := range maps {
		m.Sync()
	}
	ok(t, "sync")(a.Call(harness.SyncOp))
	ok(t, "sync")(b.Call(harness.SyncOp))
	ok(t, "acquire")(a.Call(harness.AcquireOp))
	want := append([]byte("ab"), make([]byte, 38)...)
	copy(want[10:], "mapped one")
	copy(want[30:], "mapped two")
	for i, m := range maps {
		m.Await(5*page, want, limit)
		for j, x := range []*harness.Attachment{a, b} {
			if got := x.Mem[5*page:][:len(want)]; !bytes.Equal(got, want) {
				t.Fatalf("attached on node %d: %q, after node %d: want %q", j+1, got, i+1, want)
			}
		}
	}
	// Detached: what was stored and not published is kept and published.
	copy(b.Mem[7*page:], "last words")
	ok(t, "detach")(b.Call(harness.DetachOp))
	maps[0].Await(7*page, []byte("last words"), limit)
	if _, err := b.Call(harness.PublishOp); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("publish after detach: %v", err)
	}
}

// TestAttachedInterval: stores of an attached program show elsewhere within the
// interval, with no call; and those of one that ends without a word too.
func TestAttachedInterval(t *testing.T) {
	c := nodes(t, 2)
	cl := clients(c)[1]
	_, m := cl.Create("w", 4*page)
	a := c.Node(1).Attach("/w", true)
	copy(a.Mem[page:], "no call")
	m.Await(page, []byte("no call"), limit)
	copy(a.Mem[2*page:], "the last")
	a.Close()
	m.Await(2*page, []byte("the last"), limit)
}

// TestAttachedSumIsExact adds from attached threads and from programs with mappings
// of the mount on three nodes to the same elements.
func TestAttachedSumIsExact(t *testing.T) { eachTracking(t, 3, attachedSumIsExact) }

func attachedSumIsExact(t *testing.T, c *harness.Cluster) {
	all := clients(c)
	const (
		elements = 700
		size     = 2 * page
		rounds   = 20_000
		threads  = 2
	)
	f := all[0].Open("w", "rw,creat,excl")
	all[0].SetXattr("w", "user.dsm.merge", "sum")
	all[0].SetXattr("w", "user.dsm.dtype", "i64")
	all[0].SetXattr("w", "user.dsm.interval", "10ms")
	f.Truncate(size)
	maps := attachAll(all, "w", size)
	var attached []*harness.Attachment
	for _, n := range c.Nodes() {
		attached = append(attached, n.Attach("/w", true))
	}
	s := seed(t)
	var wg sync.WaitGroup
	for i, a := range attached {
		for th := range threads {
			rng := rand.New(rand.NewPCG(s, uint64(10*i+th)))
			wg.Go(func() {
				for r := range rounds {
					for e := range 20 {
						atomic.AddInt64(word(a, (r*20+e)%elements), 1)
					}
					if rng.IntN(500) == 0 {
						if _, err := a.Call(harness.SyncOp); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
		}
	}
	for _, m := range maps {
		m.Add("i64", 0, elements, 1, 2000)
	}
	wg.Wait()
	joinAll(t, maps)
	for _, a := range attached {
		ok(t, "publish")(a.Call(harness.PublishOp))
	}
	settle(maps)
	for _, a := range attached {
		ok(t, "acquire")(a.Call(harness.AcquireOp))
	}
	const want = rounds*threads*3*20 + 2000*elements*3
	for i, a := range attached {
		sum := int64(0)
		for e := range elements {
			sum += int64(binary.LittleEndian.Uint64(a.Mem[8*e:]))
		}
		if sum != want {
			t.Errorf("node %d: the elements add up to %d, want %d", i+1, sum, want)
		}
	}
}

// TestAttachRefused: bad requests get an errno and a text that says what is wrong,
// and nothing else happens.
func TestAttachRefused(t *testing.T) {
	c := nodes(t, 1)
	all := clients(c)
	all[0].Create("w", 4*page)
	all[0].Must("mkdir %s", all[0].Path("d"))
	n := c.Node(1)
	for _, x := range []struct {
		path string
		want syscall.Errno
	}{
		{"/none", syscall.ENOENT}, {"/d", syscall.EISDIR}, {"/", syscall.EISDIR}, {"w", syscall.EINVAL},
		{"/d/../w", syscall.EINVAL}, {"/w/x", syscall.ENOTDIR}, {"", syscall.EINVAL}, {"/.dsm/stats", syscall.ENOENT},
	} {
		if _, err := n.TryAttach(x.path, true); !errors.Is(err, x.want) {
			t.Errorf("attach %q: %v, want %v", x.path, err, x.want)
		}
	}
	a := n.Attach("/w", true)
	for _, x := range []struct {
		what string
		op   uint16
		args []uint64
		want syscall.Errno
	}{
		{"an address in the middle of a page", harness.TrackOp, []uint64{a.Addr() + 1, page, 0}, syscall.EINVAL},
		{"no length", harness.TrackOp, []uint64{a.Addr(), 0, 0}, syscall.EINVAL},
		{"a length past all bounds", harness.TrackOp, []uint64{a.Addr(), 1 << 63, 0}, syscall.EINVAL},
		{"a mapping that is not there", harness.UntrackOp, []uint64{4096, page}, syscall.EINVAL},
		{"a wait that ends", harness.WaitOp, []uint64{1 << 63, 10}, syscall.ETIMEDOUT},
		{"an unknown request", 99, nil, syscall.EINVAL},
		{"a size past all bounds", harness.ResizeOp, []uint64{1 << 62}, syscall.EFBIG},
	} {
		if _, err := a.Call(x.op, x.args...); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", x.what, err, x.want)
		}
	}
	copy(a.Mem, "still works")
	ok(t, "publish")(a.Call(harness.PublishOp))
	r := n.Attach("/w", false)
	if _, err := r.Call(harness.TrackOp, r.Addr(), page, 0); !errors.Is(err, syscall.EACCES) {
		t.Errorf("track after an attach for reading: %v", err)
	}
	if string(r.Mem[:11]) != "still works" {
		t.Errorf("attached for reading: %q", r.Mem[:11])
	}
}

// TestNoMount: a node that mounts nothing takes part, and programs attach at it.
func TestNoMount(t *testing.T) {
	c := nodes(t, 1)
	first := c.Node(1)
	_, m := clients(c)[0].Create("w", 4*page)
	dir := t.TempDir()
	name, state := filepath.Join(dir, "bare"), filepath.Join(dir, "state")
	run := func(args ...string) {
		t.Helper()
		if res := first.CLI(args...); res.Err != nil {
			t.Fatalf("dsmfs %v: %v: %s", args, res.Err, res.Stderr)
		}
	}
	run("mount", name, "--no-mount", "--join", first.Address, "--state", state, "--name", "bare", "--memory", "256M",
		"--listen", strings.TrimSuffix(first.Address, ":7400")+":7401")
	ended := false
	defer func() {
		if !ended {
			first.CLI("umount", name)
		}
	}()
	if res := first.CLI("members", first.Mount); !strings.Contains(res.Stdout, "bare") {
		t.Errorf("members: %s", res.Stdout)
	}
	a, err := harness.AttachAt(filepath.Join(state, "attach"), "/w", true)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	copy(a.Mem[page:], "from a node without a mount")
	ok(t, "publish")(a.Call(harness.PublishOp))
	m.Await(page, []byte("from a node without a mount"), limit)
	m.Store(2*page, []byte("and back"))
	m.Sync()
	ok(t, "acquire")(a.Call(harness.AcquireOp))
	if got := string(a.Mem[2*page:][:8]); got != "and back" {
		t.Errorf("attached: %q", got)
	}
	a.Close()
	run("umount", name)
	ended = true
}

// writerEnds are the ways in which a writer ends.
var writerEnds = []string{"killed", "exit", "exec", "munmap", "fork"}

var compiledWriter = sync.OnceValues(func() (string, error) {
	return harness.Compile("attached-writer", "gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-o", "{out}", "integration/attached/writer.c", "-pthread")
})

// startWriter starts a program that attaches the file of the name of a way to end, stores into
// it, and ends that way. It has stored when this returns.
func startWriter(t *testing.T, n *harness.Node, how string) (cmd *exec.Cmd, kill func()) {
	t.Helper()
	writer, err := compiledWriter()
	if err != nil {
		t.Fatal(err)
	}
	cmd = n.Command(t.Context(), writer, filepath.Join(n.Mount, how), how)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%s: %q, %v: %s", how, line, err, said.Bytes())
	}
	return cmd, func() {
		t.Helper()
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAttachedProgramEnds: whatever becomes of a program that has attached, what it
// had stored is there, on every node, though it published nothing.
func TestAttachedProgramEnds(t *testing.T) {
	eachTracking(t, 2, func(t *testing.T, c *harness.Cluster) {
		const pages = 50
		cl := clients(c)[1]
		for _, how := range writerEnds {
			f, m := cl.Create(how, pages*page)
			cl.SetXattr(how, "user.dsm.interval", "0") // nothing publishes but the end of the program, or the test
			cmd, kill := startWriter(t, c.Node(1), how)
			want := make([]byte, 16)
			if how == "munmap" {
				if err := clients(c)[0].SetControl("areas/"+how+"/publish", "1"); err != nil {
					t.Fatal(err)
				}
			} else if how != "exit" {
				kill()
			}
			for p := range pages - 1 {
				binary.LittleEndian.PutUint64(want, uint64(p+1))
				if how == "fork" {
					binary.LittleEndian.PutUint64(want[8:], uint64(100+p))
				}
				m.Await(int64(p)*page, want, limit)
			}
			if how == "munmap" {
				kill()
			}
			_ = cmd.Wait() // it was killed, or has ended
			f.Close()
		}
	})
}

// TestAttachedPastTheEnd: what an attached program stores past the end, in the last page, is
// no part of the file, also after others wrote to the page and the file grew.
func TestAttachedPastTheEnd(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	f := all[0].Open("w", "rw,creat,excl")
	f.Truncate(100)
	a := c.Node(1).Attach("/w", true)
	copy(a.Mem[90:], "the end: and this is past it")
	ok(t, "publish")(a.Call(harness.PublishOp))
	ok(t, "detach")(a.Call(harness.DetachOp))
	f.Write(0, []byte("x"))
	f.Sync()
	g := all[1].Open("w", "rw")
	g.Truncate(page)
	want := make([]byte, page)
	want[0] = 'x'
	copy(want[90:100], "the end: and this")
	for i, f := range []*harness.File{f, g} {
		if got := f.Read(0, page); !bytes.Equal(got, want) {
			t.Errorf("node %d: %q", i+1, got[80:140])
		}
	}
}

// TestAttachedWaits: programs that wait delay neither other requests of their connection
// nor the end of it.
func TestAttachedWaits(t *testing.T) {
	c := nodes(t, 1)
	cl := clients(c)[0]
	cl.Create("w", page)
	a := c.Node(1).Attach("/w", true)
	const never = 1 << 63
	for range 200 { // more than run at once
		if err := a.Post(harness.WaitOp, never, 0); err != nil {
			t.Fatal(err)
		}
	}
	copy(a.Mem, "published past them")
	ok(t, "publish")(a.Call(harness.PublishOp))
	a.Close()
	if !harness.Eventually(limit, func() bool { return strings.Contains(cl.Control("areas/w/stats"), "attached_writers 0\n") }) {
		t.Errorf("the end of the connection is not seen:\n%s", cl.Control("areas/w/stats"))
	}
	if got := string(cl.Open("w", "r").Read(0, 19)); got != "published past them" {
		t.Errorf("the file has %q", got)
	}
}

// TestAttachByNumber: a file that its name does not lead to any more is attached by its
// number, while somebody has it open.
func TestAttachByNumber(t *testing.T) {
	c := nodes(t, 1)
	cl := clients(c)[0]
	f, m := cl.Create("w", page)
	ino := f.Stat().Ino
	cl.Must("unlink %s", cl.Path("w"))
	if _, err := c.Node(1).TryAttach("/w", true); !errors.Is(err, syscall.ENOENT) {
		t.Fatalf("by its path: %v", err)
	}
	a, err := harness.AttachFile(c.Node(1).AttachSocket(), "/w", ino, true)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	copy(a.Mem, "still there")
	ok(t, "publish")(a.Call(harness.PublishOp))
	m.Await(0, []byte("still there"), limit)
	if _, err := harness.AttachFile(c.Node(1).AttachSocket(), "/w", ino+1000, true); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a number of no file: %v", err)
	}
}

// TestAttachCreateResize: files are made and grown at the socket as at a mount.
func TestAttachCreateResize(t *testing.T) {
	c := nodes(t, 2)
	cl := clients(c)[1]
	if _, err := harness.CreateAt(c.Node(1).AttachSocket(), "/made\nmerge sum\ndtype i64\n", page, 0o640, true); err != nil {
		t.Fatal(err)
	}
	if st := cl.Stat("made"); st.Size != page || st.Mode&0o777 != 0o640 || cl.Xattr("made", "user.dsm.merge") != "sum" {
		t.Errorf("%+v, merge %s", st, cl.Xattr("made", "user.dsm.merge"))
	}
	for _, x := range []struct {
		text string
		excl bool
		want syscall.Errno
	}{
		{"/made\n", true, syscall.EEXIST}, {"/none/made\n", false, syscall.ENOENT}, {"/a\ncolour red\n", false, syscall.EINVAL},
		{"/a\nmerge\n", false, syscall.EINVAL}, {"/a", false, syscall.EINVAL}, {"/.dsm\n", false, syscall.EPERM},
	} {
		if _, err := harness.CreateAt(c.Node(1).AttachSocket(), x.text, page, 0o600, x.excl); !errors.Is(err, x.want) {
			t.Errorf("create %q: %v, want %v", x.text, err, x.want)
		}
	}
	a := c.Node(1).Attach("/made", true)
	ok(t, "resize")(a.Call(harness.ResizeOp, 5*page))
	if st := cl.Stat("made"); st.Size != 5*page {
		t.Errorf("size %d after a resize", st.Size)
	}
	if _, err := cl.Do("stat %s", cl.Path("a")); err == nil {
		t.Error("a file that could not be made as asked is there")
	}
}

// TestAttachCreateAtOnce: of all who make a file at the same moment one does, and nobody finds it
// half made.
func TestAttachCreateAtOnce(t *testing.T) {
	c := nodes(t, 2)
	for i := range 50 {
		path := fmt.Sprintf("/w%d", i)
		var both sync.WaitGroup
		inos := make([]uint64, 4)
		for k := range inos {
			both.Go(func() {
				n := c.Node(1 + k%2)
				ino, err := harness.CreateAt(n.AttachSocket(), path+"\nmerge sum\ndtype i64\n", page, 0o644, false)
				if err != nil {
					t.Errorf("create %s: %v", path, err)
					return
				}
				inos[k] = ino
				a, err := n.TryAttach(path, true)
				if err != nil {
					t.Errorf("attach %s: %v", path, err)
					return
				}
				if len(a.Mem) != page {
					t.Errorf("%s has %d bytes", path, len(a.Mem))
				}
				a.Close()
			})
		}
		both.Wait()
		if slices.Min(inos) != slices.Max(inos) {
			t.Fatalf("files %v at %s", inos, path)
		}
	}
	res := c.Node(1).Run(time.Minute, "ls", "-A", c.Node(1).Mount)
	if names := strings.Fields(res.Stdout); res.Err != nil || len(names) != 50 {
		t.Errorf("%v: left: %v", res.Err, names)
	}
}

// TestStoresAfterDetach: what a program stores to a mapping that it kept when it detached is seen on the other node all the same,
// until the mapping is gone, whether others are attached meanwhile or not.
func TestStoresAfterDetach(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	for _, merge := range []string{"last", "sum"} {
		t.Run(merge, func(t *testing.T) {
			f := all[1].Open(merge, "rw,creat,excl")
			all[1].SetXattr(merge, "user.dsm.dtype", "u8")
			all[1].SetXattr(merge, "user.dsm.merge", merge)
			f.Truncate(2 * page)
			f.Close()
			m := all[1].Open(merge, "r").MapForReading(2 * page)
			a := c.Node(1).Attach("/"+merge, true)
			a.Mem[0] = 1
			ok(t, "detach")(a.Call(harness.DetachOp))
			m.Await(0, []byte{1}, limit)
			a.Mem[0] = 2
			m.Await(0, []byte{2}, limit)
			worker, err := compiledWriter()
			if err != nil {
				t.Fatal(err)
			}
			cmd := c.Node(1).Command(t.Context(), worker, filepath.Join(c.Node(1).Mount, merge))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			a.Mem[100] = 3
			m.Await(100, []byte{3}, limit)
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
			a.Close()
			if !harness.Eventually(limit, func() bool { return strings.Contains(all[0].Control("areas/"+merge+"/stats"), "attached_writers 0\n") }) {
				t.Errorf("the end of the mapping is not seen:\n%s", all[0].Control("areas/"+merge+"/stats"))
			}
		})
	}
}
