package pages

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Here the other side is what it is in earnest: another process that maps the
// memfd of the working copy. It is this test binary, run again with
// attachedEnv set to what it is to do, and the memfd as descriptor 3.
const attachedEnv = "DSMFS_TEST_ATTACHED"

// attachedStores is how many stores the program makes: a race detector makes them slow.
func attachedStores() int {
	if testing.Short() {
		return 200_000
	}
	return 2_000_000
}

// attachedRole is a program that stores into a page, and what the stores of its seed are.
type attachedRole struct {
	name  string
	rule  dsm.MergeRule
	dt    dsm.DType
	head  int64
	adds  bool
	bytes int // of an element that is stored to plainly, without an atomic operation
}

var attachedRoles = []attachedRole{
	{"add-i32", dsm.MergeSum, dsm.DTypeI32, 0, true, 0},
	{"add-i64", dsm.MergeSum, dsm.DTypeI64, 0, true, 0},
	{"add-f32", dsm.MergeSum, dsm.DTypeF32, 0, true, 0},
	{"add-f32-header", dsm.MergeSum, dsm.DTypeF32, 4 * 7, true, 0},
	{"bytes", dsm.MergeLast, dsm.DTypeAuto, 0, false, 1},
	{"bytes-sum", dsm.MergeSum, dsm.DTypeU8, 3, false, 1},
	{"halves", dsm.MergeLast, dsm.DTypeU16, 2, false, 2},
	{"f16-sum", dsm.MergeSum, dsm.DTypeF16, 2, false, 2},
}

// In the roles without atomic operations the daemon overwrites these bytes of the page.
const overwrittenFrom, overwrittenTo = 262, 501

// odd draws an odd element that the program owns.
func (r attachedRole) odd(rng *rand.Rand) int {
	if rng.IntN(4) == 0 { // in a word that is overwritten in part
		return []int{overwrittenFrom - 3, overwrittenTo}[rng.IntN(2)]/r.bytes | 1
	}
	for {
		e := rng.IntN(dsm.PageSize/r.bytes) | 1
		if at := e * r.bytes; at+r.bytes <= overwrittenFrom || at >= overwrittenTo {
			return e
		}
	}
}

// element draws the element of the next add.
func (r attachedRole) element(rng *rand.Rand) int {
	first := int(r.head) / r.dt.Size()
	if rng.IntN(2) == 0 {
		return first + rng.IntN(4) // where the daemon is most of the time
	}
	return first + rng.IntN(dsm.PageSize/r.dt.Size()-first)
}

// TestAttachedProgram is the other process.
func TestAttachedProgram(t *testing.T) {
	args := strings.Split(os.Getenv(attachedEnv), "/")
	if len(args) != 3 {
		t.Skip("runs in a process of its own, started by TestMergeSharedWithProgram")
	}
	stores, err := strconv.Atoi(args[1])
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(3, 0, dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	fmt.Println("ready")
	for _, r := range attachedRoles {
		if r.name != args[0] {
			continue
		}
		if r.adds {
			for range stores {
				addOne(r.dt, mem[r.element(rng)*r.dt.Size():])
			}
			continue
		}
		mine := make([]uint16, dsm.PageSize/r.bytes)
		for i := range stores {
			e := r.odd(rng)
			v := uint16(i)
			if r.bytes == 1 {
				v = uint16(uint8(i))
			}
			if got := r.load(mem, e); got != mine[e] {
				t.Fatalf("%s: store %d: element %d is %#x, and %#x was stored", r.name, i, e, got, mine[e])
			}
			r.store(mem, e, v)
			mine[e] = v
		}
	}
}

func (r attachedRole) load(mem []byte, e int) uint16 {
	if r.bytes == 1 {
		return uint16(mem[e])
	}
	return view[uint16](mem)[e]
}

func (r attachedRole) store(mem []byte, e int, v uint16) {
	if r.bytes == 1 {
		mem[e] = byte(v)
		return
	}
	view[uint16](mem)[e] = v
}

// start starts the program on the working copy of a. It returns when it is about to
// store; ended becomes true when it has, and wait says how that went.
func (r attachedRole) start(t *testing.T, a *Area, seed uint64) (ended *atomic.Bool, wait func()) {
	t.Helper()
	fd, err := unix.Dup(a.working.fd)
	if err != nil {
		t.Fatal(err)
	}
	memfd := os.NewFile(uintptr(fd), "working copy")
	defer memfd.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAttachedProgram$", "-test.count=1")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s/%d/%d", attachedEnv, r.name, attachedStores(), seed))
	cmd.ExtraFiles = []*os.File{memfd}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		rest, _ := io.ReadAll(lines)
		t.Fatalf("the program says %q (%v) %s: %v", line, err, rest, cmd.Wait())
	}
	ended = new(atomic.Bool)
	result := make(chan string, 1)
	go func() {
		rest, _ := io.ReadAll(lines)
		err := cmd.Wait()
		ended.Store(true)
		if err != nil {
			result <- fmt.Sprintf("%v: %s", err, rest)
		}
		close(result)
	}()
	return ended, func() {
		t.Helper()
		if failure := <-result; failure != "" {
			t.Error(failure)
		}
	}
}

