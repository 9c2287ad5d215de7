package fs

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// TestLaterCountStays: what is counted while an older number is under way to the catalog is entered after it, also if
// the catalog has that number still.
func TestLaterCountStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := newFakeNames()
		areas := newFakeAreas(names)
		slow := &slowCounts{names}
		b := newBridge(Config{Names: slow, Areas: areas, FaultTimeout: time.Minute})
		in, err := names.Create(t.Context(), dsm.RootIno, "f", dsm.Inode{Kind: dsm.KindFile, Size: 2 * dsm.PageSize}, true)
		if err != nil {
			t.Fatal(err)
		}
		a := newOpenArea(in.Area())
		if a.mu.area, err = areas.Open(t.Context(), a.id, true); err != nil {
			t.Fatal(err)
		}
		areas.pages.Store(1)
		b.counted(t.Context(), a)
		time.Sleep(gatherCounts + countsTake/2)
		areas.pages.Store(0)
		b.counted(t.Context(), a)
		time.Sleep(time.Minute)
		if in, err = names.Getattr(t.Context(), in.Ino); err != nil || in.Pages != 0 {
			t.Errorf("%d pages, %v", in.Pages, err)
		}
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
