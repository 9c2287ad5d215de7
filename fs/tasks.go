package fs

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// tasks runs functions in the background and knows when none is running. Unlike a sync.WaitGroup it
// may be waited for while functions are added, and it can be closed.
type tasks struct {
	mu struct {
		lockrank.Mutex
		n      int
		ends   uint64        // how many have ended
		idle   chan struct{} // closed when n becomes 0
		closed bool
	}
}

func (t *tasks) init() { t.mu.Init("fs.tasks") }

// run runs f in a goroutine, unless the tasks are closed.
func (t *tasks) run(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return
	}
	if t.mu.n == 0 {
		t.mu.idle = make(chan struct{})
	}
	t.mu.n++
	go func() {
		defer t.done()
		f()
	}()
}

func (t *tasks) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.ends++
	if t.mu.n--; t.mu.n == 0 {
		close(t.mu.idle)
	}
}

// settle waits until no function is running. It reports whether there was one, and whether that was
// before ctx ended.
func (t *tasks) settle(ctx context.Context) bool {
	t.mu.Lock()
	n, idle := t.mu.n, t.mu.idle
	t.mu.Unlock()
	if n == 0 {
		return false
	}
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// ended returns how many functions have ended.
func (t *tasks) ended() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.ends
}

// close waits until no function is running, and prevents further ones.
func (t *tasks) close() {
	for {
		t.mu.Lock()
		n, idle := t.mu.n, t.mu.idle
		t.mu.closed = n == 0
		t.mu.Unlock()
		if n == 0 {
			return
		}
		<-idle
	}
}
