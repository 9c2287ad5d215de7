package fs

import (
	"log/slog"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// kernel asks a bridge as threads of programs do.
type kernel struct {
	*testing.T
	b     *bridge
	names *fakeNames
	once  bool // the calls that threads are in do not look up once more
}

func newKernel(t *testing.T) *kernel {
	names := newFakeNames()
	b := newBridge(Config{Names: names, FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	b.notify.server = slowCache{}
	b.harvest.Stop()              // no child looks
	b.aliases.limit = time.Minute // the machine may be slow
	k := &kernel{T: t, b: b, names: names}
	b.walksTwice = func(*request) bool { return !k.once }
	return k
}

func (k *kernel) mkdir(dir dsm.Ino, name string) dsm.Ino {
	k.Helper()
	i, err := k.names.Create(k.Context(), dir, name, dsm.Inode{Kind: dsm.KindDir, Perm: 0o755}, false)
	if err != nil {
		k.Fatal(err)
	}
	return i.Ino
}

// known returns two directories, and one in the first that the kernel knows.
func (k *kernel) known() (p, q, x dsm.Ino) {
	k.Helper()
	p, q = k.mkdir(dsm.RootIno, "p"), k.mkdir(dsm.RootIno, "q")
	x = k.mkdir(p, "x")
	k.lookup(1, nodeID(p), "x", x)
	return p, q, x
}

// move renames on another node.
func (k *kernel) move(dir dsm.Ino, name string, newDir dsm.Ino, newName string) {
	k.Helper()
	if err := k.names.Rename(k.Context(), dir, name, newDir, newName, dsm.RenameReplace, 0); err != nil {
		k.Fatal(err)
	}
}

// header is that of a request of a thread.
func header(op, tid uint32, node nodeID) fuse.InHeader {
	return fuse.InHeader{Opcode: op, NodeId: uint64(node), Caller: fuse.Caller{Pid: tid}}
}

// lookup returns the number that a thread is told, of the inode it wants.
func (k *kernel) lookup(tid uint32, dir nodeID, name string, want dsm.Ino) nodeID {
	k.Helper()
	var out fuse.EntryOut
	in := header(opLookup, tid, dir)
	if st := k.b.Lookup(nil, &in, name, &out); !st.Ok() {
		k.Fatalf("lookup %s: %v", name, st)
	}
	if out.Ino != uint64(want) || inoOf(out.NodeId) != want {
		k.Fatalf("%s is inode %d by the number %#x, want %d", name, out.Ino, out.NodeId, want)
	}
	return nodeID(out.NodeId)
}

// lists checks that a program finds the names in a directory that the kernel has by that number.
func (k *kernel) lists(dir nodeID, want ...string) {
	k.Helper()
	var opened fuse.OpenOut
	in := header(opOpendir, 8, dir)
	if st := k.b.OpenDir(nil, &fuse.OpenIn{InHeader: in}, &opened); !st.Ok() {
		k.Fatalf("open directory %#x: %v", dir, st)
	}
	defer k.b.ReleaseDir(&fuse.ReleaseIn{InHeader: in, Fh: opened.Fh})
	entries, st := k.b.rest(k.Context(), &fuse.ReadIn{InHeader: in, Fh: opened.Fh})
	if !st.Ok() {
		k.Fatalf("list directory %#x: %v", dir, st)
	}
	var got []string
	for _, e := range entries[:2] {
		if e.Ino != inoOf(uint64(dir)) {
			k.Errorf("%s of directory %#x is inode %d", e.Name, dir, e.Ino)
		}
	}
	for _, e := range entries[2:] {
		got = append(got, e.Name)
	}
	if !slices.Equal(got, want) {
		k.Errorf("directory %#x has %q, want %q", dir, got, want)
	}
}

// TestMovedDirectory: a thread that finds a directory in a new place for the second time in a call is told of one that the kernel
// does not have to move, and so is a thread that would have to move a directory into itself.
func TestMovedDirectory(t *testing.T) {
	k := newKernel(t)
	p, q := k.mkdir(dsm.RootIno, "p"), k.mkdir(dsm.RootIno, "q")
	x := k.mkdir(p, "x")
	y := k.mkdir(x, "y")
	first := k.lookup(1, nodeID(p), "x", x)
	if again := k.lookup(1, nodeID(p), "x", x); again != first || first != nodeID(x) {
		t.Errorf("a directory that stays is told as %#x and %#x", first, again)
	}
	k.lookup(1, first, "y", y)

	k.move(p, "x", q, "x")
	if n := k.lookup(2, nodeID(q), "x", x); n != first {
		t.Errorf("the first time a thread is told of %#x, want %#x, which the kernel may move", n, first)
	}
	if n := k.lookup(3, nodeID(q), "x", x); n != first {
		t.Errorf("another thread is told of %#x, want %#x", n, first)
	}
	other := k.lookup(2, nodeID(q), "x", x)
	if other == first {
		t.Error("the second time a thread is told of what the kernel could not move")
	}
	if n := k.lookup(4, nodeID(q), "x", x); n != other {
		t.Errorf("later the directory is told as %#x, want %#x", n, other)
	}
	// In the directory of the other number the kernel knows nothing yet. It may have y under the first.
	if n := k.lookup(2, other, "y", y); n == nodeID(y) {
		t.Error("the thread is told of what the kernel has elsewhere, in its second walk")
	}
	k.lists(first, "y")
	k.lists(other, "y")
	in := header(9, 5, other)
	if st := k.b.Mkdir(nil, &fuse.MkdirIn{InHeader: in, Mode: 0o700}, "made", &fuse.EntryOut{}); !st.Ok() {
		t.Fatal(st)
	}
	if i, err := k.names.Lookup(t.Context(), x, "made"); err != nil || i.Kind != dsm.KindDir {
		t.Errorf("what is made in the directory of the other number: %+v, %v", i, err)
	}

	// A request that ends a walk makes the thread's next one its first.
	k.move(q, "x", p, "z")
	rename := fuse.RenameIn{InHeader: header(45, 2, nodeID(q)), Newdir: uint64(q)}
	if st := k.b.Rename(nil, &rename, "none", "other"); st != fuse.ENOENT {
		t.Fatal(st)
	}
	if n := k.lookup(2, nodeID(p), "z", x); n != other {
		t.Errorf("the thread is told of %#x, want %#x", n, other)
	}

	a, b := k.mkdir(dsm.RootIno, "a"), dsm.Ino(0)
	b = k.mkdir(a, "b")
	k.lookup(6, rootNode, "a", a)
	k.lookup(6, nodeID(a), "b", b)
	k.move(a, "b", dsm.RootIno, "b")
	k.move(dsm.RootIno, "a", b, "a")
	if n := k.lookup(7, nodeID(b), "a", a); n == nodeID(a) {
		t.Error("the kernel is told to move a directory into itself")
	}
}

// TestMovedDirectoryInACallThatLooksOnce: such a call would fail where the kernel cannot move the directory.
func TestMovedDirectoryInACallThatLooksOnce(t *testing.T) {
	k := newKernel(t)
	p, q, x := k.known()
	k.move(p, "x", q, "x")
	k.once = true
	if n := k.lookup(2, nodeID(q), "x", x); n == nodeID(x) {
		t.Error("the thread is told of what the kernel may be unable to move")
	}
}

// TestMovedDirectoryAfterStale: the kernel walks a path twice for one call, not for each reason.
func TestMovedDirectoryAfterStale(t *testing.T) {
	k := newKernel(t)
	p, q, x := k.known()
	k.move(p, "x", q, "x")
	gone := errs.E(errs.NotExist, "x", "")
	if got := k.b.walkStatus(2, gone); got != fuse.Status(syscall.ESTALE) {
		t.Fatal(got)
	}
	if n := k.lookup(2, nodeID(q), "x", x); n == nodeID(x) {
		t.Error("in its second walk the thread is told of what the kernel may be unable to move")
	}
	k.lookup(3, nodeID(q), "x", x)
	k.move(q, "x", p, "x")
	if n := k.lookup(3, nodeID(p), "x", x); n == nodeID(x) {
		t.Error("the thread is told of the number that is given up")
	}
	k.lookup(4, nodeID(p), "x", x)
	k.b.retries.set(5)
	if got := k.b.walkStatus(5, gone); got != fuse.ENOENT {
		t.Errorf("what ends the second walk: %v", got)
	}
}

// lockedCache is a kernel in which the lock of every directory is held until free is closed.
type lockedCache struct {
	slowCache
	free chan struct{}
	told chan place
}

func (c lockedCache) EntryNotify(dir uint64, name string) fuse.Status {
	c.told <- place{nodeID(dir), name}
	<-c.free
	return fuse.OK
}

// TestMovedDirectoryIsToldInOrder: as long as the kernel may not have taken in where a directory was, nobody is told where it is.
func TestMovedDirectoryIsToldInOrder(t *testing.T) {
	k := newKernel(t)
	c := lockedCache{free: make(chan struct{}), told: make(chan place, 1)}
	k.b.notify.server = c
	k.b.aliases.limit = aliasLimit
	p, q, x := k.known()
	k.move(p, "x", p, "y")
	if n := k.lookup(1, nodeID(p), "y", x); n != nodeID(x) {
		t.Errorf("a directory that stays in its own is told as %#x", n)
	}
	k.move(p, "y", q, "x")
	in := header(opLookup, 2, nodeID(q))
	if st := k.b.Lookup(nil, &in, "x", new(fuse.EntryOut)); st != fuse.Status(syscall.ESTALE) {
		t.Errorf("the thread is answered %v before the kernel has taken in what another was told", st)
	}
	if got := <-c.told; got != (place{nodeID(p), "y"}) {
		t.Errorf("the kernel was told to forget %+v", got)
	}
	if n := k.lookup(2, nodeID(q), "x", x); n == nodeID(x) {
		t.Error("in its second walk the thread is told of it")
	}

	// The old name may be another directory's by now.
	y := k.mkdir(p, "z")
	k.lookup(3, nodeID(p), "z", y)
	k.move(p, "z", q, "z")
	z := k.mkdir(p, "z")
	k.lookup(3, nodeID(p), "z", z)
	in = header(opLookup, 4, nodeID(q))
	answer := make(chan fuse.Status)
	go func() { answer <- k.b.Lookup(nil, &in, "z", new(fuse.EntryOut)) }()
	if got := <-c.told; got.dir != nodeID(p) || got.name == "z" {
		t.Errorf("the kernel was told to forget %+v", got)
	}
	close(c.free)
	if st := <-answer; !st.Ok() && st != fuse.Status(syscall.ESTALE) {
		t.Error(st)
	}
	k.b.aliases.limit = time.Minute
	k.move(q, "z", dsm.RootIno, "z")
	if n := k.lookup(6, rootNode, "z", y); n != nodeID(y) {
		t.Errorf("when the kernel has taken it in, a thread is told %#x", n)
	}
}

// TestSecondWalkWaitsForTheChild also if what was moved is the first that the thread looks up.
func TestSecondWalkWaitsForTheChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(t)
		c := lockedCache{free: make(chan struct{}), told: make(chan place, 1)}
		k.b.notify.server = c
		k.b.aliases.limit = aliasLimit
		p, q, x := k.known()
		k.lookup(1, rootNode, "q", q)
		k.move(p, "x", q, "x")
		in := header(opLookup, 2, nodeID(q))
		if st := k.b.Lookup(nil, &in, "x", new(fuse.EntryOut)); st != fuse.Status(syscall.ESTALE) {
			t.Fatal(st)
		}
		looked := k.b.walks.begin(2)
		go func() { // the child
			<-time.After(50 * time.Millisecond)
			close(c.free)
			at := place{nodeID(q), "x"}
			told := k.b.aliases.tell(x, at, theChild)
			for told.leave != nil {
				<-told.leave.done
				told = k.b.aliases.tell(x, at, theChild)
			}
			k.b.aliases.settled(told.node, at)
			looked()
		}()
		if n := k.lookup(2, nodeID(q), "x", x); n != nodeID(x) {
			t.Errorf("in its second walk the thread is told of %#x, want %#x", n, x)
		}
		k.b.background.close()
	})
}

