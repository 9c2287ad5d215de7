package fs

import (
	"log/slog"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
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
	w.b = newBridge(Config{Names: lockNames{names, w.node}, Areas: w.areas, FaultTimeout: time.Minute, Locks: w.node, Log: slog.New(slog.DiscardHandler)})
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
