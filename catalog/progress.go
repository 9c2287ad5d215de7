package catalog

import (
	"context"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// progress is how far this node has applied the log, with the goroutines that wait for more.
type progress struct {
	index atomic.Uint64
	epoch atomic.Uint64

	mu struct {
		lockrank.Mutex
		waiting map[*waiter]struct{}
	}
}

type waiter struct {
	index uint64
	epoch dsm.Epoch
	done  chan struct{}
}

func (p *progress) init() { p.mu.Init("catalog.progress") }

func (p *progress) reached(index uint64, epoch dsm.Epoch) bool {
	return p.index.Load() >= index && dsm.Epoch(p.epoch.Load()) >= epoch
}

// advance says that the entries up to index are applied and that the Observer has been told. It
// wakes those that waited for them.
func (p *progress) advance(index uint64, epoch dsm.Epoch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.Store(index)
	p.epoch.Store(uint64(epoch))
	for w := range p.mu.waiting {
		if p.reached(w.index, w.epoch) {
			close(w.done)
			delete(p.mu.waiting, w)
		}
	}
}

// wait returns when index and epoch are reached, or when ctx or life ends.
func (p *progress) wait(ctx, life context.Context, index uint64, epoch dsm.Epoch) error {
	if p.reached(index, epoch) {
		return nil
	}
	w := &waiter{index: index, epoch: epoch, done: make(chan struct{})}
	p.mu.Lock()
	if p.reached(index, epoch) {
		p.mu.Unlock()
		return nil
	}
	if p.mu.waiting == nil {
		p.mu.waiting = make(map[*waiter]struct{})
	}
	p.mu.waiting[w] = struct{}{}
	p.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	case <-life.Done():
	}
	p.mu.Lock()
	delete(p.mu.waiting, w)
	p.mu.Unlock()
	return gaveUp(ctx)
}