// TestRenameByAnOldName: a rename(2) moves what the kernel had by the old name, which may be another than what has it by now. The daemon
// cannot tell which.
func TestRenameByAnOldName(t *testing.T) {
	k := newKernel(t)
	p, q, to := k.mkdir(dsm.RootIno, "p"), k.mkdir(dsm.RootIno, "q"), k.mkdir(dsm.RootIno, "to")
	x, y := k.mkdir(p, "x"), k.mkdir(p, "y")
	for _, place := range []struct {
		name string
		ino  dsm.Ino
	}{{"x", x}, {"y", y}} {
		k.lookup(1, nodeID(p), place.name, place.ino) // a rename begins
		k.move(p, place.name, q, place.name)
	}
	file, err := k.names.Create(t.Context(), p, "x", dsm.Inode{Kind: dsm.KindFile}, false)
	if err != nil {
		t.Fatal(err)
	}
	k.lookup(2, nodeID(p), "x", file.Ino)
	z := k.mkdir(p, "z")
	k.lookup(2, nodeID(p), "z", z)
	k.move(p, "z", p, "y")
	if n := k.lookup(2, nodeID(p), "y", z); n != nodeID(z) {
		t.Errorf("a directory in place of another is told as %#x", n)
	}
	for _, name := range []string{"x", "y"} {
		rename := fuse.RenameIn{InHeader: header(45, 1, nodeID(p)), Newdir: uint64(to)}
		if st := k.b.Rename(nil, &rename, name, name); !st.Ok() {
			t.Fatal(st)
		}
	}
	k.move(q, "x", to, "a")
	k.move(to, "y", to, "z")
	k.once = true
	for name, ino := range map[string]dsm.Ino{"a": x, "z": z} {
		if n := k.lookup(3, nodeID(to), name, ino); n == nodeID(ino) {
			t.Errorf("%s: the thread is told of what the kernel may be unable to move", name)
		}
	}
}

