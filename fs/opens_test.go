package fs

import (
	"log/slog"
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
