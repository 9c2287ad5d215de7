package integration

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The tests of this file are about programs that use the descriptor of an area's memory for more than to map it.

// eachMemory runs a test with an area of each kind of memory, which it makes as /w.
func eachMemory(t *testing.T, size int64, f func(t *testing.T, c *harness.Cluster)) {
	for name, settings := range map[string]string{"plain": "", "own": "merge sum\ndtype i32\n", "demand": "residency demand\n"} {
		t.Run(name, func(t *testing.T) {
			c := nodes(t, 2)
			if _, err := harness.CreateAt(c.Node(1).AttachSocket(), "/w\n"+settings, size, 0o644, true); err != nil {
				t.Fatal(err)
			}
			f(t, c)
		})
	}
}

// memfd attaches /w once more, and returns the descriptor.
func memfd(t *testing.T, a *harness.Attachment) int {
	t.Helper()
	fd, err := a.Memfd("/w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestAttachedProgramShrinksTheMemory: a program makes the memory of its area shorter, seals it and makes it longer, again and again, while it and a
// program of another node store and publish. Nothing is lost, and its daemon lives.
func TestAttachedProgramShrinksTheMemory(t *testing.T) {
	const size, rounds = 64*page + 100, 200
	eachMemory(t, size, func(t *testing.T, c *harness.Cluster) {
		n := c.Node(1)
		a, far := n.Attach("/w", true), c.Node(2).Attach("/w", true)
		fd := memfd(t, a)
		stop, done := make(chan struct{}), make(chan error, 1)
		go func() {
			for i := int64(0); ; i++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				_, sealed := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE)
				shrunk, longer := unix.Ftruncate(fd, i%size), unix.Ftruncate(fd, size+i%100*page)
				if sealed != unix.EPERM || shrunk != unix.EPERM || longer != nil && longer != unix.EPERM {
					done <- errors.Join(errors.New("the memory is sealed, shorter, or not made longer"), sealed, shrunk, longer)
					return
				}
			}
		}()
		want := make([]byte, size)
		for i := range rounds {
			at, mine := 4*(i%16), page*(i%64)+64
			a.Mem[mine]++
			want[mine]++
			ok(t, "sync")(a.Call(harness.SyncOp))
			far.Mem[at]++
			want[at]++
			ok(t, "sync elsewhere")(far.Call(harness.SyncOp))
		}
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
		for i, x := range []*harness.Attachment{a, far} {
			ok(t, "sync")(x.Call(harness.SyncOp))
			if !bytes.Equal(x.Mem[:size], want) {
				t.Errorf("node %d: other bytes are there", i+1)
			}
		}
		if !n.Running() {
			t.Error("the daemon has died")
		}
	})
}

// TestAttachedProgramPunchesTheMemory: what a program punches out of its memory is missing for its node alone, and the updates of others
// come to it as before.
func TestAttachedProgramPunchesTheMemory(t *testing.T) {
	const size = 64 * page
	eachMemory(t, size, func(t *testing.T, c *harness.Cluster) {
		n := c.Node(1)
		a, far := n.Attach("/w", true), c.Node(2).Attach("/w", true)
		fd := memfd(t, a)
		for p := range 64 {
			a.Mem[p*page] = 5
		}
		for _, x := range []*harness.Attachment{a, far} {
			ok(t, "sync")(x.Call(harness.SyncOp))
		}
		if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8*page, 16*page); err != nil {
			t.Fatal(err)
		}
		a.Mem[page+4] = 6
		far.Mem[10*page+4] = 7
		for _, x := range []*harness.Attachment{a, far, a, far} {
			ok(t, "sync")(x.Call(harness.SyncOp))
		}
		for i, x := range []*harness.Attachment{a, far} {
			if x.Mem[page] != 5 || x.Mem[page+4] != 6 || x.Mem[10*page+4] != 7 || x.Mem[30*page] != 5 {
				t.Errorf("node %d: %d, %d, %d, %d", i+1, x.Mem[page], x.Mem[page+4], x.Mem[10*page+4], x.Mem[30*page])
			}
		}
		if !n.Running() {
			t.Error("the daemon has died")
		}
	})
}