// TestForgottenNumber: a number is free again when the kernel has forgotten all it was told of it.
func TestForgottenNumber(t *testing.T) {
	k := newKernel(t)
	p, q, x := k.known()
	k.lookup(1, nodeID(p), "x", x)
	k.b.Forget(uint64(x), 1)
	k.move(p, "x", q, "x")
	k.lookup(2, nodeID(q), "x", x)
	other := k.lookup(2, nodeID(q), "x", x)
	if other == nodeID(x) {
		t.Fatal("the kernel has forgotten only one of two")
	}
	k.b.Forget(uint64(x), 2)
	k.b.Forget(uint64(other), 1)
	k.b.aliases.mu.Lock()
	defer k.b.aliases.mu.Unlock()
	if m := &k.b.aliases.mu; len(m.of)+len(m.at)+len(m.now)+len(m.past) != 0 {
		t.Errorf("remembered of a directory that the kernel has forgotten: %v %v %v %v", m.of, m.at, m.now, m.past)
	}
}

// TestStaleIsToldOnce in a walk, however long it takes.
func TestStaleIsToldOnce(t *testing.T) {
	b := newBridge(Config{})
	gone := errs.E(errs.NotExist, "x", "")
	stale := fuse.Status(syscall.ESTALE)
	for i, want := range []fuse.Status{stale, fuse.ENOENT, stale} {
		if got := b.walkStatus(1, gone); got != want {
			t.Errorf("open %d: %v, want %v", i, got, want)
		}
	}
	if got := b.walkStatus(2, gone); got != stale {
		t.Errorf("other thread: %v", got)
	}
	for _, op := range inWalks {
		in := header(op, 1, 1)
		b.begin(nil, &in).end()
	}
	if got := b.walkStatus(1, gone); got != fuse.ENOENT {
		t.Errorf("in the second walk: %v", got)
	}
	b.walkStatus(1, gone)
	const fsync = 20
	in := header(fsync, 1, 1)
	b.begin(nil, &in).end()
	if got := b.walkStatus(1, gone); got != stale {
		t.Errorf("in a walk of another call: %v", got)
	}
	if got := b.walkStatus(1, errs.E(errs.NoSpace, "x", "")); got != fuse.Status(syscall.ENOSPC) {
		t.Errorf("other error: %v", got)
	}
}

