package fs

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// fault is one of a program on demand whose page was asked for.
type fault struct {
	x     *attachment
	r     *uffd.Range
	off   int64
	since time.Time
}

// patience is how long a page may take until somebody looks whether it will come at all. Nearly all
// come within a millisecond.
const patience = 20 * time.Millisecond

// overdue finds the faults of an attachment whose pages do not come. A timer and a goroutine for
// each fault would take a fifth of its time, most of it for waking the threads that they run on: there is one timer,
// which runs while there are faults.
type overdue struct {
	mu struct {
		lockrank.Mutex
		waiting map[*fault]struct{}
		timer   *time.Timer
		running bool
		busy    bool // there was a fault since the timer was set
	}
}

func (o *overdue) add(f *fault) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.waiting == nil {
		o.mu.waiting = make(map[*fault]struct{})
	}
	o.mu.waiting[f] = struct{}{}
	o.mu.busy = true
	if !o.mu.running {
		o.mu.running = true
		o.mu.timer = time.AfterFunc(patience, o.look)
	}
}

// remove reports whether the fault was still waiting.
func (o *overdue) remove(f *fault) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.mu.waiting[f]
	delete(o.mu.waiting, f)
	return ok
}

// forget ends the faults of a Range that is closed.
func (o *overdue) forget(r *uffd.Range) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for f := range o.mu.waiting {
		if f.r == r {
			delete(o.mu.waiting, f)
		}
	}
}

// look has those served that have waited for long. While a fault is here its Range is not
// forgotten, and whoever is to do that counts in serving.
func (o *overdue) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for f := range o.mu.waiting {
		if now.Sub(f.since) >= patience {
			delete(o.mu.waiting, f)
			f.x.serving.Go(f.serve)
		}
	}
	o.mu.running = o.mu.busy || len(o.mu.waiting) > 0
	o.mu.busy = false
	if o.mu.running {
		o.mu.timer.Reset(patience)
	}
}
