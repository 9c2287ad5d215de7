package fs

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestCountsGoTogether: the pages of many files are entered in few changes of the catalog.
func TestCountsGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := newFakeNames()
		areas := newFakeAreas(names)
		areas.pages.Store(1)
		b := newBridge(Config{Names: names, Areas: areas, FaultTimeout: time.Minute})
		const files = 500
		for i := range files {
			in, err := names.Create(t.Context(), dsm.RootIno, fmt.Sprint(i), dsm.Inode{Kind: dsm.KindFile, Size: 100}, true)
			if err != nil {
				t.Fatal(err)
			}
			a := newOpenArea(dsm.AreaID(in.Ino))
			if a.mu.area, err = areas.Open(t.Context(), a.id, true); err != nil {
				t.Fatal(err)
			}
			b.countSoon(a)
		}
		time.Sleep(time.Second)
		b.background.close()
		b.releases.close()
		for ino, in := range names.nodes {
			if in.Kind == dsm.KindFile && in.Pages != 1 {
				t.Errorf("file %d has %d pages", ino, in.Pages)
			}
		}
		if n := names.count("SetAttr") + names.count("CountPages"); n > 2 {
			t.Errorf("%d changes for %d files", n, files)
		}
	})
}

// TestToldPagesAreEnteredAtOnce: what the ack of a publish said is entered, of many files together, without asking
// a home. If it changes soon after it waits as long as any other.
func TestToldPagesAreEnteredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := newFakeNames()
		areas := newFakeAreas(names)
		areas.pages.Store(1)
		areas.told.Store(true)
		b := newBridge(Config{Names: names, Areas: areas, FaultTimeout: time.Minute})
		const files = 100
		var last *openArea
		for i := range files {
			in, err := names.Create(t.Context(), dsm.RootIno, fmt.Sprint(i), dsm.Inode{Kind: dsm.KindFile, Size: 100}, true)
			if err != nil {
				t.Fatal(err)
			}
			last = newOpenArea(dsm.AreaID(in.Ino))
			if last.mu.area, err = areas.Open(t.Context(), last.id, true); err != nil {
				t.Fatal(err)
			}
			b.countSoon(last)
		}
		pages := func() int64 {
			in, err := names.Getattr(t.Context(), dsm.Ino(last.id))
			if err != nil {
				t.Fatal(err)
			}
			return in.Pages
		}
		time.Sleep(gatherCounts * 3 / 2)
		if n := pages(); n != 1 || names.count("CountPages") != 1 {
			t.Errorf("after a moment the last of %d files has %d pages, by %d changes", files, n, names.count("CountPages"))
		}
		areas.pages.Store(2)
		b.countSoon(last)
		time.Sleep(gatherCounts * 3 / 2)
		if n := pages(); n != 1 {
			t.Errorf("counted again at once: %d pages", n)
		}
		time.Sleep(countAfter)
		b.background.close()
		b.releases.close()
		if n := pages(); n != 2 {
			t.Errorf("%d pages, want 2", n)
		}
		if n := areas.asked.Load(); n != 1 {
			t.Errorf("homes were asked %d times, want once", n)
		}
	})
}

// TestLaterCountStays: what is counted while an older number is under way to the catalog is entered after it, also if
// the catalog has that number still.
func TestLaterCountStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := newFakeNames()
		b, a := countingBy(t, &slowCounts{names}, names, "f")
		areas := b.cfg.Areas.(*fakeAreas)
		b.counted(t.Context(), a)
		time.Sleep(gatherCounts + countsTake/2)
		areas.pages.Store(0)
		b.counted(t.Context(), a)
		time.Sleep(time.Minute)
		if in, err := names.Getattr(t.Context(), dsm.Ino(a.id)); err != nil || in.Pages != 0 {
			t.Errorf("%d pages, %v", in.Pages, err)
		}
		b.releases.close()
	})
}

