package fs

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// claims gives up this node's claims on closed files, many in one change of the catalog: otherwise a
// program that makes files one after the other would pay for two changes for each. A file that is
// opened again in time keeps its claim.
type claims struct {
	b  *bridge
	mu struct {
		lockrank.Mutex
		closed  []*openArea
		running bool
	}
}

const (
	// claimDelay is how long claims to give up are gathered.
	claimDelay = 10 * time.Millisecond
	// maxClaims bounds how many are given up in one change.
	maxClaims = 1024
)

func (h *claims) init(b *bridge) {
	h.b = b
	h.mu.Init("fs.claims")
}

// claimFor is how long a file that was looked up is claimed for the OPEN that will follow.
const claimFor = time.Second

// findClaimed is Lookup for a thread whose last open failed because another node had renamed over the
// name. The file that it finds now is claimed, so that the next open finds it.
func (b *bridge) findClaimed(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error) {
	for {
		i, err := b.cfg.Names.Lookup(ctx, dir, name)
		if err != nil || i.Kind != dsm.KindFile {
			return i, err
		}
		claimed, err := b.claims.keep(ctx, i.Ino)
		if !errs.Is(err, errs.NotExist) {
			return claimed, err
		}
	}
}

// keep claims the file until it is opened, but not longer than claimFor.
func (h *claims) keep(ctx context.Context, ino dsm.Ino) (dsm.Inode, error) {
	a, err := h.b.opens.get(ctx, dsm.AreaID(ino))
	if err != nil {
		return dsm.Inode{}, err
	}
	defer func() { <-a.gate }()
	i, err := h.claimLocked(ctx, a, false)
	if err != nil {
		return dsm.Inode{}, err
	}
	a.claimed, a.claimedUntil = true, time.Now().Add(claimFor)
	if a.handles() == 0 {
		h.giveUp(a)
	}
	return i, nil
}

// claimLocked claims the file of an area, whose gate the caller has. A claim that was not answered may still be made. It is given up, or
// the memory of the file would stay reserved after it was removed.
func (h *claims) claimLocked(ctx context.Context, a *openArea, write bool) (dsm.Inode, error) {
	i, err := h.b.cfg.Names.Claim(ctx, dsm.Ino(a.id), write)
	if a.perhaps = err != nil && !errs.Is(err, errs.NotExist); a.perhaps {
		h.giveUp(a)
	}
	return i, err
}

// made takes over the claim that came with a new file, which is to be opened next, or of which nobody knows. Like keep, it
// keeps the file for claimFor at most.
func (h *claims) made(ino dsm.Ino) {
	ctx, cancel := h.b.lasting()
	defer cancel()
	a, err := h.b.opens.get(ctx, dsm.AreaID(ino))
	if err != nil {
		h.b.log.Warn("cannot take over the claim on a new file", "area", ino, "err", err)
		return
	}
	defer func() { <-a.gate }()
	a.claimed, a.claimedUntil = true, time.Now().Add(claimFor)
	if a.handles() == 0 {
		h.giveUp(a)
	}
}

// renew claims again what this node has claimed: it was evicted, which ended all its claims. A file that was removed meanwhile is gone.
func (h *claims) renew(ctx context.Context) error {
	var failed error
	for _, a := range h.b.opens.all(func(*openArea) bool { return true }) {
		select {
		case a.gate <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if a.claimed {
			if _, err := h.b.cfg.Names.Claim(ctx, dsm.Ino(a.id), a.live.Load() > 0); err != nil && !errs.Is(err, errs.NotExist) {
				failed = err
			}
		}
		<-a.gate
	}
	return failed
}

// giveUp gives up the claims on areas some time later, unless they are open then. run takes the gates of the areas.
func (h *claims) giveUp(areas ...*openArea) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.closed = append(h.mu.closed, areas...)
	if !h.mu.running && len(h.mu.closed) > 0 {
		h.mu.running = true
		h.b.releases.run(h.run)
	}
}

// run gives up once what is gathered. While files are closed there is always another run, and nobody waits for all of them.
func (h *claims) run() {
	select {
	case <-h.b.life.Done():
	case <-time.After(claimDelay):
	}
	h.mu.Lock()
	n := min(len(h.mu.closed), maxClaims)
	closed := h.mu.closed[:n:n]
	h.mu.closed = h.mu.closed[n:]
	h.mu.running = n > 0
	h.mu.Unlock()
	if n > 0 {
		h.unclaim(closed)
		h.b.releases.run(h.run)
	}
}

// unclaim gives up the claims on those areas that are closed. It leaves areas whose gate is taken, or that must be claimed for a while, for the next time.
func (h *claims) unclaim(areas []*openArea) {
	var busy, idle []*openArea
	var inos []dsm.Ino
	for _, a := range areas {
		select {
		case a.gate <- struct{}{}:
		default:
			busy = append(busy, a)
			continue
		}
		if a.handles() > 0 || !a.claimed && !a.perhaps {
			<-a.gate
			continue
		}
		if time.Now().Before(a.claimedUntil) && h.b.life.Err() == nil {
			busy = append(busy, a)
			<-a.gate
			continue
		}
		idle, inos = append(idle, a), append(inos, dsm.Ino(a.id))
	}
	var err error
	if len(idle) > 0 {
		ctx, cancel := h.b.lasting()
		err = h.b.cfg.Names.Unclaim(ctx, inos...)
		cancel()
	}
	for _, a := range idle {
		a.claimed, a.perhaps = false, err != nil // it may have been given up all the same: who opens the file claims it again
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
	h.b.log.Warn("cannot give up the claims on closed files; trying again", "files", len(idle), "first", idle[0].id, "err", err)
	h.b.background.run(func() {
		select {
		case <-h.b.life.Done():
		case <-time.After(h.b.cfg.FaultTimeout):
			h.giveUp(idle...)
		}
	})
}
