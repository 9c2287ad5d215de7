package fs

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// st_blocks is how many pages of a file have data, the same on every node. The homes know; the catalog has what a node
// was told last, so that ls -l asks nobody. Who publishes so that the number may change has it counted: soon after, or
// when the file is closed, together with the time of modification.

// countAfter is how long a change may wait to be counted, so that a program that syncs often has it counted seldom.
const countAfter = 100 * time.Millisecond

// countSoon has the pages counted, if their number may have changed.
func (b *bridge) countSoon(a *openArea) {
	if a.current().Recounts() {
		a.uncounted.Store(true)
	}
	if !a.uncounted.Load() || !a.counting.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(countAfter, func() {
		b.background.run(func() {
			a.counting.Store(false)
			ctx, cancel := b.lasting()
			defer cancel()
			b.counted(ctx, a)
		})
	})
}

// counted enters the number of pages in the catalog, if a change of it was not counted yet.
func (b *bridge) counted(ctx context.Context, a *openArea) {
	n := b.pagesNow(ctx, a)
	if n == nil {
		return
	}
	i, err := b.cfg.Names.Getattr(ctx, dsm.Ino(a.id))
	if err == nil && i.Nlink > 0 && i.Pages != *n {
		_, err = b.cfg.Names.SetAttr(ctx, dsm.Ino(a.id), dsm.SetAttr{Pages: n})
	}
	if err != nil {
		b.log.Debug("count the pages of a file", "area", a.id, "err", err)
	}
}

// pagesNow asks the homes how many pages have data, if that may have changed; else it returns nil.
func (b *bridge) pagesNow(ctx context.Context, a *openArea) *int64 {
	if area := a.current(); area.Recounts() {
		a.uncounted.Store(true)
	}
	if !a.uncounted.Swap(false) {
		return nil
	}
	n, err := b.cfg.Areas.CountPages(ctx, a.id)
	if err != nil {
		a.uncounted.Store(true) // next time
		b.log.Debug("count the pages of a file", "area", a.id, "err", err)
		return nil
	}
	return &n
}
