package fs

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// st_blocks is how many pages of a file have data, the same on every node. The homes know; the catalog has what a node
// was told last, so that ls -l asks nobody. Who publishes so that the number may change has it counted: soon after, or
// when the file is closed. Of a file of one extent the home says it with the ack of a publish, so nobody is asked.
//
// Two nodes may publish at the same time, and enter their numbers in the other order. So who has entered a number looks
// again afterwards: the last one to enter sees what all have published.

// countAfter is how long a change may wait to be counted, so that a program that syncs often has it counted seldom.
const countAfter = 100 * time.Millisecond

// countSoon has the pages counted, if their number may have changed.
func (b *bridge) countSoon(a *openArea) {
	if a.current().Recounts() {
		a.uncounted.Store(true)
		a.recounts.Store(0)
	}
	if !a.uncounted.Load() || b.countKnown(a) || !a.counting.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(countAfter, func() { b.countNow(a) })
}

// countNow counts in the background. An unmount waits for it.
func (b *bridge) countNow(a *openArea) {
	b.releases.run(func() {
		a.counting.Store(false)
		ctx, cancel := b.lasting()
		defer cancel()
		b.counted(ctx, a)
	})
}

// countRest counts what was to be counted later, because the filesystem is going away.
func (b *bridge) countRest() {
	for _, a := range b.opens.all(func(a *openArea) bool { return a.counting.Load() || a.recounting.Load() }) {
		b.countNow(a)
	}
}

// countKnown has the number of pages entered if it is known and was not counted a moment ago.
func (b *bridge) countKnown(a *openArea) bool {
	pages, known := a.current().Counted()
	now := time.Now().UnixNano()
	if !known || a.entering.Load() > 0 || time.Duration(now-a.counted.Load()) < countAfter || !a.uncounted.Swap(false) {
		return false
	}
	a.counted.Store(now)
	a.entering.Add(1)
	b.pages.add(dsm.Ino(a.id), a, pages)
	return true
}

// counted has the number of pages entered in the catalog, if a change of it was not counted yet.
func (b *bridge) counted(ctx context.Context, a *openArea) {
	a.entering.Add(1)
	n := b.pagesNow(ctx, a)
	if n == nil {
		a.entering.Add(-1)
		return
	}
	i, err := b.cfg.Names.Getattr(ctx, dsm.Ino(a.id))
	if err != nil {
		b.log.Debug("count the pages of a file", "area", a.id, "err", err)
	}
	unseen := i.Nlink == 0 && a.handles() == 0
	if err != nil || unseen || !b.pages.enter(i, a, *n) {
		a.entering.Add(-1)
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
	a.counted.Store(time.Now().UnixNano())
	n, err := b.cfg.Areas.CountPages(ctx, a.id)
	if err != nil {
		a.uncounted.Store(true) // next time
		b.log.Debug("count the pages of a file", "area", a.id, "err", err)
		return nil
	}
	return &n
}

// pageCounts enters in the catalog what was counted, of many files in one change: otherwise a program that writes small
// files one after the other would pay for one more change for each. An unmount waits for it, as for releases.
type pageCounts struct {
	b  *bridge
	mu struct {
		lockrank.Mutex
		counted map[dsm.Ino]pageCount // not entered yet
		running bool
	}
}

// pageCount is the number of pages of one area that is to be entered. It is what the last of so many counts came to.
type pageCount struct {
	area   *openArea
	pages  int64
	counts int32
}

const (
	// gatherCounts is how long counts are gathered.
	gatherCounts = 20 * time.Millisecond
	// maxCounts bounds how many are entered in one change.
	maxCounts = 1024
)

func (p *pageCounts) init(b *bridge) {
	p.b = b
	p.mu.Init("fs.pageCounts")
	p.mu.counted = make(map[dsm.Ino]pageCount)
}

// enter has the number of pages of a file entered soon, if it is not what the catalog has: i is the inode. An older
// number may be under way to the catalog, so while any is, this one follows it. It reports whether the number is to be
// entered; then a.entering goes down afterwards.
func (p *pageCounts) enter(i dsm.Inode, a *openArea, pages int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.running && i.Pages == pages {
		return false
	}
	p.addLocked(i.Ino, a, pages)
	return true
}

// add has the number of pages of a file entered soon, whatever the catalog has. a.entering goes down afterwards.
func (p *pageCounts) add(ino dsm.Ino, a *openArea, pages int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addLocked(ino, a, pages)
}

func (p *pageCounts) addLocked(ino dsm.Ino, a *openArea, pages int64) {
	p.mu.counted[ino] = pageCount{a, pages, p.mu.counted[ino].counts + 1}
	if !p.mu.running {
		p.mu.running = true
		p.b.releases.run(p.run)
	}
}

// run enters once what is gathered. As long as that is something there is another run.
func (p *pageCounts) run() {
	gather := time.NewTimer(gatherCounts)
	select {
	case <-p.b.life.Done():
	case <-gather.C:
	}
	gather.Stop()
	counts := p.take()
	if len(counts) == 0 {
		return
	}
	ctx, cancel := p.b.lasting()
	changes := make([]dsm.PageCount, len(counts))
	for k, c := range counts {
		changes[k] = dsm.PageCount{Ino: dsm.Ino(c.area.id), Pages: c.pages}
	}
	if err := p.b.cfg.Names.CountPages(ctx, changes...); err != nil {
		p.b.log.Debug("enter the pages of files", "files", len(counts), "err", err)
	}
	cancel()
	for _, c := range counts {
		c.area.entering.Add(-c.counts)
	}
	p.b.releases.run(func() { p.b.countedAgain(counts) })
	p.b.releases.run(p.run)
}

// countedAgain looks whether numbers that are in the catalog now are right still. Another node may have published meanwhile, and
// entered a newer number first. Of a number that the node knows without asking the data plane says when it changes.
func (b *bridge) countedAgain(counts []pageCount) {
	for _, c := range counts {
		if pages, known := c.area.current().Counted(); known && pages == c.pages {
			continue
		}
		ctx, cancel := b.lasting()
		pages, err := b.cfg.Areas.CountPages(ctx, c.area.id)
		cancel()
		if err == nil && pages == c.pages {
			c.area.recounts.Store(0)
			continue
		}
		if c.area.uncounted.Store(true); err == nil {
			b.recount(c.area)
		}
	}
}

// maxRecount bounds how long a change that other nodes made waits to be counted here.
const maxRecount = 5 * time.Second

// recount has the pages counted once more. The node that goes on publishing counts as well, so this node does
// so twice as late each time until it publishes something itself.
func (b *bridge) recount(a *openArea) {
	if a.current().Recounts() {
		a.recounts.Store(0)
	}
	n := a.recounts.Add(1)
	if n == 1 {
		b.countSoon(a)
		return
	}
	if !a.recounting.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(min(countAfter<<min(n-1, 10), maxRecount), func() {
		a.recounting.Store(false)
		b.countSoon(a)
	})
}

// take returns what is to be entered next. If there is nothing run has to end.
func (p *pageCounts) take() []pageCount {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := make([]pageCount, 0, min(len(p.mu.counted), maxCounts))
	for ino, c := range p.mu.counted {
		if len(counts) == maxCounts {
			break
		}
		counts = append(counts, c)
		delete(p.mu.counted, ino)
	}
	p.mu.running = len(counts) > 0
	return counts
}
