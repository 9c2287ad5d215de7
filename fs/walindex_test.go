package fs

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/locks"
)

// walFiles are the files of a SQLite database in WAL mode, all of them open.
type walFiles struct {
	b              *bridge
	node           *locks.Node
	db, log, index *openArea
	areas          *fakeAreas
}

func openWAL(t *testing.T) *walFiles {
	names := newFakeNames()
	w := &walFiles{node: locks.NewNode(locks.Config{Self: 1, Cluster: noCommands{}}), areas: newFakeAreas(names)}
	t.Cleanup(w.node.Close)
	w.b = newBridge(Config{Names: lockNames{names, w.node, false}, Areas: w.areas, FaultTimeout: time.Minute, Locks: w.node, Log: slog.New(slog.DiscardHandler)})
	for suffix, a := range map[string]**openArea{"": &w.db, walSuffix: &w.log, walIndexSuffix: &w.index} {
		i, err := names.Create(t.Context(), dsm.RootIno, "db"+suffix, dsm.Inode{Kind: dsm.KindFile, Perm: 0o600, Size: dsm.PageSize}, false)
		if err != nil {
			t.Fatal(err)
		}
		if *a, _, err = w.b.opens.open(t.Context(), i.Ino, true, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.b.opens.release(*a, true) })
		w.b.walIndexes.told(i, place{rootNode, "db" + suffix})
	}
	if err := w.areas.area(w.db.id).WriteAt(t.Context(), []byte(sqliteMagic), 0); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestWALIndexAcquiresTheLog: also where the lock of the index came with its open, for that has acquired the index only.
func TestWALIndexAcquiresTheLog(t *testing.T) {
	w := openWAL(t)
	before := map[*openArea]int{}
	for _, a := range []*openArea{w.db, w.log} {
		before[a] = w.areas.area(a.id).state().acquires
	}
	leave, err := w.b.walIndexes.enter(t.Context(), 1, true, w.index)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	for a, n := range before {
		if got := w.areas.area(a.id).state().acquires; got != n+1 {
			t.Errorf("area %d is acquired %d times, want once", a.id, got-n)
		}
	}
}

// TestRefusedWALIndexIsNotRead: SQLite that may not write the index opens it for reading next. It must not find it free then.
func TestRefusedWALIndexIsNotRead(t *testing.T) {
	w := openWAL(t)
	other := locks.Lock{Owner: w.node.Owner(5, true), Type: locks.Write, Last: locks.End}
	if err := w.node.Set(t.Context(), dsm.Ino(w.index.id), other, false, nil); err != nil {
		t.Fatal(err)
	}
	const thread, another = 7, 8
	enter := func(tid uint32, write bool) error {
		leave, err := w.b.walIndexes.enter(t.Context(), tid, write, w.index)
		if err == nil {
			leave()
		}
		return err
	}
	if err := enter(thread, true); !errs.Is(err, errs.Busy) {
		t.Fatalf("%v, want that it is in use", err)
	}
	if err := w.node.Release(t.Context(), dsm.Ino(w.index.id), other.Owner); err != nil {
		t.Fatal(err)
	}
	if err := enter(another, false); err != nil {
		t.Error("another thread: ", err)
	}
	if err := enter(thread, false); !errs.Is(err, errs.Busy) {
		t.Errorf("its next open, for reading: %v, want that it was in use", err)
	}
	if err := enter(thread, false); err != nil {
		t.Error("its open after that: ", err)
	}
}

// TestForgottenWALIndex: the kernel may say that it has forgotten a file after it has been told of it once more.
func TestForgottenWALIndex(t *testing.T) {
	w := openWAL(t)
	x, ino := &w.b.walIndexes, dsm.Ino(w.index.id)
	x.told(dsm.Inode{Ino: ino, Kind: dsm.KindFile}, place{rootNode, "db" + walIndexSuffix})
	for told := 2; told >= 0; told-- {
		leave, err := x.enter(t.Context(), 1, true, w.index)
		if err != nil {
			t.Fatal(err)
		}
		if known := leave != nil; known != (told > 0) {
			t.Errorf("told of %d times more than it has forgotten, it is an index: %v", told, known)
		}
		if leave != nil {
			leave()
		}
		w.b.Forget(uint64(ino), 1)
	}
}