// TestShrunkWhileAttached: a program that has mapped an area has it mapped still past the end that somebody sets. What it stores there is
// nowhere when the area grows again, and takes no memory after a sync. In an area on demand it is SIGBUS.
func TestShrunkWhileAttached(t *testing.T) {
	const size, small = 64 * page, 3*page + 100
	eachMemory(t, size, func(t *testing.T, c *harness.Cluster) {
		n := c.Node(1)
		a, far := n.Attach("/w", true), c.Node(2).Attach("/w", true)
		fd := memfd(t, a)
		for p := range 64 {
			a.Mem[p*page+8] = 5
		}
		for _, x := range []*harness.Attachment{a, far} {
			ok(t, "sync")(x.Call(harness.SyncOp))
		}
		for range 2 {
			ok(t, "resize")(far.Call(harness.ResizeOp, small))
			all := clients(c)
			for i, cl := range all {
				if st := cl.Stat("w"); st.Size != small {
					t.Fatalf("node %d: size %d", i+1, st.Size)
				}
			}
			if a.Demand {
				if !harness.Eventually(limit, func() bool { _, fault := touch(a.Mem, 10*page); return fault }) { // it is freed in the background
					t.Error("memory past the end is there")
				}
			} else {
				for p := 3; p < 64; p++ {
					if a.Mem[p*page+8] != 0 && p > 3 {
						t.Errorf("page %d has its bytes still", p)
					}
					a.Mem[p*page+2000] = 9
				}
			}
			a.Mem[16]++
			ok(t, "sync")(a.Call(harness.SyncOp))
			var st unix.Stat_t
			if !harness.Eventually(limit, func() bool { return unix.Fstat(fd, &st) != nil || st.Blocks*512 <= 4*page }) {
				t.Errorf("%d bytes of memory are left", st.Blocks*512)
			}
			if !a.Demand {
				a.Mem[20*page] = 9 // not found by a sync
			}
			ok(t, "resize")(far.Call(harness.ResizeOp, size))
			for _, cl := range all {
				if st := cl.Stat("w"); st.Size != size {
					t.Fatalf("size %d", st.Size)
				}
			}
			if a.Demand {
				a.GiveUp(10*page, page)
			}
			for i, x := range []*harness.Attachment{a, far} {
				ok(t, "sync")(x.Call(harness.SyncOp))
				if b := x.Mem[small:]; !bytes.Equal(b, make([]byte, len(b))) || x.Mem[page+8] != 5 {
					t.Errorf("node %d: other bytes are there", i+1)
				}
			}
			a.Mem[50*page] = 3
			ok(t, "sync")(a.Call(harness.SyncOp))
			ok(t, "sync")(far.Call(harness.SyncOp))
			if far.Mem[50*page] != 3 {
				t.Error("a store after growth does not come")
			}
		}
	})
}

// TestAttachedProgramIsStuckInAWrite: a program writes to the memory of its area from a page that does not come, and the kernel has what changes that file wait
// for it. The area changes its size, names are made, and others publish, all the same; only for growth after a shrink the area of that node waits for the program.
func TestAttachedProgramIsStuckInAWrite(t *testing.T) {
	const size, small = 64*page + 100, 3*page + 100
	eachMemory(t, size, func(t *testing.T, c *harness.Cluster) {
		n := c.Node(1)
		a, far := n.Attach("/w", true), c.Node(2).Attach("/w", true)
		fd := memfd(t, a)
		all := clients(c)
		for p := range 64 {
			a.Mem[p*page+8] = 5
		}
		sync := func(what string) {
			t.Helper()
			for _, x := range []*harness.Attachment{a, far, a} {
				ok(t, what)(x.Call(harness.SyncOp))
			}
		}
		sync("sync")
		let := harness.StuckWrite(t, fd, 2*page)
		resize := func(size int64) {
			t.Helper()
			ok(t, "resize")(far.Call(harness.ResizeOp, uint64(size)))
			for i, cl := range all {
				if st := cl.Stat("w"); st.Size != size {
					t.Errorf("node %d: size %d, want %d", i+1, st.Size, size)
				}
			}
			name := fmt.Sprintf("other%d", size)
			f, m := all[0].Create(name, page)
			m.Store(0, []byte("seen"))
			f.Sync()
			if got := string(all[1].Open(name, "r").Read(0, 4)); got != "seen" {
				t.Errorf("%s has %q at another node", name, got)
			}
			m.Unmap()
			f.Close()
		}
		resize(80 * page)
		far.Mem[16]++
		a.Mem[20]++
		sync("sync of what is longer")
		resize(small)
		a.Mem[24]++
		sync("sync of what is shorter")
		if a.Mem[16] != 1 || far.Mem[20] != 1 || far.Mem[24] != 1 {
			t.Errorf("stores of others: %d, %d, %d", a.Mem[16], far.Mem[20], far.Mem[24])
		}
		if !a.Demand && (a.Mem[small] != 0 || a.Mem[10*page+8] != 0) {
			t.Errorf("past the end are %d, %d", a.Mem[small], a.Mem[10*page+8])
		}
		resize(size)
		let()
		sync("sync when the program goes on")
		if a.Demand {
			a.GiveUp(4*page, 61*page)
		}
		far.Mem[50*page] = 3
		sync("sync when the program goes on")
		sync("sync when the program goes on")
		for i, x := range []*harness.Attachment{a, far} {
			if x.Mem[page+8] != 5 || x.Mem[10*page+8] != 0 || x.Mem[50*page] != 3 {
				t.Errorf("node %d: %d, %d, %d", i+1, x.Mem[page+8], x.Mem[10*page+8], x.Mem[50*page])
			}
		}
	})
}

