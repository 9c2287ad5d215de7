package fs

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"golang.org/x/sys/unix"
)

// The tests of this file are what programs do with mappings, and what the kernel
// must do with them for the data plane to be right.

// mapFile opens and maps a file of the mount.
func (f *fixture) mapFile(c *client, name string, size int) (fd, m int) {
	f.t.Helper()
	fd = c.open(f.path(name), unix.O_RDWR)
	return fd, int(c.must(clientCall{Op: "mmap", FD: fd, Len: size, Flag: rw}).N)
}

func TestMsyncReachesTheDataPlane(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", make([]byte, 2*dsm.PageSize))
	_, m := f.mapFile(c, "w", 2*dsm.PageSize)
	c.must(clientCall{Op: "store", FD: m, Off: 5000, Data: []byte("hello")})
	c.must(clientCall{Op: "msync", FD: m})
	a.mu.Lock()
	defer a.mu.Unlock()
	if got := string(a.published[5000:5005]); got != "hello" || a.syncs != 1 {
		t.Errorf("published %q after %d syncs", got, a.syncs)
	}
}

func TestMsyncReportsWhatSyncSays(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", make([]byte, dsm.PageSize))
	_, m := f.mapFile(c, "w", dsm.PageSize)
	a.update(func() { a.syncErr = syscall.EIO })
	c.must(clientCall{Op: "store", FD: m, Data: []byte("x")})
	c.wantErrno(syscall.EIO, clientCall{Op: "msync", FD: m})
	a.update(func() { a.syncErr = nil })
	c.must(clientCall{Op: "msync", FD: m})
}

// TestHarvest: a store to a mapped page sends nothing; the child finds it, also
// when only the mapping is left of the open file.
func TestHarvest(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	a := f.file(c, "w", make([]byte, 4*dsm.PageSize))
	fd, m := f.mapFile(c, "w", 4*dsm.PageSize)
	c.must(clientCall{Op: "close", FD: fd})
	for i, word := range []string{"first", "again", "third"} {
		off := int64(i) * (dsm.PageSize + 8)
		c.must(clientCall{Op: "store", FD: m, Off: off, Data: []byte(word)})
		if !a.await(clientTimeout, func() bool {
			return len(a.published) > 0 && bytes.Equal(a.published[off:off+5], []byte(word))
		}) {
			t.Fatalf("%q is not published", word)
		}
	}
	pid := int64(f.fs.b.harvest.Pid())
	if pid == 0 || childFiles(pid, f.mnt) != 1 {
		t.Errorf("child %d has %d files of the mount, want 1", pid, childFiles(pid, f.mnt))
	}
	if n := childFiles(pid, "/dev/fuse"); n != 0 {
		t.Errorf("child has %d descriptors of /dev/fuse", n)
	}
	if got := a.state().opens; got != 1 {
		t.Errorf("%d handles in the data plane, want the program's only", got)
	}
	c.must(clientCall{Op: "munmap", FD: m})
	eventually(t, "the child closes its file", func() bool { return childFiles(pid, f.mnt) == 0 })
}

// childFiles counts what a process has open below a path.
func childFiles(pid int64, below string) (n int) {
	fds, _ := filepath.Glob("/proc/" + strconv.FormatInt(pid, 10) + "/fd/*")
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, below) {
			n++
		}
	}
	return n
}

// TestNoWakeups: with nothing open for writing the child watches nothing, and with
// nothing stored no timer is set.
func TestNoWakeups(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.file(c, "w", make([]byte, dsm.PageSize))
	c.open(f.path("w"), unix.O_RDONLY)
	eventually(t, "the writer is gone", func() bool {
		return len(f.fs.b.opens.all(func(a *openArea) bool { return a.live.Load() > 0 })) == 0
	})
	h := f.fs.b.harvest
	a := f.fs.b.opens.find(dsm.AreaID(f.names.inoOf("w")))
	eventually(t, "nothing is watched", func() bool { return h.Watched() == 0 && a.pace.wish.Load() == notAtAll })
	c.open(f.path("w"), unix.O_RDWR)
	eventually(t, "the area is watched", func() bool { return h.Watched() == 1 })
	if a.pace.wish.Load() != notAtAll {
		t.Error("a timer is set though nobody stores")
	}
}