// TestRetriesOfThreadsThatEnded are not kept, and threads that live are not looked at each time.
func TestRetriesOfThreadsThatEnded(t *testing.T) {
	var r retries
	r.init()
	looks := 0
	r.alive = func(tid uint32) bool {
		looks++
		return tid < 1000
	}
	const threads = 10_000
	for i := range uint32(1000) {
		r.set(i)
	}
	for i := range uint32(threads) {
		r.set(1000 + i)
		r.set(i % 1000)
	}
	r.mu.Lock()
	n := len(r.mu.of)
	r.mu.Unlock()
	if n > 2*1000 || !r.has(999) {
		t.Errorf("%d threads are remembered; one that lives: %v", n, r.has(999))
	}
	if looks > 4*threads {
		t.Errorf("%d looks at threads, for %d threads", looks, threads)
	}
	if here := uint32(os.Getpid()); !alive(here) || alive(1<<30) { // above any thread's number
		t.Error("whether a thread lives is wrong")
	}
}

// hastyCache is a kernel that does not know any name, and says so without the lock of the directory.
type hastyCache struct{ slowCache }

func (hastyCache) EntryNotify(uint64, string) fuse.Status { return fuse.ENOENT }

// TestUnknownNameTellsNothing: a kernel that may look for a name before it takes the lock of the directory has not shown that
// it has taken in all when it does not know the name.
func TestUnknownNameTellsNothing(t *testing.T) {
	for release, waits := range map[string]bool{
		"6.18.44-fc": true, "5.15.0": true, "6.1": true, "6.19.0-rc1": false, "6.20.1": false, "7.0.0": false, "": false, "x.y": false, "6": false,
	} {
		if locksForUnknownNames(release) != waits {
			t.Errorf("release %q: want %v", release, waits)
		}
	}
	for _, locks := range []bool{true, false} {
		k := newKernel(t)
		k.b.notify.server, k.b.notify.locksFirst = hastyCache{}, locks
		p, q, x := k.known()
		k.move(p, "x", q, "x")
		in := header(opLookup, 2, nodeID(q))
		st := k.b.Lookup(nil, &in, "x", new(fuse.EntryOut))
		if locks && !st.Ok() || !locks && st != fuse.Status(syscall.ESTALE) {
			t.Errorf("has the lock first: %v, but the thread is answered %v", locks, st)
		}
		if locks {
			continue
		}
		if n := k.lookup(2, nodeID(q), "x", x); n == nodeID(x) {
			t.Error("in its second walk the thread is told of a directory that the kernel may have elsewhere")
		}
	}
}

