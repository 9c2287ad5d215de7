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
	if c.watch = nil; c.needed(0) == 0 {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(c.to)) {
		for x := range c.to[id].all() {
			if x.waits && a.now().Sub(x.made) >= backupPatience {
				a.mu.arrived = append(a.mu.arrived, func() { a.node.fills.lags(id, true) })
				break
			}
		}
	}
	a.watchBackupsLocked()
}

// lagging is that the catalog is being told that a backup does not follow.
type lagging struct{ again bool }

// lags tells the catalog that a backup does not follow. In any case this is about the slots in which it was in sync with a former home. If the backup is
// silent, it is also about all slots whose outputs wait for it.
func (f *fills) lags(to dsm.NodeID, silent bool) {
	f.mu.Lock()
	t := f.mu.lagging[to]
	if t != nil {
		t.again = t.again || !silent // if it is silent still, areas find out again
		f.mu.Unlock()
		return
	}
	t = &lagging{}
	f.mu.lagging[to] = t
	f.mu.Unlock()
	f.later(func() {
		for pause := reportPause; f.node.handovers.ctx.Err() == nil; {
			f.mu.Lock()
			t.again = false
			f.mu.Unlock()
			v := f.node.cfg.View.Current()
			slots := f.formers(v, to)
			if silent {
				slots = f.awaited(v, to)
			}
			if len(slots) == 0 || f.tellLags(to, slots, v.Epoch, silent) == nil {
				if f.told(to, t) {
					return
				}
				silent = false
				continue
			}
			select {
			case <-time.After(pause):
			case <-f.node.handovers.ctx.Done():
			}
			pause = min(2*pause, time.Second)
		}
	})
}

// tellLags tells the catalog once.
func (f *fills) tellLags(to dsm.NodeID, slots []dsm.Slot, e dsm.Epoch, silent bool) error {
	ctx, cancel := context.WithTimeout(f.node.handovers.ctx, 10*time.Second)
	defer cancel()
	err := f.node.cfg.View.BackupLags(ctx, to, slots, e)
	why := "it followed the home before this one"
	if silent {
		why = "it does not answer"
	}
	log := f.node.cfg.Log.With("node", to, "slots", len(slots), "why", why)
	if err != nil {
		log.Warn("the catalog has yet to hear that a backup does not follow", "err", err)
		return err
	}
	log.Warn("a backup does not follow")
	return nil
}

// told says that the catalog has been told, and reports whether that is all there is to say.
func (f *fills) told(to dsm.NodeID, t *lagging) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !t.again {
		delete(f.mu.lagging, to)
	}
	return !t.again
}

// formers returns the slots of which a backup is in sync with a former home, and this node is the home.
func (f *fills) formers(v *dsm.View, of dsm.NodeID) (slots []dsm.Slot) {
	for s, row := range v.Rows() {
		if i := row.BackupOf(of); i >= 0 && row.Backups[i].Former && row.Primary == f.node.cfg.Self {
			slots = append(slots, s)
		}
	}
	return slots
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