// TestOlderCountIsPutRight: another node publishes, and enters its newer number, while an older one of this node is under way to the
// catalog. In the end the catalog has the newer one, also if this node had been told its own with the ack of a publish.
func TestOlderCountIsPutRight(t *testing.T) {
	for _, told := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			names := newFakeNames()
			b, a := countingBy(t, &slowCounts{names}, names, "f")
			areas, ino := b.cfg.Areas.(*fakeAreas), dsm.Ino(a.id)
			areas.told.Store(told)
			b.countSoon(a)
			time.Sleep(countAfter + gatherCounts + countsTake/2)
			areas.pages.Store(2)
			areas.told.Store(false)
			if err := names.CountPages(t.Context(), dsm.PageCount{Ino: ino, Pages: 2}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if in, err := names.Getattr(t.Context(), ino); err != nil || in.Pages != 2 {
				t.Errorf("%d pages, %v; want 2", in.Pages, err)
			}
			b.releases.close()
		})
	}
}

// TestRecountsOfOtherNodesStores: the node that stored once changes the catalog seldom while another one goes on storing.
func TestRecountsOfOtherNodesStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, names, a := counting(t, "f")
		areas := b.cfg.Areas.(*fakeAreas)
		b.countSoon(a)
		areas.quiet.Store(true)
		for range 6000 {
			areas.pages.Add(1)
			time.Sleep(10 * time.Millisecond)
		}
		if n := names.count("CountPages"); n > 20 {
			t.Errorf("%d changes of the catalog in a minute", n)
		}
		time.Sleep(2 * maxRecount)
		if in, err := names.Getattr(t.Context(), dsm.Ino(a.id)); err != nil || in.Pages != areas.pages.Load() {
			t.Errorf("%d pages in the end, %v; want %d", in.Pages, err, areas.pages.Load())
		}
		b.background.close()
		b.releases.close()
	})
}

// slowCounts is a catalog that takes a second to enter counts.
type slowCounts struct{ *fakeNames }

const countsTake = time.Second

func (s *slowCounts) CountPages(ctx context.Context, counts ...dsm.PageCount) error {
	<-time.After(countsTake)
	return s.fakeNames.CountPages(ctx, counts...)
}

// counting returns a bridge and a file of the name that a program has open, of which a page is to be counted.
func counting(t *testing.T, name string) (*bridge, *fakeNames, *openArea) {
	names := newFakeNames()
	b, a := countingBy(t, names, names, name)
	return b, names, a
}

// countingBy is counting with a catalog that is called in place of names.
func countingBy(t *testing.T, by Names, names *fakeNames, name string) (*bridge, *openArea) {
	areas := newFakeAreas(names)
	areas.pages.Store(1)
	b := newBridge(Config{Names: by, Areas: areas, FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	in, err := names.Create(t.Context(), dsm.RootIno, name, dsm.Inode{Kind: dsm.KindFile, Size: 2 * dsm.PageSize}, true)
	if err != nil {
		t.Fatal(err)
	}
	a, err := b.opens.attach(t.Context(), in.Ino, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b, a
}

// TestUnmountCounts: the pages of the last change are counted and entered before an unmount is done.
func TestUnmountCounts(t *testing.T) {
	for _, before := range []time.Duration{0, countAfter - time.Nanosecond, countAfter, countAfter + time.Nanosecond} {
		synctest.Test(t, func(t *testing.T) {
			b, names, a := counting(t, "f")
			b.countSoon(a)
			time.Sleep(before)
			f := &FS{b: b}
			if err := f.Unmount(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			if in, err := names.Getattr(t.Context(), dsm.Ino(a.id)); err != nil || in.Pages != 1 {
				t.Errorf("%v after the change: %d pages, %v", before, in.Pages, err)
			}
		})
	}
}

// TestCountOfARemovedFile: fstat tells the blocks of a file that has no name any more, as long as a program has it open.
func TestCountOfARemovedFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, names, a := counting(t, "f")
		if err := names.Unlink(t.Context(), dsm.RootIno, "f"); err != nil {
			t.Fatal(err)
		}
		blocks := func() uint64 {
			var out fuse.AttrOut
			in := header(opGetattr, 1, nodeID(a.id))
			if st := b.GetAttr(nil, &fuse.GetAttrIn{InHeader: in}, &out); !st.Ok() {
				t.Fatal(st)
			}
			return out.Blocks
		}
		b.countSoon(a)
		time.Sleep(time.Second)
		if got := blocks(); got != dsm.PageSize/blockSize {
			t.Errorf("%d blocks", got)
		}
		if err := (&FS{b: b}).Unmount(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	})
}
