package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

const mib = 1 << 20

// onDemand makes a file of residency demand at a node.
func onDemand(t *testing.T, n *harness.Node, name string, size int, settings ...string) {
	t.Helper()
	sh(t, n, ": > %s; echo demand > .dsm/areas/%s/residency", name, name)
	for i := 0; i < len(settings); i += 2 {
		sh(t, n, "echo %s > .dsm/areas/%s/%s", settings[i+1], name, settings[i])
	}
	sh(t, n, "truncate -s %d %s", size, name)
}

// sh runs a script in the mount of a node and returns what it prints.
func sh(t *testing.T, n *harness.Node, script string, args ...any) string {
	t.Helper()
	res := n.Run(2*time.Minute, "sh", "-ec", fmt.Sprintf("cd "+n.Mount+"; "+script, args...))
	if res.Err != nil {
		t.Fatalf("%s: %s: %v: %s", n.Name, script, res.Err, res.Stderr)
	}
	return res.Stdout
}

func words64(b []byte) []uint64 { return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8) }

// number fills an area with the number of each word, xored.
func number(t *testing.T, a *harness.Attachment, xor uint64) {
	t.Helper()
	for i := range words64(a.Mem) {
		words64(a.Mem)[i] = uint64(i) ^ xor
	}
	if _, err := a.Call(harness.PublishOp); err != nil {
		t.Fatal(err)
	}
}

// An area four times as large as the memory of a node is read from end to end and at random, and
// stored into, by programs that attach and by one that maps the mount; never is there more in memory
// than --memory says.
func TestDemandKeepsTheBudget(t *testing.T) {
	const budget, size = 32 * mib, 128 * mib
	c := harness.New(t, harness.Options{Nodes: 3, Memory: "512M", Memories: []string{"32M"}})
	small, large := c.Node(1), c.Node(2)
	onDemand(t, large, "w", size, "interval", "20ms")
	w := large.Attach("/w", true)
	number(t, w, 0)

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	most := int64(0)
	look := func() {
		if m := small.Memory().Memfds; m > most {
			most = m
		}
	}
	a := small.Attach("/w", true)
	if !a.Demand {
		t.Fatal("the area is attached as if all of it were there")
	}
	for i, v := range words64(a.Mem) {
		if v != uint64(i) {
			t.Fatalf("word %d is %d", i, v)
		}
		if i%(mib/2) == 0 {
			look()
		}
	}
	stored := map[int]uint64{}
	for i := range 20_000 {
		at := rng.IntN(size / 8)
		want, ok := stored[at]
		if !ok {
			want = uint64(at)
		}
		if v := words64(a.Mem)[at]; v != want {
			t.Fatalf("word %d is %d, want %d", at, v, want)
		}
		if i%4 == 0 {
			stored[at] = rng.Uint64()
			words64(a.Mem)[at] = stored[at]
		}
		if i%500 == 0 {
			look()
		}
	}
	if _, err := a.Call(harness.PublishOp); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Call(harness.AcquireOp); err != nil {
		t.Fatal(err)
	}
	for at, want := range stored {
		if v := words64(w.Mem)[at]; v != want {
			t.Fatalf("word %d is %d at the other node, want %d", at, v, want)
		}
	}
	look()
	// Through the mount: by the kernel's page cache.
	sum := func(n *harness.Node) string {
		return sh(t, n, "md5sum w")
	}
	if got, want := sum(small), sum(large); got != want {
		t.Errorf("md5sum %s, want %s", got, want)
	}
	look()
	t.Logf("most memory of areas: %.1f MiB of %d", float64(most)/mib, budget/mib)
	if most > budget {
		t.Errorf("areas took %d bytes of %d", most, budget)
	}
}

// What does not fit is written through the mount: write(2) waits for room, and all arrives.
func TestDemandWritesMoreThanFits(t *testing.T) {
	c := harness.New(t, harness.Options{Single: true, Nodes: 2, Memory: "512M", Memories: []string{"24M"}})
	small, large := c.Node(1), c.Node(2)
	onDemand(t, small, "w", 0)
	sh(t, small, "seq 1 9000000 > w")
	want := sh(t, small, "seq 1 9000000 | md5sum")
	for _, n := range []*harness.Node{large, small} {
		if got := sh(t, n, "md5sum < w"); got != want {
			t.Errorf("%s has %s, want %s", n.Name, got, want)
		}
	}
	if m := small.Memory().Memfds; m > 24*mib {
		t.Errorf("areas take %d bytes", m)
	}
}

