package pagetest

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// programEnv says what the program is to do.
const programEnv = "DSMFS_TEST_ATTACHED"

// Stores is how many stores the program makes: a race detector makes them slow.
func Stores() int {
	if testing.Short() || Race {
		return 200_000
	}
	return 2_000_000
}

// Program is a program that stores into a page, and what the stores of its seed are. Here the other side is what
// it is in earnest: another process that maps the memfd of a working copy. It is the test
// binary, run again with the memfd as descriptor 3.
type Program struct {
	Name  string
	Rule  dsm.MergeRule
	DType dsm.DType
	Head  int64
	Adds  bool
	Bytes int // of an element that is stored to plainly, without an atomic operation
}

// Programs are all there are.
var Programs = []Program{
	{"add-i32", dsm.MergeSum, dsm.DTypeI32, 0, true, 0},
	{"add-i64", dsm.MergeSum, dsm.DTypeI64, 0, true, 0},
	{"add-f32", dsm.MergeSum, dsm.DTypeF32, 0, true, 0},
	{"add-f32-header", dsm.MergeSum, dsm.DTypeF32, 4 * 7, true, 0},
	{"bytes", dsm.MergeLast, dsm.DTypeAuto, 0, false, 1},
	{"bytes-sum", dsm.MergeSum, dsm.DTypeU8, 3, false, 1},
	{"halves", dsm.MergeLast, dsm.DTypeU16, 2, false, 2},
	{"f16-sum", dsm.MergeSum, dsm.DTypeF16, 2, false, 2},
}

// OverwrittenFrom and OverwrittenTo bound the bytes of the page that the daemon overwrites while a program without atomic
// operations runs.
const OverwrittenFrom, OverwrittenTo = 262, 501

// odd draws an odd element that the program owns.
func (r Program) odd(rng *rand.Rand) int {
	if rng.IntN(4) == 0 { // in a word that is overwritten in part
		return []int{OverwrittenFrom - 3, OverwrittenTo}[rng.IntN(2)]/r.Bytes | 1
	}
	for {
		e := rng.IntN(dsm.PageSize/r.Bytes) | 1
		if at := e * r.Bytes; at+r.Bytes <= OverwrittenFrom || at >= OverwrittenTo {
			return e
		}
	}
}

// Element draws the element of the next add.
func (r Program) Element(rng *rand.Rand) int {
	first := int(r.Head) / r.DType.Size()
	if rng.IntN(2) == 0 {
		return first + rng.IntN(4) // where the daemon is most of the time
	}
	return first + rng.IntN(dsm.PageSize/r.DType.Size()-first)
}

// programTest is the test that is the other process: it calls RunProgram.
const programTest = "TestAttachedProgram"

// RunProgram is the other process. A test named TestAttachedProgram calls it, in each package that starts programs.
func RunProgram(t *testing.T) {
	t.Helper()
	args := strings.Split(os.Getenv(programEnv), "/")
	if len(args) != 3 {
		t.Skip("runs in a process of its own, started by another test")
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
	fmt.Fprintln(os.Stdout, "ready") // Start waits for it
	for _, r := range Programs {
		if r.Name != args[0] {
			continue
		}
		if r.Adds {
			for range stores {
				AddOne(r.DType, mem[r.Element(rng)*r.DType.Size():])
			}
			continue
		}
		mine := make([]uint16, dsm.PageSize/r.Bytes)
		for i := range stores {
			e := r.odd(rng)
			v := uint16(i)
			if r.Bytes == 1 {
				v = uint16(uint8(i))
			}
			if got := r.Load(mem, e); got != mine[e] {
				t.Fatalf("%s: store %d: element %d is %#x, and %#x was stored", r.Name, i, e, got, mine[e])
			}
			r.Store(mem, e, v)
			mine[e] = v
		}
	}
}

// Load returns element e of mem, of a program without atomic operations; Store stores to it.
func (r Program) Load(mem []byte, e int) uint16 {
	if r.Bytes == 1 {
		return uint16(mem[e])
	}
	return *(*uint16)(unsafe.Pointer(&mem[2*e]))
}

// Store stores v to element e of mem.
func (r Program) Store(mem []byte, e int, v uint16) {
	if r.Bytes == 1 {
		mem[e] = byte(v)
		return
	}
	*(*uint16)(unsafe.Pointer(&mem[2*e])) = v
}

// Start starts the program on the first page of a memfd. It returns when it is about to
// store; ended becomes true when it has, and wait says how that went.
func (r Program) Start(t *testing.T, memfd int, seed uint64) (ended *atomic.Bool, wait func()) {
	t.Helper()
	fd, err := unix.Dup(memfd)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "working copy")
	defer file.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^"+programTest+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s/%d/%d", programEnv, r.Name, Stores(), seed))
	cmd.ExtraFiles = []*os.File{file}
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
