package fs

import (
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// intervals publishes what programs have stored, at every area's interval. Nothing runs while
// nobody stores: the harvester's child finds stores to mappings by itself, and a WRITE, whoever
// made it, sets its area's timer unless that is set already. Only while a program is attached for
// writing, whose stores nobody reports, every interval looks. So a WRITE costs a look at one word,
// and a program that publishes by msync all the time costs a timer now and then.
//
// When the timer fires depends on how long the stores have waited: see wish. A round that took T is
// followed by a rest of 4T, so that an area whose publishes are slow spends at most a fifth of the
// time on them. An area has one round at a time. Comparing, which is how stores to direct areas are
// found, gets less time: see restAfter.
type intervals struct{ b *bridge }

// wish says when the stores of an area should be published; a greater one is earlier.
type wish = uint32

const (
	// notAtAll: all stores are published, or the interval is 0.
	notAtAll wish = iota
	// atInterval: an interval after the start of the last round. Stores by write(2) arrive at once,
	// so they are not late then.
	atInterval
	// soon: there are stores to a mapping, which have already waited up to an interval for the
	// harvest. More of them may be coming.
	soon
)

// intervalState is the timer of one area.
type intervalState struct {
	// wish is what the timer is set for, or will be set for when the round ends. It is changed with
	// mu held, and goes back to notAtAll only if everything is published after that.
	wish atomic.Uint32
	// every is the interval that the timer and the harvester's child use.
	every atomic.Int64
	// failed says that the last round failed, and that the log says so.
	failed atomic.Bool

	mu struct {
		lockrank.Mutex
		timer  *time.Timer // nil until it is first set
		first  time.Time   // when it was first set for the current wish
		set    time.Time   // when it was last set for it
		covers uint64      // number of stores at that time
		start  time.Time   // of the last round
		rest   time.Time   // no round before this time
		busy   bool        // a round is under way
	}
}

// opened says that programs may now store into the area.
func (n intervals) opened(a *openArea) {
	a.pace.every.Store(int64(a.Interval()))
	n.b.harvest.Watch(a)
	n.wake(a)
}

// changed applies a new interval, if the area has one.
func (n intervals) changed(a *openArea) {
	every := int64(a.Interval())
	if a.pace.every.Swap(every) != every {
		n.b.harvest.Watch(a)
		n.wake(a)
	}
}

// wake sets the timer again if there is something to publish.
func (n intervals) wake(a *openArea) {
	p := &a.pace
	p.mu.Lock()
	defer p.mu.Unlock()
	if !a.unpublished() {
		return
	}
	p.wish.Store(max(p.wish.Load(), atInterval))
	if !p.mu.busy {
		n.armLocked(a)
	}
}

// stored says that a store was accepted. It is called for every WRITE.
func (n intervals) stored(a *openArea, w wish) {
	p := &a.pace
	if p.wish.Load() >= w || a.Interval() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wish.Load() >= w {
		return
	}
	p.wish.Store(w)
	if !p.mu.busy {
		n.armLocked(a)
	}
}

// unpublished reports whether the area's interval has something to do. What attached programs have
// stored is not known before looking.
func (a *openArea) unpublished() bool {
	return a.Interval() > 0 && (a.live.Load() > 0 && a.stored.Load() != a.published.Load() || a.attached.Load() > 0)
}

// armLocked sets the timer for the area's wish.
func (n intervals) armLocked(a *openArea) {
	a.pace.mu.first = time.Now()
	n.setLocked(a)
}

// setLocked sets the timer, perhaps again for the same wish.
func (n intervals) setLocked(a *openArea) {
	p := &a.pace
	now, every := time.Now(), a.Interval()
	at := now.Add(harvest.Togetherness(every))
	if t := p.mu.start.Add(every); p.wish.Load() == atInterval && t.After(at) {
		at = t
	}
	if p.mu.rest.After(at) {
		at = p.mu.rest
	}
	p.mu.set, p.mu.covers = now, a.stored.Load()
	if p.mu.timer == nil {
		p.mu.timer = time.AfterFunc(at.Sub(now), func() { n.fire(a) })
		return
	}
	p.mu.timer.Reset(at.Sub(now))
}

// fire does a round, in the background, unless there is a reason not to.
func (n intervals) fire(a *openArea) {
	p := &a.pace
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.wish.Load()
	switch {
	case p.mu.busy || w == notAtAll:
	case !a.unpublished() || a.published.Load() >= p.mu.covers && a.attached.Load() == 0:
		// The stores for which the timer was set have been published. What is there now came later, from a program that
		// publishes by itself. It gets the same time again.
		p.mu.start = p.mu.set // as if it had been a round
		n.nextLocked(a)
	case a.publishing.Load() > 0:
		n.setLocked(a)
	case w == soon && a.stored.Load() != p.mu.covers && time.Since(p.mu.first) < a.Interval():
		n.setLocked(a) // the harvest is not over: one round for all of it
	default:
		p.mu.busy, p.mu.start = true, time.Now()
		p.wish.Store(atInterval)
		n.b.background.run(func() { n.round(a) })
	}
}

// failedRest is the least rest after a round that failed: where a home has died each fails at once.
const failedRest = time.Second

func (n intervals) round(a *openArea) {
	ctx, cancel := n.b.lasting()
	defer cancel()
	compared := a.current().CompareTime()
	err := n.b.publish(ctx, a)
	rest := n.b.restAfter(a, a.current().CompareTime()-compared)
	if err != nil {
		rest = max(rest, failedRest)
	}
	p := &a.pace
	if failed := p.failed.Swap(err != nil); err != nil && !failed {
		n.b.log.Warn("publish at interval", "area", a.id, "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.mu.busy, p.mu.rest = false, now.Add(max(harvest.RestFactor*now.Sub(p.mu.start), rest))
	n.nextLocked(a)
}

// nextLocked sets the timer if there is more to publish.
func (n intervals) nextLocked(a *openArea) {
	p := &a.pace
	if !a.unpublished() {
		p.wish.Store(notAtAll)
		if !a.unpublished() {
			return
		}
		p.wish.Store(soon) // a store came in between and may have found the timer set
	}
	n.armLocked(a)
}
