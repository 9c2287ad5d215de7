package fs

import (
	"context"
	"sync"
	"time"
)

// intervals publishes what programs have stored at every area's interval. One goroutine with one
// timer does it for all areas, those that are due together in one round trip to
// the harvester's child; with no area open for writing it sleeps for good.
//
// A round that took T is followed by a rest of at least 4T, so that an area whose
// harvest or publish is slow costs at most a fifth of the time, and
// an area has one round at a time.
type intervals struct {
	b     *bridge
	woken chan struct{}

	mu struct {
		sync.Mutex
		rounds map[*openArea]round // of areas open for writing
	}
}

// round is when an area was last published.
type round struct {
	start time.Time // of the last round, or when the area was opened
	rest  time.Time // no round before
	busy  bool      // a round is under way
}

const (
	// restFactor is 4 for a duty cycle of at most 20 %.
	restFactor = 4
	// togetherness is how much early an area is harvested to save a round trip.
	togetherness = 5 * time.Millisecond
)

func newIntervals(b *bridge) *intervals {
	n := &intervals{b: b, woken: make(chan struct{}, 1)}
	n.mu.rounds = make(map[*openArea]round)
	return n
}

// wake makes the loop look at the areas again: one was opened for writing, a
// round ended or an interval changed.
func (n *intervals) wake() {
	select {
	case n.woken <- struct{}{}:
	default:
	}
}

// run works until the filesystem is closing.
func (n *intervals) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Stop()
		due, next := n.pick(time.Now())
		if len(due) > 0 {
			n.harvest(due)
			continue
		}
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-timer.C:
		case <-n.woken:
		case <-n.b.closing:
			return
		}
	}
}

// pick returns the areas that are due, marked busy, and when the next of the
// others will be; zero if none will.
func (n *intervals) pick(now time.Time) (due []*openArea, next time.Time) {
	writable := n.b.opens.all(func(a *openArea) bool { return a.live.Load() > 0 })
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.mu.rounds
	n.mu.rounds = make(map[*openArea]round, len(writable))
	for _, a := range writable {
		r, ok := old[a]
		if !ok {
			r.start = now
		}
		if every := a.interval(); every > 0 && !r.busy {
			at := r.start.Add(every)
			if r.rest.After(at) {
				at = r.rest
			}
			if at.Sub(now) <= min(togetherness, every/10) {
				due = append(due, a)
				r.start, r.busy = now, true
			} else if next.IsZero() || at.Before(next) {
				next = at
			}
		}
		n.mu.rounds[a] = r
	}
	return due, next
}

// harvest does a round for the areas: the harvest at once for all, the publishes
// in the background, each by itself.
func (n *intervals) harvest(due []*openArea) {
	targets := make([]target, len(due))
	for i, a := range due {
		targets[i].area = a
	}
	for i, r := range n.b.harvest.sync(targets) {
		a := due[i]
		if r.err != nil {
			n.b.log.Warn("harvest", "area", a.id, "err", r.err)
		}
		if a.stored.Load() == a.published.Load() {
			n.done(a, r.took)
			continue
		}
		n.b.background.run(func() {
			start := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), n.b.cfg.FaultTimeout)
			defer cancel()
			if err := n.b.publish(ctx, a); err != nil {
				n.b.log.Warn("publish at interval", "area", a.id, "err", err)
			}
			n.done(a, r.took+time.Since(start))
			n.wake()
		})
	}
}

// done ends a round that took as long as it says.
func (n *intervals) done(a *openArea, took time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r, ok := n.mu.rounds[a]; ok {
		r.busy, r.rest = false, time.Now().Add(restFactor*took)
		n.mu.rounds[a] = r
	}
}