// TestHarvestChildDies: another child watches what the one before did, without
// anybody asking for a harvest, and so one that is asked for.
func TestHarvestChildDies(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	names := []string{"w", "v"}
	var areas []*fakeArea
	var maps []int
	for _, name := range names {
		areas = append(areas, f.file(c, name, make([]byte, dsm.PageSize)))
		_, m := f.mapFile(c, name, dsm.PageSize)
		maps = append(maps, m)
	}
	for i := range 3 {
		word := []byte{'a' + byte(i)}
		for j, a := range areas {
			c.must(clientCall{Op: "store", FD: maps[j], Data: word})
			if !a.await(clientTimeout, func() bool { return len(a.published) > 0 && a.published[0] == word[0] }) {
				t.Fatalf("round %d: %s is not published", i, names[j])
			}
		}
		if n := f.fs.b.harvest.Asked(); n != 0 {
			t.Errorf("%d harvests asked for", n)
		}
		if err := syscall.Kill(f.fs.b.harvest.Pid(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	c.must(clientCall{Op: "store", FD: maps[0], Data: []byte("z")})
	if err := f.fs.PublishAll(t.Context()); err != nil {
		t.Logf("publish while the child dies: %v", err) // its answer does not arrive
		if err := f.fs.PublishAll(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got := areas[0].state().published[0]; got != 'z' {
		t.Errorf("%c is published", got)
	}
	f.wantLog("level=WARN", "harvest child")
}

// TestWatchEndsAtClose: the child neither watches nor has open what nobody has open for
// writing, and watches it again when somebody has.
func TestWatchEndsAtClose(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	a := f.file(c, "w", make([]byte, dsm.PageSize))
	for i := range 20 {
		word := []byte{'a' + byte(i)}
		fd, m := f.mapFile(c, "w", dsm.PageSize)
		c.must(clientCall{Op: "store", FD: m, Data: word})
		if i%4 == 0 { // the others are opened again while the child is being told
			if !a.await(clientTimeout, func() bool { return len(a.published) > 0 && a.published[0] == word[0] }) {
				t.Fatalf("round %d: not published", i)
			}
		}
		c.must(clientCall{Op: "munmap", FD: m})
		c.must(clientCall{Op: "close", FD: fd})
	}
	pid := int64(f.fs.b.harvest.Pid())
	eventually(t, "the child closes its file", func() bool { return childFiles(pid, f.mnt) == 0 })
	if !a.await(clientTimeout, func() bool { return a.published[0] == 'a'+19 }) {
		t.Errorf("%c is published", a.state().published[0])
	}
}

// TestStoreNotice: K5, a mapping changes in place, and only where it is told to.
func TestStoreNotice(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", bytes.Repeat([]byte("."), dsm.PageSize))
	_, m := f.mapFile(c, "w", dsm.PageSize)
	c.must(clientCall{Op: "store", FD: m, Off: 100, Data: []byte("mine")}) // dirty, not written back
	reads := f.fs.b.count.reads.Load()
	a.tell(Notice{Off: 200, Data: []byte("theirs")})
	if !a.await(clientTimeout, func() bool { return a.done == 1 }) {
		t.Fatal("notice not done")
	}
	got := c.must(clientCall{Op: "load", FD: m, Off: 99, Len: 108}).Data
	if want := ".mine" + strings.Repeat(".", 96) + "theirs."; string(got) != want {
		t.Errorf("mapping has %q, want %q", got, want)
	}
	if n := f.fs.b.count.reads.Load(); n != reads {
		t.Errorf("%d reads", n-reads)
	}
}

// TestInvalidateNotice: K6, the next touch reads anew, and a dirty page is
// delivered first.
func TestInvalidateNotice(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", bytes.Repeat([]byte("."), 2*dsm.PageSize))
	_, m := f.mapFile(c, "w", 2*dsm.PageSize)
	c.must(clientCall{Op: "store", FD: m, Off: 10, Data: []byte("mine")})
	a.mu.Lock()
	a.wrote = nil
	a.merge = func(p []byte, off int64) { copy(a.data[off+10:], p[10:14]) }
	copy(a.data[20:], "theirs")
	a.mu.Unlock()
	a.tell(Notice{Off: 0, Len: dsm.PageSize})
	if !a.await(clientTimeout, func() bool { return a.done == 1 }) {
		t.Fatal("notice not done")
	}
	a.mu.Lock()
	if len(a.wrote) != 1 {
		t.Errorf("%d writes came with the invalidation, want the dirty page", len(a.wrote))
	}
	a.mu.Unlock()
	if got := string(c.must(clientCall{Op: "load", FD: m, Off: 9, Len: 18}).Data); got != ".mine......theirs." {
		t.Errorf("mapping has %q", got)
	}
}

// TestNoticeWaitsForRead: K7, a notification of a page that is being read waits for the
// READ, and neither hangs.
func TestNoticeWaitsForRead(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", bytes.Repeat([]byte("."), dsm.PageSize))
	release := make(chan struct{})
	a.mu.Lock()
	a.block = release
	a.mu.Unlock()
	fd := c.open(f.path("w"), unix.O_RDONLY)
	reads := f.fs.b.count.reads.Load()
	c.start(clientCall{Op: "pread", FD: fd, Len: 10})
	eventually(t, "the READ is here", func() bool { return f.fs.b.count.reads.Load() > reads })
	a.tell(Notice{Off: 0, Len: dsm.PageSize})
	close(release)
	if got := string(c.reply().Data); got != ".........." {
		t.Errorf("read %q", got)
	}
	if !a.await(clientTimeout, func() bool { return a.done == 1 }) {
		t.Error("notice not done")
	}
}

// TestSyncLetsUpdatesIn: K33, an FSYNC handler may have the synced file changed and wait
// for it, so that msync returns with the merged bytes in memory.
func TestSyncLetsUpdatesIn(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", bytes.Repeat([]byte("."), 2*dsm.PageSize))
	_, m := f.mapFile(c, "w", 2*dsm.PageSize)
	var rounds atomic.Int64
	onSync := func() {
		round := int(rounds.Load())
		word := strconv.Itoa(round)
		a.update(func() { copy(a.data[50:], word); copy(a.data[dsm.PageSize+50:], word) })
		a.tell(Notice{Off: 50, Data: []byte(word)})
		a.tell(Notice{Off: dsm.PageSize, Len: dsm.PageSize})
		want := 2 * (round + 1)
		if !a.await(clientTimeout, func() bool { return a.done == want }) {
			t.Error("the kernel is not told while it waits for FSYNC")
		}
	}
	a.update(func() { a.onSync = onSync })
	for round := range 20 {
		rounds.Store(int64(round))
		c.must(clientCall{Op: "store", FD: m, Off: 10, Data: []byte{byte(round)}})
		c.must(clientCall{Op: "msync", FD: m})
		want := strconv.Itoa(round)
		for _, off := range []int64{50, dsm.PageSize + 50} {
			if got := string(c.must(clientCall{Op: "load", FD: m, Off: off, Len: len(want)}).Data); got != want {
				t.Fatalf("round %d: msync returned with %q at %d", round, got, off)
			}
		}
	}
}

// TestNoStoreLostByInvalidation: K34. Threads of a program add to elements while
// another node does; updates enter by invalidation, and each WRITE is merged
// against what the page cache was last given.
func TestNoStoreLostByInvalidation(t *testing.T) {
	const pages, threads, rounds = 2, 3, 300
	f := mountTest(t)
	c := startClient(t)
	a := f.file(c, "w", make([]byte, pages*dsm.PageSize))
	eventually(t, "the writer is gone", func() bool { return a.state().opens == 0 })
	given := make([]byte, pages*dsm.PageSize)
	word := func(p []byte, i int) int64 { return int64(binary.NativeEndian.Uint64(p[8*i:])) }
	setWord := func(p []byte, i int, v int64) { binary.NativeEndian.PutUint64(p[8*i:], uint64(v)) }
	a.mu.Lock()
	a.gave = func(p []byte, off int64) { copy(given[off:], p) }
	a.merge = func(p []byte, off int64) {
		for i := range len(p) / 8 {
			j := int(off)/8 + i
			setWord(a.data, j, word(a.data, j)+word(p, i)-word(given, j))
		}
		copy(given[off:], p)
	}
	a.mu.Unlock()
	_, m := f.mapFile(c, "w", pages*dsm.PageSize)
	c.must(clientCall{Op: "adders", FD: m, Len: threads})

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	remote := int64(0)
	for round := range rounds {
		page := rng.IntN(pages)
		a.update(func() {
			for range 64 {
				j := page*dsm.PageSize/8 + rng.IntN(dsm.PageSize/8)
				setWord(a.data, j, word(a.data, j)+3)
				remote += 3
			}
		})
		a.tell(Notice{Off: int64(page) * dsm.PageSize, Len: dsm.PageSize})
		if !a.await(clientTimeout, func() bool { return a.done == round+1 }) {
			t.Fatal("notice not done")
		}
	}
	local := c.must(clientCall{Op: "stopadders", Len: threads}).N
	c.must(clientCall{Op: "msync", FD: m})
	sum := int64(0)
	a.mu.Lock()
	for i := range len(a.data) / 8 {
		sum += word(a.data, i)
	}
	a.mu.Unlock()
	if sum != local+remote {
		t.Errorf("sum is %d, want %d local + %d remote = %d: %d lost", sum, local, remote, local+remote, local+remote-sum)
	}
	seen := c.must(clientCall{Op: "load", FD: m, Len: pages * dsm.PageSize}).Data
	a.mu.Lock()
	defer a.mu.Unlock()
	if !bytes.Equal(seen, a.data) {
		t.Error("the mapping is not what the data plane has")
	}
}

// TestShrinkElsewhere: a mapping past the new end is SIGBUS at once, with no stat; bytes
// there are zero after growing again, and stores there do not make the file grow.
func TestShrinkElsewhere(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", bytes.Repeat([]byte("x"), 4*dsm.PageSize))
	ino := f.names.inoOf("w")
	_, m := f.mapFile(c, "w", 4*dsm.PageSize)
	c.must(clientCall{Op: "store", FD: m, Off: 3 * dsm.PageSize, Data: []byte("dirty")})
	c.must(clientCall{Op: "load", FD: m, Off: 0, Len: 4 * dsm.PageSize})

	f.names.resizeElsewhere(ino, dsm.PageSize+100)
	eventually(t, "SIGBUS past the end", func() bool {
		return c.call(clientCall{Op: "load", FD: m, Off: 2 * dsm.PageSize, Len: 1}).SIGBUS
	})
	if got := c.must(clientCall{Op: "stat", Path: f.path("w")}).Stat.Size; got != dsm.PageSize+100 {
		t.Errorf("size %d", got)
	}
	if got := c.must(clientCall{Op: "load", FD: m, Off: dsm.PageSize + 99, Len: 2}).Data; string(got) != "x\x00" {
		t.Errorf("at the new end: %q", got)
	}
	if got := f.names.size(a.id); got != dsm.PageSize+100 {
		t.Errorf("the delivery of a dirty page made the file %d bytes long", got)
	}

	f.names.resizeElsewhere(ino, 4*dsm.PageSize)
	if got := c.must(clientCall{Op: "stat", Path: f.path("w")}).Stat.Size; got != 4*dsm.PageSize {
		t.Errorf("size %d after growing", got)
	}
	if got := c.must(clientCall{Op: "load", FD: m, Off: 3 * dsm.PageSize, Len: 5}).Data; !bytes.Equal(got, make([]byte, 5)) {
		t.Errorf("%q after growing again, want zeroes", got)
	}
}

// TestStoreNoticePastTheEnd: a store that a truncation overtook does not leave
// the file longer in the eyes of this kernel.
func TestStoreNoticePastTheEnd(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", bytes.Repeat([]byte("x"), 2*dsm.PageSize))
	fd, m := f.mapFile(c, "w", 2*dsm.PageSize)
	c.must(clientCall{Op: "ftruncate", FD: fd, Off: 10})
	a.tell(Notice{Off: dsm.PageSize, Data: []byte("late")})
	if !a.await(clientTimeout, func() bool { return a.done == 1 }) {
		t.Fatal("notice not done")
	}
	if r := c.call(clientCall{Op: "load", FD: m, Off: dsm.PageSize, Len: 1}); !r.SIGBUS {
		t.Errorf("loaded %q past the end", r.Data)
	}
}

// TestOpenDropsStalePages: what the kernel kept of an area that nobody had open
// is not believed; while somebody has, every open keeps the pages.
func TestOpenDropsStalePages(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", []byte("old old"))
	read := func() string { return string(c.must(clientCall{Op: "readfile", Path: f.path("w")}).Data) }
	closed := func() bool { return a.state().opens == 0 }
	read()
	eventually(t, "closed", closed)
	a.update(func() { copy(a.data, "new new") }) // nobody is told: the area is not subscribed
	if got := read(); got != "new new" {
		t.Errorf("read %q", got)
	}
	fd := c.open(f.path("w"), unix.O_RDONLY)
	read()
	reads := f.fs.b.count.reads.Load()
	if got := read(); got != "new new" || f.fs.b.count.reads.Load() != reads {
		t.Errorf("read %q; the second open dropped the pages", got)
	}
	c.must(clientCall{Op: "close", FD: fd})
}

// TestHungReadsDelayNobodyElse: K9, hung faults of one area leave others alone, also
// more of them than a FUSE mount has by default.
func TestHungReadsDelayNobodyElse(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	hung := f.file(c, "hung", make([]byte, 64<<12))
	f.file(c, "fine", []byte("fine"))
	release := make(chan struct{})
	hung.mu.Lock()
	hung.block = release
	hung.mu.Unlock()
	reads := f.fs.b.count.reads.Load()
	readers := make([]*client, 20)
	for i := range readers {
		readers[i] = startClient(t)
		_, m := f.mapFile(readers[i], "hung", 64<<12)
		readers[i].start(clientCall{Op: "load", FD: m, Off: int64(i) * 3 << 12, Len: 1})
		// Before that the next open might have the kernel drop the pages of before once more, which waits for this one.
		eventually(t, "a READ is here", func() bool { return f.fs.b.count.reads.Load() > reads })
	}
	eventually(t, "all READs are here", func() bool { return f.fs.b.count.reads.Load() >= reads+20 })
	if got := string(c.must(clientCall{Op: "readfile", Path: f.path("fine")}).Data); got != "fine" {
		t.Errorf("read %q", got)
	}
	close(release)
	for _, r := range readers {
		r.reply()
	}
}

// TestFaultTimeout: K11 and K12, a fault that no node answers ends as SIGBUS, a read
// as EIO, and neither hangs.
func TestFaultTimeout(t *testing.T) {
	f := mountTest(t, func(c *Config) { c.FaultTimeout = 300 * time.Millisecond })
	c := startClient(t)
	a := f.file(c, "w", make([]byte, 2*dsm.PageSize))
	fd, m := f.mapFile(c, "w", 2*dsm.PageSize)
	never := make(chan struct{})
	a.mu.Lock()
	a.block = never
	a.mu.Unlock()
	if r := c.call(clientCall{Op: "load", FD: m, Off: dsm.PageSize, Len: 1}); !r.SIGBUS {
		t.Errorf("loaded %q", r.Data)
	}
	c.wantErrno(syscall.EIO, clientCall{Op: "pread", FD: fd, Len: 1})
	a.mu.Lock()
	a.block = nil
	a.mu.Unlock()
	eventually(t, "the node is back", func() bool { return c.call(clientCall{Op: "pread", FD: fd, Len: 1}).Errno == 0 })
	f.wantLog("level=WARN", "msg=read", "area=")
}

// TestSignals: K15, a signal does not end a fault, a fatal one does.
func TestSignals(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	a := f.file(c, "w", make([]byte, 64))
	release := make(chan struct{})
	a.mu.Lock()
	a.block = release
	a.mu.Unlock()
	blocked := func() (*client, int) {
		r := startClient(t)
		_, m := f.mapFile(r, "w", 64) // a page at a time: readahead is asynchronous, nobody waits for its READ
		reads := f.fs.b.count.reads.Load()
		r.start(clientCall{Op: "load", FD: m, Len: 8})
		eventually(t, "the READ is here", func() bool { return f.fs.b.count.reads.Load() > reads })
		return r, r.cmd.Process.Pid
	}
	_, doomed := blocked()
	for range 20 {
		syscall.Kill(doomed, syscall.SIGURG)
	}
	syscall.Kill(doomed, syscall.SIGKILL)
	eventually(t, "the killed reader is gone", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(doomed) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
	r, pid := blocked()
	for range 20 {
		syscall.Kill(pid, syscall.SIGURG)
	}
	close(release)
	if got := r.reply(); got.Errno != 0 || len(got.Data) != 8 {
		t.Errorf("read: %v, %d bytes", got.Errno, len(got.Data))
	}
}

// TestWriterWaitsForStores: an open for writing of an area without writers is
// answered after the store that was under way, which would undo its stores.
func TestWriterWaitsForStores(t *testing.T) {
	b := newBridge(Config{FaultTimeout: time.Minute})
	release, reached := make(chan struct{}), make(chan struct{})
	b.notify.server = slowCache{func() { close(reached); <-release }}
	plane := newFakeAreas(newFakeNames())
	fake := plane.area(7)
	fake.notices = []Notice{{Off: 0, Data: []byte("x")}}
	a := newOpenArea(7)
	a.mu.area, a.mu.size = fake, 100
	b.notify.kick(a)
	<-reached
	r := b.begin(make(chan struct{}), headerOf(0))
	defer r.end()
	done := make(chan error, 1)
	go func() { done <- a.notices.delivered(r) }()
	select {
	case <-done:
		t.Fatal("did not wait")
	default:
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.background.close()
	if len(fake.notices) > 0 {
		t.Error("notices left")
	}
}
