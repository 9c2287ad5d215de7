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
// are kept, and it tries again later: those to a versioned area also while programs have it open to read.
func (a *Area) expire() {
	a.step(func() {
		r := &a.mu.replica
		if !r.subscribed || a.node.keeps.Load() {
			return
		}
		if r.opens > 0 { // to read: see endWritingLocked
			if r.writers == 0 && a.leavesLocked() {
				a.mu.arrived = append(a.mu.arrived, func() { a.node.handovers.publishLeft(a) })
				a.lingerLocked()
			}
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

// leavesLocked reports whether programs have stored to a versioned area what is not published.
func (a *Area) leavesLocked() bool {
	return a.versionedLocked() && slices.ContainsFunc(a.busyExtentsLocked(), func(e dsm.ExtentIndex) bool {
		x := a.mu.replica.extents[e]
		return !x.dirty.Empty() || len(x.stash) > 0 || x.publishing()
	})
}

// PublishReleased is Publish after Released. What is left of a versioned area is not published while programs may store to it by other
// handles: half of what they are storing would be a version. Their next publish takes it along, and published is false.
func (a *Area) PublishReleased(ctx context.Context) (published bool, err error) {
	if !a.versioned() {
		return true, a.Publish(ctx)
	}
	return a.publishLeft(ctx)
}

// PublishReleased is Area.PublishReleased for what the program has stored by this attachment. What other programs have in drafts of their own is for them to publish: they may be about to contribute it to a round.
func (t *Attachment) PublishReleased(ctx context.Context) (published bool, err error) {
	if t.area.versioned() {
		return t.area.publishLeft(ctx)
	}
	return true, t.area.publish(ctx, false, t.draft, func() {})
}

// takeBackLeft takes back what a program has left that was killed.
func (a *Area) takeBackLeft(ctx context.Context) error {
	a.step(a.abandonLocked)
	if err := a.await(ctx, "take back", func() bool { return a.mu.replica.contribution == nil }); err != nil {
		return err
	}
	a.step(func() {
		a.mu.whole.killed = false
		if a.forfeitDirtyLocked() {
			a.tellOfConflictsLocked("a program was killed that had stored to a versioned area: what it had not published is not published")
		}
	})
	return nil
}

// storesLocked reports whether a program may store to the area.
func (a *Area) storesLocked() bool {
	return a.storersLocked() > 0 || slices.ContainsFunc(a.mu.drafts, func(d *draft) bool { return d.writers > 0 })
}

// publishBy is publishVersion for a program that stores, and publishLeft for others: half of what a program is storing would be a version.
func (a *Area) publishBy(ctx context.Context, storing bool) (err error) {
	if storing {
		return a.publishVersion(ctx)
	}
	_, err = a.publishLeft(ctx)
	return err
}

// publishLeft publishes what programs have left of a versioned area, unless one may still store to it. An open for writing waits for that.
func (a *Area) publishLeft(ctx context.Context) (published bool, err error) {
	a.step(func() {
		if published = !a.storesLocked(); published {
			a.mu.whole.leaving++
		}
	})
	if !published {
		return false, nil
	}
	defer a.step(func() {
		a.mu.whole.leaving--
		a.mu.wake = true
	})
	return true, a.publishVersion(ctx)
}

// leftPublished returns when nothing that programs have left is being published any more, and a program that has been counted may store.
func (a *Area) leftPublished(ctx context.Context) error {
	return a.await(ctx, "open", func() bool { return a.mu.whole.leaving == 0 })
}

// publishLeft publishes what is left of a closed versioned area.
func (h *handovers) publishLeft(a *Area) {
	h.later(func() {
		ctx, cancel := context.WithTimeout(h.ctx, publishLeftTimeout)
		defer cancel()
		if _, err := a.publishLeft(ctx); err != nil {
			h.node.cfg.Log.Debug("a closed area is not published yet", "area", a.id, "err", err)
		}
	})
}

// publishLeftTimeout is how long one try of publishLeft takes at most; the next one begins when the area has lingered again.
const publishLeftTimeout = 10 * time.Second
