package main

import (
	"context"
	"sync"
	"time"

	"github.com/dsmfs/dsmfs/coherence"
	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// scrubs compare from time to time what this node is the home of with its backups' copies, and at once when the user says so.
type scrubs struct {
	cancel context.CancelFunc // nil: not started
	done   sync.WaitGroup
	orders chan chan error // of the user; capacity 1 each
}

// leastScrub keeps --scrub from taking all of the time.
const leastScrub = time.Minute

func (n *node) startScrubs(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	n.scrubs.cancel = cancel
	n.scrubs.done.Go(func() { n.scrub(ctx) })
	return nil
}

func (s *scrubs) stop() {
	if s.cancel != nil {
		s.cancel()
		s.done.Wait()
	}
}

// scrub makes a pass each time that the period is over, or the user wants one.
func (n *node) scrub(ctx context.Context) {
	var due <-chan time.Time
	if n.cfg.scrub > 0 {
		t := time.NewTicker(n.cfg.scrub)
		defer t.Stop()
		due = t.C
	}
	var waits chan error
	for {
		if waits == nil {
			select {
			case <-due:
			case waits = <-n.scrubs.orders:
			case <-ctx.Done():
				return
			}
		}
		if waits != nil {
			_, err := n.scrubOnce(ctx, true)
			waits <- err
			waits = nil
			continue
		}
		pass, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = n.scrubOnce(pass, false) // it ends early only if it is told to
		}()
		select {
		case waits = <-n.scrubs.orders: // one that does not take its time comes in its place
		case <-ended:
		case <-ctx.Done():
		}
		cancel()
		<-ended
	}
}

func (n *node) scrubOnce(ctx context.Context, now bool) (coherence.Scrubbed, error) {
	began := time.Now()
	found, err := n.data.Scrub(ctx, now)
	if err == nil {
		n.log.Info("compared copies", "same", found.Same, "skipped", found.Skipped, "differed", found.Differed, "bytes", found.Bytes, "took", time.Since(began).Round(time.Millisecond))
	}
	return found, err
}

// Scrub implements control.Info.
func (i info) Scrub(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case i.n.scrubs.orders <- done:
	case <-ctx.Done():
		return errs.E(errs.Timeout, "scrub", "another pass is under way: %w", context.Cause(ctx))
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errs.E(errs.Timeout, "scrub", "it goes on, and the file scrub will say what it has found: %w", context.Cause(ctx))
	}
}

// Scrubbed implements control.Info.
func (i info) Scrubbed() []control.Stat {
	last := i.n.data.LastScrub()
	ended := int64(0)
	if last.Passes > 0 {
		ended = last.Ended.Unix()
	}
	return []control.Stat{
		control.Figure("passes", last.Passes), control.Figure("same", last.Same), control.Figure("skipped", last.Skipped),
		control.Figure("differed", last.Differed), control.Figure("bytes", last.Bytes), control.Figure("ended", ended),
	}
}
