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

// toldCache counts what the kernel is told.
type toldCache struct {
	noKernel
	told *int
}

func (c toldCache) InodeNotify(uint64, int64, int64) fuse.Status {
	*c.told++
	return fuse.ENOENT
}

// TestFirstOpenDropsPages: the answer to the first open has the kernel drop what it kept, and so has that to the next, which it may take before, until
// it has taken one. It is not told to drop them, which would drop the attributes too.
func TestFirstOpenDropsPages(t *testing.T) {
	names, told := newFakeNames(), 0
	b := newBridge(Config{Names: names, Areas: newFakeAreas(names), FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	defer b.background.close()
	defer b.releases.close()
	b.notify.server = toldCache{told: &told}
	i, err := names.Create(t.Context(), dsm.RootIno, "f", dsm.Inode{Kind: dsm.KindFile, Perm: 0o600}, true)
	if err != nil {
		t.Fatal(err)
	}
	var opened []*openArea
	open := func(claimed *dsm.Inode, want bool) (fh uint64) {
		t.Helper()
		a, drops, err := b.opens.open(t.Context(), i.Ino, false, claimed)
		if err != nil {
			t.Fatal(err)
		}
		if drops != want {
			t.Errorf("it has the kernel drop pages: %v", drops)
		}
		opened = append(opened, a)
		return b.handles.add(newFileHandle(a, false))
	}
	closeAll := func() {
		for _, a := range opened {
			b.opens.release(a, false)
		}
		opened = nil
	}
	for _, claimed := range []*dsm.Inode{&i, nil} {
		open(claimed, true)
		fh := open(nil, true)
		b.handles.get(fh) // a request by it
		open(nil, false)
		closeAll()
	}
	b.resuming.Store(true)
	open(nil, false) // programs have it open
	closeAll()
	if told > 0 {
		t.Errorf("the kernel was told to drop something %d times", told)
	}
}

// unlinkingNames is a catalog whose files another node removes: one when it is asked for the name, and one before it is truncated.
type unlinkingNames struct {
	*fakeNames
	lookups, truncates int // how often that is still to happen
	t                  *testing.T
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
	if n.truncates > 0 {
		n.truncates--
		n.remove()
	}
	return n.fakeNames.SetAttr(ctx, ino, ch)
}

// TestCreateOfAFileThatIsRemoved: open(2) with O_CREAT finds a file that another node removes then: it makes one. If the other makes a file
// again, that one is opened.
func TestCreateOfAFileThatIsRemoved(t *testing.T) {
	for _, c := range []struct{ lookups, truncates, creates int }{{1, 0, 2}, {0, 1, 2}, {1, 1, 3}, {5, 0, 6}} {
		names := &unlinkingNames{fakeNames: newFakeNames(), lookups: c.lookups, truncates: c.truncates, t: t}
		b := newClaimsBridge(names, names.fakeNames, time.Minute)
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
