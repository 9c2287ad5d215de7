package coherence

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages"
)

// TestHeldStoresAreThereForTheNextDaemon leaves nodes as a kill does: with stores that are published and such that are not, of areas
// that are open and such whose replica is gone. The next node has the bytes of all.
func TestHeldStoresAreThereForTheNextDaemon(t *testing.T) {
	const size = 3*dsm.ExtentSize/2 + 77
	ctx := t.Context()
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	alone := oneHome()
	alone.Members = alone.Members[:1]
	view := &slowPair{view: alone, size: size}
	want := make([]byte, size)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for round := range 6 {
		fd, err := unix.Dup(m.FD())
		must(err)
		m, err = hold.Adopt(fd)
		must(err)
		store, err := pages.NewKeep(m, nil)
		must(err)
		n := New(Config{Self: 1, View: view, Sender: nowhere{}, Log: slog.New(slog.DiscardHandler), Store: store, Linger: time.Hour})
		must(n.Resume(ctx, true, false))
		for id := dsm.AreaID(1); id <= 2; id++ {
			a, err := n.Open(ctx, id, true)
			must(err)
			got := make([]byte, size)
			if k, err := a.ReadAt(ctx, got, 0); err != nil || k != size || !bytes.Equal(got, want) {
				t.Fatalf("round %d: area %d: %d bytes, %v, as they were: %t", round, id, k, err, bytes.Equal(got, want))
			}
		}
		store1 := func(off int64, b byte) {
			want[off] = b
			for id := dsm.AreaID(1); id <= 2; id++ {
				must(n.known(id).WriteAt(ctx, []byte{b}, off))
			}
		}
		store1(int64(round)*40_000, byte(round+1))
		for id := dsm.AreaID(1); id <= 2; id++ {
			must(n.known(id).Publish(ctx))
		}
		store1(size-1, byte(round+1))
		store1(dsm.ExtentSize+int64(round), byte(round+1))
		if round%2 == 1 { // the replica goes, with what is not published
			a := n.known(2)
			a.Close(true)
			a.expire() // it publishes
			a.expire()
			if a.mu.replica.subscribed {
				t.Fatal("the replica is still there")
			}
		}
	}
}

// TestAnotherNodeIsThereWhenOneResumesAlone: another node has joined just after the catalog has found that nobody else is a member. The bytes of a file that no program has open
// are still at this node, and nowhere else.
func TestAnotherNodeIsThereWhenOneResumesAlone(t *testing.T) {
	m, err := hold.Create()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	store, err := pages.NewKeep(m, nil)
	must(err)
	mem, err := store.NewHeldArea(1, dsm.ExtentSize)
	must(err)
	mem.BecomeHome(0)
	mem.Home(3)[0] = 7
	ctx := t.Context()
	n := New(Config{Self: 1, View: &slowPair{view: oneHome(), size: dsm.ExtentSize}, Sender: nowhere{}, Log: slog.New(slog.DiscardHandler), Store: store, Linger: time.Hour})
	must(n.Resume(ctx, true, false))
	a, err := n.Open(ctx, 1, false)
	must(err)
	var got [1]byte
	if _, err := a.ReadAt(ctx, got[:], 3*dsm.PageSize); err != nil || got[0] != 7 {
		t.Errorf("read %d, %v", got[0], err)
	}
}