// TestUnmountWhileAProgramIsStuckInAWrite: a program writes to the memory of its area from a page that does not come, when the area has just become shorter. The
// mount goes, and the daemon ends, before the program does.
func TestUnmountWhileAProgramIsStuckInAWrite(t *testing.T) {
	eachMemory(t, 64*page, func(t *testing.T, c *harness.Cluster) {
		n := c.Node(1)
		a, far := n.Attach("/w", true), c.Node(2).Attach("/w", true)
		for p := range 64 {
			a.Mem[p*page+8] = 5
		}
		for _, x := range []*harness.Attachment{a, far} {
			ok(t, "sync")(x.Call(harness.SyncOp))
		}
		let := harness.StuckWrite(t, memfd(t, a), 2*page)
		ok(t, "resize")(far.Call(harness.ResizeOp, page))
		if st := clients(c)[0].Stat("w"); st.Size != page {
			t.Errorf("size %d", st.Size)
		}
		n.Stop()
		if n.Running() {
			t.Error("the daemon still runs")
		}
		let()
	})
}

// TestDirectOrAttached: a file is direct, or programs of the node have attached it for writing: the second one has the page cache, or the
// mount. When the first has ended it is the other way round.
func TestDirectOrAttached(t *testing.T) {
	c, all := directNodes(t, 1)
	n, cl := c.Node(1), all[0]
	f, m := cl.Create("w", 4*page)
	access(t, cl, "w", "direct")
	if _, err := n.TryAttach("/w", true); err == nil || !strings.Contains(err.Error(), "access=direct") || !errors.Is(err, unix.ENODEV) {
		t.Errorf("attached for writing: %v", err)
	}
	r := n.Attach("/w", false)
	m.Store(page, []byte("direct"))
	if got := string(r.Mem[page:][:6]); got != "direct" {
		t.Errorf("the reader sees %q", got)
	}
	r.Close()
	m.Unmap()
	f.Close()
	var a *harness.Attachment
	if !harness.Eventually(limit, func() bool {
		var err error
		a, err = n.TryAttach("/w", true)
		return err == nil
	}) {
		t.Fatal("a file that nobody has open any more cannot be attached")
	}
	defer a.Close()
	copy(a.Mem[2*page:], "attached")
	f = cl.Open("w", "rw")
	if got := figure(cl, "w", "access"); !strings.HasPrefix(got, "cached") {
		t.Errorf("access %q of a file that is attached for writing", got)
	}
	f.Truncate(2 * page)
	if got := f.Read(0, 8*page); len(got) != 2*page || string(got[page:][:6]) != "direct" {
		t.Errorf("%d bytes of a file that shrank", len(got))
	}
	f.Close()
	a.Close()
	if !harness.Eventually(limit, func() bool { return figure(cl, "w", "handles") == "0" }) {
		t.Fatalf("%s handles are left", figure(cl, "w", "handles"))
	}
	f = cl.Open("w", "rw") // before the node lets go of the memory
	access(t, cl, "w", "direct")
	if got := f.Read(0, 8*page); len(got) != 2*page || string(got[page:][:6]) != "direct" {
		t.Errorf("%d bytes of a file that is direct again", len(got))
	}
	m = f.Map(2 * page)
	f.Truncate(page)
	if err := m.LoadFails(page); err != harness.Failure("SIGBUS") {
		t.Errorf("memory past the end of a direct file: %v, want SIGBUS", err)
	}
}
