package coherence

import (
	"context"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// lingering is how long the replica of a closed area still stays. There is one timer, which the
// last Close of the area sets again each time. With a timer for each Close, an old one could end
// the stay that a newer Close began.
type lingering struct {
	timer *time.Timer // nil before the first Close
	until time.Time
}

// lingerLocked sets the timer. It is called in a step.
func (a *Area) lingerLocked() {
	l := &a.mu.lingering
	d := a.node.cfg.Linger
	l.until = time.Now().Add(d)
	if l.timer == nil {
		l.timer = time.AfterFunc(d, a.lingered)
		return
	}
	l.timer.Reset(d)
}

func (a *Area) lingered() {
	a.mu.Lock()
	early := time.Now().Before(a.mu.lingering.until) // it was set again just when it fired
	a.mu.Unlock()
	if !early {
		a.expire()
	}
}

// expire drops the replica unless the area was opened again. Stores that cannot be published yet
// are kept, and it tries again later.
func (a *Area) expire() {
	a.step(func() {
		r := &a.mu.replica
		if !r.subscribed || r.opens > 0 || a.node.keeps.Load() {
			return
		}
		if a.versionedLocked() && (len(a.busyExtentsLocked()) > 0 || a.mu.whole.serial) {
			a.mu.arrived = append(a.mu.arrived, func() { a.node.handovers.publishLeft(a) })
			a.lingerLocked()
			return
		}
		if c := r.contribution; c == nil || !c.left { // else the program may just have ended because of the daemon that was killed
			a.abandonLocked()
		}
		goal := a.requestPublishLocked()
		waits := slices.ContainsFunc(a.busyExtentsLocked(), func(e dsm.ExtentIndex) bool { return len(a.extentLocked(e).stash) > 0 })
		if waits || !a.reachedLocked(goal) || r.syncing > 0 || r.contribution != nil {
			a.node.cfg.Log.Debug("a closed area is not published yet", "area", a.id)
			a.lingerLocked()
			return
		}
		a.dropReplicaLocked()
	})
}

// publishLeft publishes what is left of a closed versioned area.
func (h *handovers) publishLeft(a *Area) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	h.wg.Go(func() {
		ctx, cancel := context.WithTimeout(h.ctx, publishLeftTimeout)
		defer cancel()
		if err := a.publishVersion(ctx); err != nil {
			h.node.cfg.Log.Debug("a closed area is not published yet", "area", a.id, "err", err)
		}
	})
}

// publishLeftTimeout is how long one try of publishLeft takes at most; the next one begins when the area has lingered again.
const publishLeftTimeout = 10 * time.Second
