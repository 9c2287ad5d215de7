package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// When something fails, the kernel sometimes tries it again before it tells the program. This file
// remembers for a moment what a thread was told.

const (
	// Within unfoundWindow a second LOOKUP belongs to the kernel's second try. A program that asks
	// again so soon after a timeout fails once without waiting.
	unfoundWindow = 100 * time.Millisecond
	// Within failedWindow a second READ belongs to the kernel's second try.
	failedWindow = time.Second
)

// recently remembers a value for each key for a while.
type recently[K comparable, V any] struct {
	window time.Duration
	mu     lockrank.Mutex
	values map[K]timed[V]
}

type timed[V any] struct {
	v  V
	at time.Time
}

func (r *recently[K, V]) init(window time.Duration) {
	r.mu.Init("fs.recently")
	r.window = window
}

func (r *recently[K, V]) put(k K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for k, t := range r.values { // few: these are errors
		if now.Sub(t.at) > r.window {
			delete(r.values, k)
		}
	}
	if r.values == nil {
		r.values = make(map[K]timed[V])
	}
	r.values[k] = timed[V]{v, now}
}

func (r *recently[K, V]) get(k K) (v V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.values[k]
	if !ok || time.Since(t.at) > r.window {
		return v, false
	}
	return t.v, true
}

func (r *recently[K, V]) drop(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.values, k)
}

// unfoundBefore reports whether the LOOKUP repeats one that the catalog did not answer in time. The
// kernel asks again for a name that it knows and could not confirm, which would take the program
// twice the timeout.
func (b *bridge) unfoundBefore(tid uint32, at place) bool {
	was, ok := b.unfound.get(tid)
	if !ok || was != at {
		return false
	}
	b.unfound.drop(tid)
	return true
}

// unfoundNow remembers that the catalog did not answer a LOOKUP.
func (b *bridge) unfoundNow(tid uint32, at place, err error) {
	if errs.Is(err, errs.Timeout) || errs.Is(err, errs.Unavailable) {
		b.unfound.put(tid, at)
	}
}

// failedRead is a READ that failed for a thread.
type failedRead struct {
	node, from, to uint64
}

// failedBefore reports whether the READ repeats one that failed a moment ago. A page fault asks
// again before it becomes a SIGBUS, which would take twice the timeout. And if a signal comes while
// it waits it starts again, so a fault in a Go program, which the runtime signals every 10 ms,
// would never end (Linux 6.18).
func (b *bridge) failedBefore(in *fuse.ReadIn) bool {
	f, ok := b.failed.get(in.Pid)
	return ok && f.node == in.NodeId && in.Offset < f.to && f.from < in.Offset+uint64(in.Size)
}

func (b *bridge) failedNow(in *fuse.ReadIn) {
	b.failed.put(in.Pid, failedRead{in.NodeId, in.Offset, in.Offset + uint64(in.Size)})
}