// Programs of two small nodes add to the same few elements of many pages, which come and go meanwhile:
// no addition is lost.
func TestDemandSumIsExact(t *testing.T) {
	const size, pages = 64 * mib, 64 * mib / 4096
	c := harness.New(t, harness.Options{Single: true, Nodes: 3, Memory: "512M", Memories: []string{"16M", "16M"}})
	onDemand(t, c.Node(3), "w", size, "merge", "sum", "dtype", "i64", "interval", "0")
	const rounds, adds = 4, 3000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	want := make([]int64, pages)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 2 {
		a := c.Node(i+1).Attach("/w", true)
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			local := make([]int64, pages)
			for range rounds {
				for range adds {
					p := rng.IntN(pages)
					words64(a.Mem)[p*512+i*7]++ // each its own: nothing is loaded that another changes
					words64(a.Mem)[p*512+100+i]++
					local[p]++
				}
				if _, err := a.Call(harness.SyncOp); err != nil {
					t.Errorf("sync: %v", err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for p, n := range local {
				want[p] += n
			}
		})
	}
	wg.Wait()
	b := c.Node(3).Attach("/w", false)
	if _, err := b.Call(harness.AcquireOp); err != nil {
		t.Fatal(err)
	}
	for p, n := range want {
		w := words64(b.Mem)[p*512:][:512]
		if got := int64(w[0] + w[7]); got != n {
			t.Fatalf("page %d has %d, want %d", p, got, n)
		}
		if got := int64(w[100] + w[101]); got != n {
			t.Fatalf("page %d has %d beside it, want %d", p, got, n)
		}
	}
}

// touch loads a word, and reports whether that was SIGBUS.
func touch(b []byte, at int) (v uint64, fault bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			fault = true
		}
	}()
	return words64(b)[at/8], false
}

// A page whose home does not answer is SIGBUS after --fault-timeout; when the home is back a
// program that gives the page up gets it.
func TestDemandFaultTimeout(t *testing.T) {
	const size = 16 * mib
	c := harness.New(t, harness.Options{Single: true, Network: harness.Namespaces, Memory: "512M", Memories: []string{"8M"}, Flags: lasting})
	impatient(c, 2, 1, "1s")
	onDemand(t, c.Node(2), "w", size)
	number(t, c.Node(2).Attach("/w", true), 0)
	a := c.Node(1).Attach("/w", false)
	comes := func(at int) {
		t.Helper()
		for deadline := time.Now().Add(60 * time.Second); ; {
			v, fault := touch(a.Mem, at)
			switch {
			case !fault && v != uint64(at/8):
				t.Fatalf("word %d is %d", at/8, v)
			case !fault:
				return
			case time.Now().After(deadline):
				t.Fatalf("the page at %d does not come", at)
			}
			a.GiveUp(at&^4095, 4096)
		}
	}
	comes(0)
	c.Partition([]*harness.Node{c.Node(1)}, []*harness.Node{c.Node(2)})
	at := 5*mib + 4096*3
	_, fault := touch(a.Mem, at)
	if !fault {
		t.Error("a page of which the home does not answer was read")
	}
	c.Heal()
	a.GiveUp(at&^4095, 4096)
	comes(at)
}

// A program that may only read cannot attach an area on demand, and is told what to do; one that
// may write attaches for reading too.
func TestDemandReadOnlyProgram(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("takes root, to be somebody else")
	}
	c := harness.New(t, harness.Options{Nodes: 1})
	n := c.Node(1)
	onDemand(t, n, "w", mib)
	sh(t, n, "chmod 644 w")
	socket := n.AttachSocket()
	for dir := filepath.Dir(socket); dir != filepath.Dir(dir) && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	attach := func() error {
		errs := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			const nobody = 65534
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
				errs <- e
				return
			}
			a, err := harness.AttachAt(socket, "/w", false)
			if err == nil {
				a.Close()
			}
			errs <- err
		}()
		return <-errs
	}
	if err := attach(); !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "through the mount") {
		t.Errorf("a program that may only read: %v", err)
	}
	sh(t, n, "chmod 666 w")
	if err := attach(); err != nil {
		t.Errorf("a program that may write attaches for reading: %v", err)
	}
}

// A daemon that is killed takes no page with it, nor makes zeroes of those that are not here:
// they are SIGBUS, also for a thread that waits for one at that moment.
func TestDemandDaemonKilled(t *testing.T) {
	const size = 32 * mib
	c := harness.New(t, harness.Options{Single: true, Nodes: 2, Network: harness.Namespaces, Memory: "512M", Memories: []string{"8M"}, Flags: lasting})
	onDemand(t, c.Node(2), "w", size)
	number(t, c.Node(2).Attach("/w", true), 0)
	a := c.Node(1).Attach("/w", false)
	if v, fault := touch(a.Mem, 8000); fault || v != 1000 {
		t.Fatalf("word 1000 is %d, fault %v", v, fault)
	}
	c.Partition([]*harness.Node{c.Node(1)}, []*harness.Node{c.Node(2)})
	waiting := make(chan bool)
	go func() {
		_, fault := touch(a.Mem, 20*mib)
		waiting <- fault
	}()
	for { // until the thread waits
		text := sh(t, c.Node(1), "cat .dsm/areas/w/stats")
		if !strings.Contains(text, "pages_asked 0\n") {
			break
		}
	}
	c.Node(1).Kill()
	if fault := <-waiting; !fault {
		t.Error("a thread that waited for a page when the daemon was killed read something")
	}
	if v, fault := touch(a.Mem, 8000); fault || v != 1000 {
		t.Errorf("a page that was here: %d, fault %v", v, fault)
	}
	for at := 4096; at < size; at += 3 * mib {
		if v, fault := touch(a.Mem, at); !fault && v != uint64(at/8) {
			t.Errorf("word %d is %d after the daemon was killed", at/8, v)
		}
	}
}

