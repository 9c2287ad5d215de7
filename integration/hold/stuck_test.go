package hold_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// memfd opens the memory of an attached file once more.
func (f *attachedFile) memfd(t *testing.T) int {
	t.Helper()
	at := uintptr(unsafe.Pointer(&f.mem[0]))
	fd, err := unix.Open(fmt.Sprintf("/proc/self/map_files/%x-%x", at, at+uintptr(len(f.mem))), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// waiting returns a child of a process that waits in the kernel, beyond the reach of signals; 0: there is none.
func waiting(parent int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if err != nil {
		return 0
	}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", parent)) // each has children of its own
	for _, th := range threads {
		more, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", parent, th.Name()))
		text = append(text, more...)
	}
	for _, word := range strings.Fields(string(text)) {
		var pid int
		if _, err := fmt.Sscan(word, &pid); err == nil && harness.Waiting(pid) {
			return pid
		}
	}
	return 0
}

// TestKilledWhileAProgramIsStuckInAWrite: a program writes to its memory from a page that does not come, and the daemon is killed, twice. The next one serves, also if a process of the one before still waits for the
// program, to free what is past the end of the file. What is stored there later is not lost when that process goes on, and then it ends.
func TestKilledWhileAProgramIsStuckInAWrite(t *testing.T) {
	const pages, size, small = 64, 64*page + 100, 3*page + 100
	for _, nodes := range []int{1, 3} {
		for _, freeing := range []bool{false, true} {
			t.Run(fmt.Sprintf("nodes=%d,freeing=%v", nodes, freeing), func(t *testing.T) {
				c := heldCluster(t, nodes, "--lease", "10s", "--fault-timeout", "10s")
				n := c.Node(1)
				program := &attachClient{socket: n.AttachSocket()}
				if err := program.connect(); err != nil {
					t.Fatal(err)
				}
				f, err := program.prepare("/w", size)
				if err == nil {
					err = f.name()
				}
				if err != nil {
					t.Fatal(err)
				}
				for p := range pages {
					f.mem[p*page+8] = 5
				}
				sync := func() {
					t.Helper()
					if err := f.call(opSync); err != nil {
						t.Fatalf("sync: %v", err)
					}
				}
				sync()
				cl := n.Client()
				path := cl.Path("w")
				look := func(off int, want byte) {
					t.Helper()
					file := cl.Must("open %s r", path)[0]
					if got := cl.Must("pread %s %d 1", file, off)[0]; got != hex.EncodeToString([]byte{want}) {
						t.Errorf("byte %d is %s through the mount, want %d", off, got, want)
					}
					cl.Must("close %s", file)
				}
				let := harness.StuckWrite(t, f.memfd(t), 2*page)
				child := 0
				shrink := func() {
					t.Helper()
					cl.Must("truncate %s %d", path, small)
					if !harness.Eventually(limit, func() bool { child = waiting(n.Daemon()); return child != 0 }) {
						t.Fatal("nobody frees what is past the end")
					}
				}
				if freeing {
					shrink()
				}
				last := 0
				for round := range 2 {
					if nodes > 1 {
						covered(t, n)
					}
					last = killDaemon(t, n, last, 0, syscall.SIGKILL)
					f.mem[page+16+round] = 7
					sync()
					look(page+16+round, 7)
					look(page+8, 5)
					cl.Must("open %s rw,creat", cl.Path(fmt.Sprint("other", round)))
				}
				if !freeing {
					shrink()
				}
				cl.Fails("EIO", "truncate %s %d", path, size) // it waits for the program
				file := cl.Must("open %s rw", cl.Path("other0"))[0]
				cl.Must("pwrite %s 0 07", file)
				cl.Fails("EIO", "open %s rw", path) // it waits for the program
				let()
				if !harness.Eventually(limit, func() bool { return !harness.Waiting(child) }) {
					t.Error("a process of the daemon waits for the program that has gone on")
				}
				var file2 string
				if !harness.Eventually(limit, func() bool {
					words, err := cl.Do("open %s rw", path)
					if err == nil {
						file2 = words[0]
					}
					return err == nil
				}) {
					t.Fatal("the file does not get longer")
				}
				cl.Must("pwrite %s %d 07", file2, 50*page)
				cl.Must("fsync %s", file2)
				sync()
				look(50*page, 7)
				look(10*page+8, 0)
				look(page+8, 5)
				if f.mem[50*page] != 7 || f.mem[10*page+8] != 0 || f.mem[page+16] != 7 || f.mem[page+17] != 7 {
					t.Errorf("the memory has %d, %d, %d", f.mem[50*page], f.mem[10*page+8], f.mem[page+16:page+18])
				}
				if _, err := os.Stat(fmt.Sprintf("/proc/%d/exe", child)); freeing && !harness.Eventually(limit, func() bool {
					_, err = os.Stat(fmt.Sprintf("/proc/%d/exe", child))
					return errors.Is(err, os.ErrNotExist)
				}) {
					t.Errorf("a process of a daemon that was killed is still there (%v)", err)
				}
			})
		}
	}
}
