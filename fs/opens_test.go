package fs

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// droppingCache counts how often all pages of a file are dropped.
type droppingCache struct {
	noKernel
	dropped map[uint64]int
}

func (c droppingCache) InodeNotify(node uint64, off, length int64) fuse.Status {
	if off == 0 && length == 0 {
		c.dropped[node]++
	}
	return fuse.ENOENT
}

// TestFirstOpenDropsPages: the kernel has dropped what it kept before the first open is answered, or the second, whose answer it may take
// before, would keep that.
func TestFirstOpenDropsPages(t *testing.T) {
	names := newFakeNames()
	cache := droppingCache{dropped: make(map[uint64]int)}
	b := newBridge(Config{Names: names, Areas: newFakeAreas(names), FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	defer b.background.close()
	defer b.releases.close()
	b.notify.server = cache
	i, err := names.Create(t.Context(), dsm.RootIno, "f", dsm.Inode{Kind: dsm.KindFile, Perm: 0o600}, true)
	if err != nil {
		t.Fatal(err)
	}
	var opened []*openArea
	open := func(held *dsm.Inode, want int) {
		t.Helper()
		a, _, err := b.opens.open(t.Context(), i.Ino, false, held)
		if err != nil {
			t.Fatal(err)
		}
		if n := cache.dropped[uint64(i.Ino)]; n != want {
			t.Errorf("the pages were dropped %d times, want %d", n, want)
		}
		opened = append(opened, a)
	}
	closeAll := func() {
		for _, a := range opened {
			b.opens.release(a, false)
		}
		opened = nil
	}
	open(&i, 0) // made just now: there are none
	closeAll()
	open(nil, 1)
	open(nil, 1)
	closeAll()
	b.resuming.Store(true)
	open(nil, 1) // programs have it open
	closeAll()
}

// unlinkingNames is a catalog whose files another node removes: one when it is asked for the name, and one before it is truncated.
type unlinkingNames struct {
	*fakeNames
	lookups, cuts int // how often that is still to happen
	t             *testing.T
}

// make makes the file as another node does.
func (n *unlinkingNames) make() {
	if i, err := n.fakeNames.Create(n.t.Context(), dsm.RootIno, "f", dsm.Inode{Kind: dsm.KindFile, Perm: 0o600, Size: 1}, false); err != nil {
		n.t.Errorf("%v: %v", i, err)
	}
}

func (n *unlinkingNames) remove() {
	if err := n.Unlink(n.t.Context(), dsm.RootIno, "f"); err != nil {
		n.t.Error(err)
	}
}

func (n *unlinkingNames) Lookup(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error) {
	if n.lookups > 0 {
		n.lookups--
		n.remove()
		defer n.make()
	}
	return n.fakeNames.Lookup(ctx, dir, name)
}

func (n *unlinkingNames) SetAttr(ctx context.Context, ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error) {
	if n.cuts > 0 {
		n.cuts--
		n.remove()
	}
	return n.fakeNames.SetAttr(ctx, ino, ch)
}

// TestCreateOfAFileThatIsRemoved: open(2) with O_CREAT finds a file that another node removes then: it makes one. If the other makes a file
// again, that one is opened.
func TestCreateOfAFileThatIsRemoved(t *testing.T) {
	for _, c := range []struct{ lookups, cuts, creates int }{{1, 0, 2}, {0, 1, 2}, {1, 1, 3}, {5, 0, 6}} {
		names := &unlinkingNames{fakeNames: newFakeNames(), lookups: c.lookups, cuts: c.cuts, t: t}
		b := newHoldsBridge(names, names.fakeNames, time.Minute)
		names.make()
		before := names.count("Create") + c.lookups // those of the other
		if st := b.Create(nil, createIn(syscall.O_RDWR|syscall.O_TRUNC), "f", new(fuse.CreateOut)); !st.Ok() {
			t.Errorf("%+v: %v", c, st)
		}
		if n := names.count("Create") - before; n != c.creates {
			t.Errorf("%+v: created %d times", c, n)
		}
		b.releases.close()
		b.background.close()
	}
}