// A daemon that is told to end does so while programs fault all the time: what is not here is
// SIGBUS for them from then on, and never zero.
func TestDemandDaemonStops(t *testing.T) {
	const size, threads = 48 * mib, 8
	c := harness.New(t, harness.Options{Single: true, Nodes: 2, Memory: "512M", Memories: []string{"16M"}})
	onDemand(t, c.Node(2), "w", size)
	number(t, c.Node(2).Attach("/w", true), 1<<60)
	var wg sync.WaitGroup
	for i := range threads {
		a := c.Node(1).Attach("/w", i%2 == 0)
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			faults := 0
			for faults < 20_000 { // half of them or so after the daemon has gone
				at := rng.IntN(size/8) * 8
				switch v, fault := touch(a.Mem, at); {
				case fault:
					faults++
				case v != uint64(at/8)^1<<60:
					t.Errorf("word %d is %#x", at/8, v)
					return
				}
			}
		})
	}
	c.Node(1).Stop()
	wg.Wait()
}

// However a program ends that has an area on demand attached, what it stored is published, and the area is
// let go of, also where no scan looks at what it had mapped.
func TestDemandProgramEnds(t *testing.T) {
	const pages = 50
	c := harness.New(t, harness.Options{Nodes: 2, Memory: "512M", Memories: []string{"16M"}})
	n := c.Node(1)
	for _, how := range writerEnds {
		onDemand(t, n, how, pages*4096, "interval", "0")
		cmd, kill := startWriter(t, n, how)
		switch how {
		case "killed", "fork":
			kill()
		case "munmap":
			sh(t, n, "echo 1 > .dsm/areas/%s/publish", how)
			kill()
		}
		if !harness.Eventually(limit, func() bool {
			return strings.Contains(sh(t, n, "cat .dsm/areas/%s/stats", how), "\nattached_writers 0\n")
		}) {
			t.Errorf("%s: the area is still attached: %s", how, sh(t, n, "cat .dsm/areas/%s/stats", how))
		}
		if how == "exec" {
			kill()
		}
		_ = cmd.Wait() // it was killed, or has ended
		b := c.Node(2).Attach("/"+how, false)
		if _, err := b.Call(harness.AcquireOp); err != nil {
			t.Fatal(err)
		}
		for p := range pages - 1 {
			w := words64(b.Mem)[p*512:]
			if w[0] != uint64(p+1) || how == "fork" && w[1] != uint64(100+p) {
				t.Errorf("%s: page %d has %d and %d", how, p, w[0], w[1])
			}
		}
	}
}

// What a program stores into a mapping that it goes on using after it detached is not lost to
// eviction, nor is zero read.
func TestDemandAfterDetach(t *testing.T) {
	const size = 64 * mib
	c := harness.New(t, harness.Options{Single: true, Nodes: 2, Memory: "512M", Memories: []string{"16M"}})
	onDemand(t, c.Node(2), "w", size)
	number(t, c.Node(2).Attach("/w", true), 0)
	a := c.Node(1).Attach("/w", true)
	if v := words64(a.Mem)[1000]; v != 1000 {
		t.Fatalf("word 1000 is %d", v)
	}
	if _, err := a.Call(harness.DetachOp); err != nil {
		t.Fatal(err)
	}
	for i, v := range words64(a.Mem) {
		if v != uint64(i) {
			t.Fatalf("after DETACH word %d is %d", i, v)
		}
	}
}

// The stats of an area on demand say how many pages are here.
func TestDemandStats(t *testing.T) {
	c := harness.New(t, harness.Options{Nodes: 2})
	onDemand(t, c.Node(1), "w", 8*mib)
	a := c.Node(1).Attach("/w", true)
	words64(a.Mem)[0] = 1
	text := sh(t, c.Node(1), "cat .dsm/areas/w/stats")
	if !strings.Contains(text, "residency demand\n") || !strings.Contains(text, "pages_here 1\n") {
		t.Errorf("stats:\n%s", text)
	}
}