// TestDirectoryOfControlFilesIsAnother: a program has a directory open, and closes the one in /.dsm/areas that belongs to it.
func TestDirectoryOfControlFilesIsAnother(t *testing.T) {
	k := newKernel(t)
	d := k.mkdir(dsm.RootIno, "d")
	node := uint64(dsm.RootIno)
	for _, name := range []string{control.Name, "areas", "d"} {
		var out fuse.EntryOut
		in := header(opLookup, 8, nodeID(node))
		if st := k.b.Lookup(nil, &in, name, &out); !st.Ok() {
			t.Fatalf("%s: %v", name, st)
		}
		node = out.NodeId
	}
	if _, ok := control.Of(node); !ok || inoOf(node) != d {
		t.Fatalf("%#x is not the number of a control directory of %d", node, d)
	}
	open := func(node uint64) *fuse.ReleaseIn {
		var out fuse.OpenOut
		in := header(opOpendir, 8, nodeID(node))
		if st := k.b.OpenDir(nil, &fuse.OpenIn{InHeader: in}, &out); !st.Ok() {
			t.Fatalf("open %#x: %v", node, st)
		}
		return &fuse.ReleaseIn{InHeader: in, Fh: out.Fh}
	}
	dir := open(uint64(d))
	k.b.ReleaseDir(open(node))
	if _, ok := k.b.dirs.removed(d); !ok {
		t.Error("the directory counts as closed")
	}
	k.b.ReleaseDir(dir)
	if _, ok := k.b.dirs.removed(d); ok {
		t.Error("the directory counts as open")
	}
}
