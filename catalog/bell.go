package catalog

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// bell wakes all goroutines that listen. To wait for a condition call hear before looking at the
// condition, so that no ring is missed:
//
//	for {
//		ring := b.hear()
//		if condition() { break }
//		<-ring
//	}
type bell struct {
	mu struct {
		lockrank.Mutex
		ch chan struct{}
	}
}

func (b *bell) init() { b.mu.Init("catalog.bell") }

func (b *bell) hear() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.ch == nil {
		b.mu.ch = make(chan struct{})
	}
	return b.mu.ch
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.ch != nil {
		close(b.mu.ch)
		b.mu.ch = nil
	}
}

// until returns nil when cond is true, looking again at every ring, or the error of ctx or life.
func (b *bell) until(ctx, life context.Context, cond func() bool) error {
	for {
		ring := b.hear()
		if cond() {
			return nil
		}
		select {
		case <-ring:
		case <-ctx.Done():
			return gaveUp(ctx)
		case <-life.Done():
			return gaveUp(ctx)
		}
	}
}