// TestMergeSharedWithProgram merges into a page, publishes from it and overwrites parts
// of it while another process stores there.
func TestMergeSharedWithProgram(t *testing.T) {
	rng := newRand(t)
	for _, r := range attachedRoles {
		t.Run(r.name, func(t *testing.T) {
			a := newTestArea(t, dsm.PageSize)
			seed := rng.Uint64()
			ended, wait := r.start(t, a, seed)
			defer wait()
			if r.adds {
				r.mergeAdds(t, rng, a, seed, ended)
			} else {
				r.mergeStores(t, rng, a, ended)
			}
		})
	}
}

// mergeAdds checks that the sum of what the program and the others added is there.
func (r attachedRole) mergeAdds(t *testing.T, rng *rand.Rand, a *Area, seed uint64, ended *atomic.Bool) {
	k := mustKernel(t, r.rule, r.dt, r.head)
	working := a.Working(0)
	home := alignedPage(make([]byte, dsm.PageSize)) // what the others have, and were sent
	base := make([]byte, dsm.PageSize)
	snap := make([]byte, dsm.PageSize)
	totals := make([]int, dsm.PageSize/r.dt.Size())
	header := 0
	merges, published := 0, 0
	for !ended.Load() || merges < 100 {
		if merges++; merges%4 == 0 {
			var d Delta
			if changed, inexact := k.AppendShared(&d, 0, base, working, snap); inexact {
				t.Fatal("whole numbers are inexact")
			} else if changed {
				published++
				k.Overlay(&d, 0, home)
				k.Overlay(&d, 0, base)
				wantPage(t, "base with the delta", base, snap)
			}
		}
		randomIncrements(rng, r.dt, home, int(r.head)/r.dt.Size(), totals)
		if r.head > 0 {
			header++
			home[header%int(r.head)] = byte(header)
		}
		k.MergeShared(0, base, working, home)
		copy(base, home)
	}
	mine := rand.New(rand.NewPCG(seed, 1))
	for range attachedStores() {
		totals[r.element(mine)]++
	}
	for e := int(r.head) / r.dt.Size(); e < len(totals); e++ {
		if got := elementAt(r.dt, working[e*r.dt.Size():]); got != totals[e] {
			t.Errorf("element %d is %d, want %d", e, got, totals[e])
		}
	}
	if !bytes.Equal(working[:r.head], home[:r.head]) {
		t.Errorf("the header is %v, want %v", working[:r.head], home[:r.head])
	}
	t.Logf("%d merges, %d publications", merges, published)
}

// mergeStores brings changes into the even elements, and checks them; the program checks
// its own. With the rule last, it also publishes all of them, to a page that must end as
// the working copy.
func (r attachedRole) mergeStores(t *testing.T, rng *rand.Rand, a *Area, ended *atomic.Bool) {
	k := mustKernel(t, r.rule, r.dt, r.head)
	working := a.Working(0)
	base := make([]byte, dsm.PageSize)
	incoming := make([]byte, dsm.PageSize)
	published, snap := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
	publish := func() {
		var d Delta
		k.AppendShared(&d, 0, published, working, snap)
		k.Overlay(&d, 0, published)
	}
	steps := 0
	for ; !ended.Load() || steps < 100; steps++ {
		for range 50 {
			part := bytes.Repeat([]byte{byte(rng.Uint32())}, overwrittenTo-overwrittenFrom)
			overwriteShared(working, overwrittenFrom, part)
			copy(base[overwrittenFrom:], part)
			copy(incoming[overwrittenFrom:], part)
		}
		dense := rng.IntN(3) == 0
		for e := 0; e < dsm.PageSize/r.bytes; e += 2 {
			if dense || rng.IntN(100) == 0 {
				r.store(incoming, e, r.load(incoming, e)+1)
			}
		}
		k.MergeShared(0, base, working, incoming)
		for e := 0; e < dsm.PageSize/r.bytes; e += 2 {
			if got, want := r.load(working, e), r.load(incoming, e); got != want {
				t.Fatalf("step %d: element %d is %#x, want %#x", steps, e, got, want)
			}
		}
		copy(base, incoming)
		if k.sum {
			continue
		}
		publish()
		for e := 0; e < dsm.PageSize/r.bytes; e += 2 {
			if got, want := r.load(published, e), r.load(incoming, e); got != want {
				t.Fatalf("step %d: element %d was published as %#x, want %#x", steps, e, got, want)
			}
		}
	}
	if !k.sum {
		publish()
		wantPage(t, "published", published, working)
	}
	t.Logf("%d merges", steps)
}
