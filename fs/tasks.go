package fs

import (
	"context"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// tasks runs functions in the background, which may be waited for. Unlike a sync.WaitGroup it
// may be waited for while functions are added, and it can be closed.
type tasks struct {
	mu struct {
		lockrank.Mutex
		running map[chan struct{}]struct{} // closed when the function has ended
		ends    uint64                     // how many have ended
		closed  bool
	}
}

func (t *tasks) init() {
	t.mu.Init("fs.tasks")
	t.mu.running = make(map[chan struct{}]struct{})
}

// run runs f in a goroutine, unless the tasks are closed.
func (t *tasks) run(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return
	}
	ended := make(chan struct{})
	t.mu.running[ended] = struct{}{}
	go func() {
		defer t.done(ended)
		f()
	}()
}

func (t *tasks) done(ended chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.ends++
	delete(t.mu.running, ended)
	close(ended)
}

// settle waits for the functions that are running now, but not for those that are run meanwhile. It reports
// whether there was one, and whether that was before ctx ended.
func (t *tasks) settle(ctx context.Context) bool {
	t.mu.Lock()
	running := slices.Collect(maps.Keys(t.mu.running))
	t.mu.Unlock()
	for _, ended := range running {
		select {
		case <-ended:
		case <-ctx.Done():
			return false
		}
	}
	return len(running) > 0
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
		t.mu.closed = len(t.mu.running) == 0
		closed := t.mu.closed
		t.mu.Unlock()
		if closed {
			return
		}
		t.settle(context.Background())
	}
}
