package hold_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What programs have of versioned files when daemons are killed.

// versionsSize is the size of the file that publishes and follows share: read(2) of it takes several requests.
const versionsSize = 5 << 19

// markedPages are those that have the mark of a version.
func markedPages() (list []int) {
	for p := 0; p < versionsSize/page; p += 16 {
		list = append(list, p)
	}
	return list
}

// publishes stores a mark into many pages of a versioned file, and publishes. Now and then it closes the file, and opens it again.
type publishes struct {
	rnd  *rand.Rand
	path string
	f    *os.File
	mem  []byte
	mark uint32
}

func (w *publishes) begin(dir string, rnd *rand.Rand) (err error) {
	w.rnd, w.path = rnd, filepath.Join(filepath.Dir(dir), "versions")
	f, err := os.OpenFile(w.path, os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Setxattr(w.path, "user.dsm.mode", []byte("versioned"), 0), f.Close()); err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	return w.step()
}

func (w *publishes) open() (err error) {
	if w.f, err = os.OpenFile(w.path, os.O_RDWR, 0); err != nil {
		return err
	}
	if err := w.f.Truncate(versionsSize); err != nil {
		return err
	}
	w.mem, err = unix.Mmap(int(w.f.Fd()), 0, versionsSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

func (w *publishes) step() error {
	if err := w.check(); err != nil {
		return err
	}
	w.mark++
	for _, p := range markedPages() {
		binary.LittleEndian.PutUint32(w.mem[p*page:], w.mark)
	}
	if err := unix.Msync(w.mem, unix.MS_SYNC); err != nil {
		return fmt.Errorf("msync of version %d: %w", w.mark, err)
	}
	if w.rnd.IntN(8) > 0 {
		return nil
	}
	if err := errors.Join(unix.Munmap(w.mem), w.f.Close()); err != nil {
		return fmt.Errorf("close after version %d: %w", w.mark, err)
	}
	if err := w.open(); err != nil {
		return fmt.Errorf("open after version %d: %w", w.mark, err)
	}
	return nil
}

// check looks at what is in memory: nobody else stores to the file.
func (w *publishes) check() error {
	for _, p := range markedPages() {
		if got := binary.LittleEndian.Uint32(w.mem[p*page:]); got != w.mark {
			return fmt.Errorf("page %d has mark %d, and %d was stored", p, got, w.mark)
		}
	}
	return nil
}

// follows reads the file that another program publishes: each version is whole, and none is older than the one before.
type follows struct {
	f    *os.File
	buf  []byte
	last uint32
	cut  int // reads in a row that did not come to the end
}

// mostCut bounds follows.cut: a daemon is killed in the midst of each.
const mostCut = 8

func (w *follows) begin(dir string, _ *rand.Rand) (err error) {
	w.buf = make([]byte, versionsSize)
	w.f, err = os.Open(filepath.Join(filepath.Dir(dir), "versions"))
	return err
}

func (w *follows) step() error {
	n, err := unix.Pread(int(w.f.Fd()), w.buf, 0)
	if errors.Is(err, unix.ESTALE) || err == nil && n < len(w.buf) { // the version was dropped, and the daemon killed, in the midst of the read
		if w.cut++; w.cut > mostCut {
			return fmt.Errorf("%d reads one after the other of %d bytes, %v: no daemon is killed that often", w.cut, n, err)
		}
		return nil
	}
	w.cut = 0
	if err != nil {
		return fmt.Errorf("read after version %d: %w", w.last, err)
	}
	first := binary.LittleEndian.Uint32(w.buf)
	for _, p := range markedPages() {
		if got := binary.LittleEndian.Uint32(w.buf[p*page:]); got != first {
			return fmt.Errorf("page %d of a version has mark %d, and page 0 has %d", p, got, first)
		}
	}
	if first < w.last {
		return fmt.Errorf("version %d is followed by %d", w.last, first)
	}
	w.last = first
	return nil
}

func (w *follows) check() error {
	if w.last == 0 {
		return errors.New("no version was seen")
	}
	return w.step()
}

// TestVersionsOutliveTheirDaemons: the daemons of the owner of a versioned file, and of its readers, are killed again and again. The program that publishes sees no error and loses nothing, and opens
// the file for writing again at any time. Those that read it, or have attached it to read, see whole versions, in order.
func TestVersionsOutliveTheirDaemons(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			rnd := seeded(t)
			c := heldCluster(t, nodes, "--lease", "60s")
			all := c.Nodes()
			owner := start(t, all[0], "publishes", "common", rnd.Uint64())
			var readers []running
			for _, n := range all {
				readers = append(readers, start(t, n, "follows", "common", 0), start(t, n, "watches", "common", 0))
			}
			last, k := make([]int, len(all)), 0
			for i := range *kills {
				if nodes > 1 {
					covered(t, all[k]) // the one that was killed last: it is back when it answers
				}
				if k = 0; i%4 == 3 {
					k = i / 4 % len(all)
				}
				last[k] = killDaemon(t, all[k], last[k], time.Duration(rnd.Int64N(int64(longest))), syscall.SIGKILL)
			}
			end(t, []running{owner}, all)
			end(t, readers, all)
		})
	}
}

// TestVersionsOfOneNode: the only node of a cluster has what was published and what was not when its daemon is killed. A thread that was reading a version goes on in it.
func TestVersionsOfOneNode(t *testing.T) {
	n := asMounted(t)
	c := n.Client()
	c.Must("close %d", c.Open("f", "rw,creat").FD)
	c.SetXattr("f", "user.dsm.mode", "versioned")
	f := c.Open("f", "rw")
	f.Truncate(8 * page)
	m := f.Map(8 * page)
	m.Store(0, []byte("one"))
	m.Store(5*page, []byte("one"))
	m.Sync()
	reader := n.Client().Open("f", "r")
	reads := func(off int64, want string) {
		t.Helper()
		if got := string(reader.Read(off, 3)); got != want {
			t.Errorf("a program that reads has %q at %d, want %q", got, off, want)
		}
	}
	reads(0, "one")
	other := n.Client()
	begun := other.Open("f", "r")
	begun.Read(0, 3)
	m.Store(0, []byte("two"))
	f.Write(5*page, []byte("two"))
	last := killDaemon(t, n, 0, 0, syscall.SIGKILL)
	reads(3, "\x00\x00\x00") // in the version that it had begun
	reads(5*page, "one")
	if got := string(f.Read(5*page, 3)) + string(m.Load(0, 3)); got != "twotwo" {
		t.Errorf("the program that stores has %q", got)
	}
	m.Sync()
	if _, err := other.Do("pread %d %d 3", begun.FD, 5*page); err == nil || !strings.Contains(err.Error(), "ESTALE") {
		t.Errorf("a program that was reading a version before that one reads on: %v", err)
	}
	if got := string(begun.Read(5*page, 3)); got != "two" {
		t.Errorf("when it has been told it has %q", got)
	}
	reads(0, "two")
	reads(5*page, "two")
	m.Store(0, []byte("six"))
	killDaemon(t, n, last, 0, syscall.SIGKILL)
	m.Sync()
	reads(0, "six")
	if s := stats(c); s["outlives_daemon"] != "true" || s["lost_with_daemon_because"] != "" {
		t.Errorf("it says that it outlives its daemon: %q, %q", s["outlives_daemon"], s["lost_with_daemon_because"])
	}
}