// bookOf is a cluster whose book has a lock of this node.
type bookOf struct {
	noCommands
	ino  dsm.Ino
	lock locks.Lock
	gone chan locks.Lock
}

func (b bookOf) LockedFiles() []dsm.Ino                { return []dsm.Ino{b.ino} }
func (b bookOf) GrantedLocks(ino dsm.Ino) []locks.Lock { return []locks.Lock{b.lock} }
func (b bookOf) DelegatedLocks() []dsm.Ino             { return nil }
func (b bookOf) LockStanding(dsm.Ino) locks.Standing   { return locks.Standing{} }
func (b bookOf) AskLock(context.Context, dsm.Ino, locks.Request) error {
	b.gone <- b.lock
	return errs.E(errs.Invalid, "lock", "")
}
func (b bookOf) CancelLock(context.Context, dsm.Ino, uint64) error {
	return errs.E(errs.NotExist, "lock", "")
}

// TestWALIndexOutlivesTheDaemon: the next daemon has the index for the handles that programs have of it, and gives it up after the last.
func TestWALIndexOutlivesTheDaemon(t *testing.T) {
	w := openWAL(t)
	mem, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	ino := dsm.Ino(w.index.id)
	w.b.held.journal = mem.Files()
	open := func(b *bridge, a *openArea) uint64 {
		t.Helper()
		var out fuse.OpenOut
		if st := b.Open(nil, &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: uint64(a.id)}, Flags: uint32(os.O_RDWR)}, &out); !st.Ok() {
			t.Fatal(st)
		}
		return out.Fh
	}
	follow := func(daemon uint64) (*bridge, *locks.Node, chan locks.Lock) {
		t.Helper()
		book := bookOf{ino: ino, lock: w.b.walIndexes.lock(locks.Write), gone: make(chan locks.Lock, 10)}
		node := locks.NewNode(locks.Config{Self: 1, Cluster: book, Resuming: true, Patience: time.Minute})
		t.Cleanup(node.Close)
		b := newBridge(Config{Names: lockNames{w.b.cfg.Names.(lockNames).fakeNames, node, false}, Areas: w.areas, FaultTimeout: time.Minute, Locks: node, Log: w.b.log})
		b.held.journal = mem.Files()
		t.Cleanup(b.releases.close)
		if err := b.held.resume(daemon, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := node.Resumed(t.Context()); (err != nil) != (len(book.gone) > 0) {
			t.Fatal(err)
		}
		return b, node, book.gone
	}
	fhs := []uint64{open(w.b, w.index), open(w.b, w.index)}
	open(w.b, w.db)
	open(w.b, w.log)
	var last *bridge
	for daemon := range uint64(2) { // the second finds what the first has written anew
		b, node, gone := follow(daemon + 2)
		if len(gone) > 0 || !node.HasLocks(ino, indexOwner(b)) {
			t.Fatalf("daemon %d gives up the index", daemon+2)
		}
		if got := b.walIndexes.mu.open[ino]; got == nil || got.opens != len(fhs) || got.at != (place{rootNode, "db" + walIndexSuffix}) {
			t.Errorf("daemon %d has the index as %+v", daemon+2, got)
		}
		b.held.mu.Lock()
		err := b.held.compactLocked()
		b.held.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		last = b
	}
	for i, fh := range fhs {
		last.Release(nil, &fuse.ReleaseIn{Fh: fh})
		last.releases.settle(t.Context())
		if has := last.cfg.Locks.HasLocks(ino, indexOwner(last)); has != (i == 0) {
			t.Errorf("after close %d the node has the index: %v", i+1, has)
		}
	}
	if _, node, gone := follow(4); len(gone) == 0 || node.HasLocks(ino, indexOwner(last)) {
		t.Error("the daemon after that keeps the index")
	}
}

// indexOwner is the owner of the locks of indexes.
func indexOwner(b *bridge) locks.Owner { return b.walIndexes.lock(locks.Write).Owner }
