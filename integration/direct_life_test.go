package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The tests of this file are about how long a direct file is in use: by descriptors, by
// mappings that outlive them, and by neither.

// TestDirectKilled: what a program stored that is killed is published, and nothing
// of it is left behind.
func TestDirectKilled(t *testing.T) {
	c, all := directNodes(t, 2)
	_, _ = all[0].Create("w", 4*page)
	all[0].SetXattr("w", "user.dsm.interval", "0")
	_, b := all[1].Attach("w", 4*page)
	victim := c.Node(1).Client()
	f, m := victim.Attach("w", 4*page)
	f.Close()
	m.Store(3*page, []byte("last words"))
	victim.Kill()
	all[0].Close() // the last that has it open on the node
	b.Await(3*page, []byte("last words"), limit)
	look := c.Node(1).Client()
	if !harness.Eventually(limit, func() bool { return figure(look, "w", "handles") == "0" }) {
		t.Errorf("%s handles are left of dead programs", figure(look, "w", "handles"))
	}
	if got := figure(look, "w", "attached_writers") + figure(look, "w", "mappings"); got != "00" {
		t.Errorf("attached_writers and mappings %s", got)
	}
}

// TestDirectUnmounted: a mount that is taken away from a program publishes what the program
// stored last; its memory is its own from then on.
func TestDirectUnmounted(t *testing.T) {
	c, all := directNodes(t, 2)
	f, a := all[0].Create("w", 2*page)
	all[0].SetXattr("w", "user.dsm.interval", "0")
	_, b := all[1].Attach("w", 2*page)
	f.Close()
	a.Store(page, []byte("taken away"))
	if res := c.Node(1).CLI("umount", "--force", c.Node(1).Mount); res.Err != nil {
		t.Fatalf("umount --force: %v: %s", res.Err, res.Stderr)
	}
	b.Await(page, []byte("taken away"), limit)
	a.Store(0, []byte("own"))
	if got := string(a.Load(0, 3)) + string(a.Load(page, 5)); got != "owntaken" {
		t.Errorf("memory without a mount: %q", got)
	}
	if got := b.Load(0, 3); !bytes.Equal(got, make([]byte, 3)) {
		t.Errorf("%q came from a node that has left", got)
	}
}

// TestDirectChurn opens, maps, closes and unmaps a file from many programs of two nodes at
// once, as fast as they can: no open fails, and no store is lost on the way.
func TestDirectChurn(t *testing.T) {
	c, all := directNodes(t, 2)
	const programs, rounds = 3, 150
	all[0].Open("w", "rw,creat").Truncate(2 * page)
	all[0].Close()
	s := seed(t)
	var wg sync.WaitGroup
	for i := range 2 * programs {
		cl, rng, flags := c.Node(1+i%2).Client(), rand.New(rand.NewPCG(s, uint64(i))), []string{"rw", "r"}
		wg.Go(func() {
			for r := range rounds {
				ask := func(format string, args ...any) string {
					words, err := cl.Do(format, args...)
					if err != nil {
						t.Errorf("program %d, round %d: %s: %v", i, r, format, err)
					}
					return strings.Join(words, " ")
				}
				fd := ask("open %s %s", cl.Path("w"), flags[0])
				other := ask("open %s %s", cl.Path("w"), flags[rng.IntN(2)])
				m := ask("mmap %s 0 %d rw", fd, 2*page)
				last := rng.IntN(2) == 0
				if !last {
					ask("close %s", fd)
				}
				ask("store %s %d %02x%02x", m, 8*i, (r+1)%256, (r+1)/256)
				if !last || rng.IntN(2) == 0 {
					ask("munmap %s", m)
					m = ""
				}
				if last {
					ask("close %s", fd)
				}
				ask("close %s", other)
				if m != "" {
					ask("munmap %s", m)
				}
				if t.Failed() {
					return
				}
			}
		})
	}
	wg.Wait()
	want := make([]byte, 16*programs)
	for i := range 2 * programs {
		want[8*i], want[8*i+1] = rounds%256, rounds/256
	}
	for i := range 2 {
		cl := c.Node(1 + i).Client()
		_, m := cl.Attach("w", 2*page)
		m.Await(0, want, limit)
	}
}

// TestDirectFork: a child has the mapping of a parent that closed the file and has
// ended. What it stores is published, and what comes from elsewhere it sees.
func TestDirectFork(t *testing.T) {
	c, all := directNodes(t, 2)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	f, _ := all[0].Create("w", 2*page)
	all[0].SetXattr("w", "user.dsm.interval", "10ms")
	f.Close()
	all[0].Close()
	_, b := all[1].Attach("w", 2*page)
	res := c.Node(1).Run(limit, "python3", "-c", `
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open(sys.argv[1], os.O_RDWR)
w = (ctypes.c_char * 8192).from_address(libc.mmap(None, 8192, 3, 1, fd, 0)) # as torch.from_file: no descriptor is left
os.close(fd)
w[:6] = b"parent"
if os.fork() == 0:
    os.setsid()
    for s in 0, 1, 2:
        os.close(s)
    end = time.time() + 20
    while w[4096] == b"\0" and time.time() < end:
        time.sleep(0.01)
    w[100:105] = b"child"
    os._exit(0)
os._exit(0)
`, all[0].Path("w"))
	if res.Err != nil {
		t.Fatalf("%v: %s", res.Err, res.Stderr)
	}
	b.Await(0, []byte("parent"), limit)
	look := c.Node(1).Client()
	if !harness.Eventually(limit, func() bool { return figure(look, "w", "writable_handles") == "0" }) {
		t.Fatalf("%s handles are open", figure(look, "w", "writable_handles"))
	}
	b.Store(page, []byte{1})
	b.Await(100, []byte("child"), limit)
	if !harness.Eventually(limit, func() bool { return figure(look, "w", "handles") == "0" }) {
		t.Errorf("%s handles are left when the child has ended", figure(look, "w", "handles"))
	}
}

// TestDirectUnlinked: an unlinked file lives as long as it is mapped, and its memory
// is given back then.
func TestDirectUnlinked(t *testing.T) {
	c, all := directNodes(t, 2)
	const size = 16 * page
	f, a := all[0].Create("w", size)
	g, b := all[1].Attach("w", size)
	f.Close()
	g.Close()
	all[0].Must("rename %s %s", all[0].Path("w"), all[0].Path("v"))
	all[0].Must("unlink %s", all[0].Path("v"))
	a.Store(5*page, []byte("no name"))
	b.Await(5*page, []byte("no name"), limit)
	reserved := func() string { return strings.Join(all[0].Must("statfs %s", all[0].Path("")), " ") }
	full := reserved()
	a.Unmap()
	b.Unmap()
	if !harness.Eventually(limit, func() bool { return reserved() != full }) {
		t.Error("the memory of a file that is gone is not given back")
	}
	memory := func() int {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.Node(1).PID()))
		n := 0
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.Contains(to, "memfd:dsmfs") {
				n++
			}
		}
		return n
	}
	if !harness.Eventually(limit, func() bool { return memory() == 0 }) {
		t.Errorf("the daemon has %d descriptors of memory", memory())
	}
}
