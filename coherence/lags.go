package coherence

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// backupPatience is how long outputs wait for a backup until the catalog hears that it does not follow.
const backupPatience = time.Second

// watchBackupsLocked has the area look later whether a backup that outputs, or a handover, wait for has not acked for too long.
func (a *Area) watchBackupsLocked() {
	if a.mu.copies.watch == nil {
		a.mu.copies.watch = time.AfterFunc(backupPatience, func() { a.step(a.lookAtBackupsLocked) })
	}
}

func (a *Area) lookAtBackupsLocked() {
	c := a.mu.copies
	if c == nil {
		return // the timer had fired before it was stopped
	}
	if c.watch = nil; c.neededLocked() == 0 {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(c.to)) {
		for x := range c.to[id].all() {
			if x.waits && a.now().Sub(x.made) >= backupPatience {
				a.mu.arrived = append(a.mu.arrived, func() { a.node.fills.lags(id) })
				break
			}
		}
	}
	a.watchBackupsLocked()
}

// lags tells the catalog that a backup which outputs wait for does not follow.
func (f *fills) lags(to dsm.NodeID) {
	h := &f.node.handovers
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || !f.tells(to, true) {
		return
	}
	h.wg.Go(func() {
		defer f.tells(to, false)
		for pause := reportPause; ; pause = min(2*pause, time.Second) {
			v := f.node.cfg.View.Current()
			slots := f.awaited(v, to)
			if len(slots) == 0 || h.ctx.Err() != nil {
				return
			}
			ctx, cancel := context.WithTimeout(h.ctx, 10*time.Second)
			err := f.node.cfg.View.BackupLags(ctx, to, slots, v.Epoch)
			cancel()
			f.node.cfg.Log.Warn("a backup does not follow", "node", to, "slots", len(slots), "err", err)
			if err == nil { // if it is so again, areas find out again
				return
			}
			select {
			case <-time.After(pause):
			case <-h.ctx.Done():
				return
			}
		}
	})
}

// awaited returns the slots of which outputs wait for a backup: it is in sync, or has joined.
func (f *fills) awaited(v *dsm.View, to dsm.NodeID) (slots []dsm.Slot) {
	self := f.node.cfg.Self
	for s, row := range v.Rows() {
		i := row.BackupOf(to)
		if i < 0 || row.Primary != self && row.Source != self {
			continue
		}
		if phase, _ := f.standing(s, to); row.Backups[i].InSync || phase >= joined {
			slots = append(slots, s)
		}
	}
	return slots
}

// tells sets whether the catalog is being told of a node, and reports whether that has changed.
func (f *fills) tells(to dsm.NodeID, now bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.mu.telling[to]
	f.mu.telling[to] = now
	return was != now
}
