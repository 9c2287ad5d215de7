package attach

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// fault is a thread that waits for a page of an area on demand.
type fault struct {
	x     *attachment
	r     *uffd.Range
	off   int64
	since time.Time
}

// patience is how long a fault waits before a goroutine takes care of it. The timer looks only once in
// each patience, so it may be twice as long. Nearly all pages come within a millisecond.
const patience = 20 * time.Millisecond

// overdue finds the faults of an attachment whose pages do not come. It has one timer, which runs
// while there are faults. A timer and a goroutine for each fault would make faults a fifth slower,
// mostly by waking threads.
type overdue struct {
	mu struct { // guards all fields; no other lock is taken under it
		lockrank.Mutex
		waiting map[*fault]struct{}
		running bool // the timer
	}
}

// add adds a fault, and starts the timer unless it runs.
func (o *overdue) add(f *fault) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.waiting == nil {
		o.mu.waiting = make(map[*fault]struct{})
	}
	o.mu.waiting[f] = struct{}{}
	if !o.mu.running {
		o.mu.running = true
		time.AfterFunc(patience, o.look)
	}
}

// remove removes a fault, and reports whether it was there.
func (o *overdue) remove(f *fault) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.mu.waiting[f]
	delete(o.mu.waiting, f)
	return ok
}

// take removes the faults of a Range, and returns them.
func (o *overdue) take(r *uffd.Range) (taken []*fault) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for f := range o.mu.waiting {
		if f.r == r {
			delete(o.mu.waiting, f)
			taken = append(taken, f)
		}
	}
	return taken
}

// look starts a goroutine for each fault that has waited for patience. It may add to serving,
// because serving is not 0 then: a fault is in waiting only until its Range is closed, and whoever
// closes the Range is counted in serving.
func (o *overdue) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for f := range o.mu.waiting {
		if now.Sub(f.since) >= patience {
			delete(o.mu.waiting, f)
			f.x.serving.Go(f.bring)
		}
	}
	if o.mu.running = len(o.mu.waiting) > 0; o.mu.running {
		time.AfterFunc(patience, o.look)
	}
}
