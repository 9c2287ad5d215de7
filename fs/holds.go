package fs

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// holds gives up this node's holds of closed files, many in one change of the catalog: otherwise a
// program that makes files one after the other would pay for two changes for each. A file that is
// opened again in time keeps its hold.
type holds struct {
	b  *bridge
	mu struct {
		lockrank.Mutex
		closed  []*openArea
		running bool
	}
}

const (
	// holdDelay is how long holds to give up are gathered.
	holdDelay = 10 * time.Millisecond
	// maxHolds bounds how many are given up in one change.
	maxHolds = 1024
)

func (h *holds) init(b *bridge) {
	h.b = b
	h.mu.Init("fs.holds")
}

// heldFor is how long a file that was looked up is held for the OPEN that will follow.
const heldFor = time.Second

// findHeld is Lookup for a thread whose last open failed because another node had renamed over the
// name. The file that it finds now is held, so that the next open finds it.
func (b *bridge) findHeld(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error) {
	for {
		i, err := b.cfg.Names.Lookup(ctx, dir, name)
		if err != nil || i.Kind != dsm.KindFile {
			return i, err
		}
		held, err := b.holds.keep(ctx, i.Ino)
		if !errs.Is(err, errs.NotExist) {
			return held, err
		}
	}
}

// keep holds the file until it is opened, but not longer than heldFor.
func (h *holds) keep(ctx context.Context, ino dsm.Ino) (dsm.Inode, error) {
	a, err := h.b.opens.get(ctx, dsm.AreaID(ino))
	if err != nil {
		return dsm.Inode{}, err
	}
	defer func() { <-a.gate }()
	i, err := h.hold(ctx, a, false)
	if err != nil {
		return dsm.Inode{}, err
	}
	a.held, a.heldUntil = true, time.Now().Add(heldFor)
	if a.handles() == 0 {
		h.giveUp(a)
	}
	return i, nil
}

// hold holds the file of an area, whose gate the caller has. A hold that was not answered may still be made. It is given up, or
// the memory of the file would stay reserved after it was removed.
func (h *holds) hold(ctx context.Context, a *openArea, write bool) (dsm.Inode, error) {
	i, err := h.b.cfg.Names.Hold(ctx, dsm.Ino(a.id), write)
	if a.perhaps = err != nil && !errs.Is(err, errs.NotExist); a.perhaps {
		h.giveUp(a)
	}
	return i, err
}

// made takes over the hold that came with a new file, which is to be opened next, or of which nobody knows. Like keep, it
// keeps the file for heldFor at most.
func (h *holds) made(ino dsm.Ino) {
	ctx, cancel := h.b.lasting()
	defer cancel()
	a, err := h.b.opens.get(ctx, dsm.AreaID(ino))
	if err != nil {
		h.b.log.Warn("cannot take over the hold of a new file", "area", ino, "err", err)
		return
	}
	defer func() { <-a.gate }()
	a.held, a.heldUntil = true, time.Now().Add(heldFor)
	if a.handles() == 0 {
		h.giveUp(a)
	}
}

// renew holds again what this node has held: it was evicted, which ended all its holds. A file that was removed meanwhile is gone.
func (h *holds) renew(ctx context.Context) error {
	var failed error
	for _, a := range h.b.opens.all(func(*openArea) bool { return true }) {
		select {
		case a.gate <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if a.held {
			if _, err := h.b.cfg.Names.Hold(ctx, dsm.Ino(a.id), a.live.Load() > 0); err != nil && !errs.Is(err, errs.NotExist) {
				failed = err
			}
		}
		<-a.gate
	}
	return failed
}

// giveUp gives up the holds of areas some time later, unless they are open then. The caller has the
// gates of the areas.
func (h *holds) giveUp(areas ...*openArea) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.closed = append(h.mu.closed, areas...)
	if !h.mu.running && len(h.mu.closed) > 0 {
		h.mu.running = true
		h.b.releases.run(h.run)
	}
}

// run gives up once what is gathered. While files are closed there is always another run, and nobody waits for all of them.
func (h *holds) run() {
	select {
	case <-h.b.life.Done():
	case <-time.After(holdDelay):
	}
	h.mu.Lock()
	n := min(len(h.mu.closed), maxHolds)
	closed := h.mu.closed[:n:n]
	h.mu.closed = h.mu.closed[n:]
	h.mu.running = n > 0
	h.mu.Unlock()
	if n > 0 {
		h.unhold(closed)
		h.b.releases.run(h.run)
	}
}

// unhold gives up the holds of those areas that are closed. It leaves areas whose gate is taken, or
// that must be held for a while, for the next time.
func (h *holds) unhold(areas []*openArea) {
	var busy, idle []*openArea
	var inos []dsm.Ino
	for _, a := range areas {
		select {
		case a.gate <- struct{}{}:
		default:
			busy = append(busy, a)
			continue
		}
		if a.handles() > 0 || !a.held && !a.perhaps {
			<-a.gate
			continue
		}
		if time.Now().Before(a.heldUntil) && h.b.life.Err() == nil {
			busy = append(busy, a)
			<-a.gate
			continue
		}
		idle, inos = append(idle, a), append(inos, dsm.Ino(a.id))
	}
	var err error
	if len(idle) > 0 {
		ctx, cancel := h.b.lasting()
		err = h.b.cfg.Names.Unhold(ctx, inos...)
		cancel()
	}
	for _, a := range idle {
		a.held, a.perhaps = false, err != nil // it may have been given up all the same: who opens the file holds it again
		<-a.gate
		if a.removed.Load() { // by this
			h.b.opens.removed(a.id)
		}
	}
	h.giveUp(busy...)
	if err == nil || errs.Is(err, errs.Closed) || h.b.life.Err() != nil {
		return
	}
	// Otherwise the memory of an unlinked file would stay reserved as long as this node lives.
	h.b.log.Warn("cannot give up the holds of closed files; trying again", "files", len(idle), "first", idle[0].id, "err", err)
	h.b.background.run(func() {
		select {
		case <-h.b.life.Done():
		case <-time.After(h.b.cfg.FaultTimeout):
			h.giveUp(idle...)
		}
	})
}
