package fs

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// holds gives up the holds of files that nobody has open any more, those of many files in
// one change of the catalog: a program that makes files one after the other would
// else pay for two changes each. A file that is opened again meanwhile is held still.
type holds struct {
	b  *bridge
	mu struct {
		lockrank.Mutex
		closed  []*openArea
		running bool
	}
}

const (
	// holdDelay is how long holds are gathered.
	holdDelay = 10 * time.Millisecond
	// maxHolds bounds how many are given up in one change.
	maxHolds = 1024
)

func (h *holds) init(b *bridge) {
	h.b = b
	h.mu.Init("fs.holds")
}

// heldFor is for how long a file that was looked up stays for the OPEN that is to come.
const heldFor = time.Second

// findHeld is Lookup for a thread whose last open found that the file was gone, since another
// node had renamed over its name: the file that it finds now is held.
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

// keep holds the file until it is opened, but not for longer than heldFor.
func (h *holds) keep(ctx context.Context, ino dsm.Ino) (dsm.Inode, error) {
	a, err := h.b.opens.get(ctx, dsm.AreaID(ino))
	if err != nil {
		return dsm.Inode{}, err
	}
	defer func() { <-a.gate }()
	i, err := h.b.cfg.Names.Hold(ctx, ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	a.held, a.heldUntil = true, time.Now().Add(heldFor)
	if a.handles() == 0 {
		h.giveUp(a)
	}
	return i, nil
}

// giveUp lets the catalog forget the inode some time later, unless it is open then. The caller has the
// gate of the area.
func (h *holds) giveUp(areas ...*openArea) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.closed = append(h.mu.closed, areas...)
	if !h.mu.running && len(h.mu.closed) > 0 {
		h.mu.running = true
		h.b.releases.run(h.run)
	}
}

func (h *holds) run() {
	for {
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
		if n == 0 {
			return
		}
		h.unhold(closed)
	}
}

// unhold gives up the holds of those areas that are closed. An area of which somebody has the
// gate, or that is to stay for a while, is left for the next time.
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
		if a.handles() > 0 || !a.held {
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
		a.held = err != nil
		<-a.gate
	}
	h.giveUp(busy...)
	if err == nil || errs.Is(err, errs.Closed) || h.b.life.Err() != nil {
		return
	}
	// Else the memory of an unlinked file would stay reserved as long as this node lives.
	h.b.log.Warn("cannot give up the holds of closed files; trying again", "files", len(idle), "first", idle[0].id, "err", err)
	h.b.background.run(func() {
		select {
		case <-h.b.life.Done():
		case <-time.After(h.b.cfg.FaultTimeout):
			h.giveUp(idle...)
		}
	})
}
