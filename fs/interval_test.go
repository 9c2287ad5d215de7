package fs

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// publishedArea is an area whose publishes take a while. The other methods are not called.
type publishedArea struct {
	Area
	took    time.Duration
	compare time.Duration // of took

	mu       sync.Mutex
	fails    error
	compared time.Duration // in all
	at       []time.Time   // starts of the publishes
}

func (p *publishedArea) Grown(context.Context, int64, int64) error { return nil }

func (p *publishedArea) CompareTime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.compared
}

func (p *publishedArea) Extended() int64 { return 0 }

func (p *publishedArea) Publish(context.Context) error {
	p.mu.Lock()
	p.at = append(p.at, time.Now())
	p.mu.Unlock()
	time.Sleep(p.took)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compared += p.compare
	return p.fails
}

func (p *publishedArea) Sync(ctx context.Context, _ bool) error { return p.Publish(ctx) }

// fail makes publishes fail from now on, or succeed.
func (p *publishedArea) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails = err
}

// starts returns when the publishes so far began, and forgets them.
func (p *publishedArea) starts() []time.Time {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.at
	p.at = nil
	return at
}

// pacedArea returns an area that programs may store into, without a harvester.
func pacedArea(every time.Duration) (*bridge, *openArea, *publishedArea) {
	b := newBridge(Config{Names: newFakeNames(), FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	b.harvest.Stop()
	p := &publishedArea{}
	a := newOpenArea(1)
	a.mu.area = p
	a.every.Store(int64(every))
	a.live.Store(1)
	b.intervals.opened(a)
	return b, a, p
}

// wantPublishes checks the publishes since the last time, by the time since the start.
func (p *publishedArea) wantPublishes(t *testing.T, start time.Time, want ...time.Duration) {
	t.Helper()
	starts := p.starts()
	if len(starts) != len(want) {
		t.Errorf("%d publishes, want %d", len(starts), len(want))
		return
	}
	for i, at := range starts {
		if got := at.Sub(start); got != want[i] {
			t.Errorf("publish %d came at %v, want %v", i, got, want[i])
		}
	}
}

const ms = time.Millisecond

// TestPublishAtInterval: what write(2) stores is published at the interval, what the
// harvest brings soon, and without stores nothing happens.
func TestPublishAtInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, a, p := pacedArea(100 * ms)
		start := time.Now()
		store := func(w wish) {
			a.stored.Add(1)
			b.intervals.stored(a, w)
		}
		store(atInterval) // the first at once
		time.Sleep(30 * ms)
		store(atInterval)
		time.Sleep(70 * ms) // at 100
		store(atInterval)
		time.Sleep(30 * ms) // at 130
		store(soon)
		time.Sleep(2 * ms)
		store(soon) // of the same harvest
		time.Sleep(20 * time.Second)
		p.wantPublishes(t, start, 5*ms, 105*ms, 140*ms)
		if a.stored.Load() != a.published.Load() || a.pace.wish.Load() != notAtAll {
			t.Errorf("%d of %d published, wish %d", a.published.Load(), a.stored.Load(), a.pace.wish.Load())
		}
		b.background.close()
	})
}

// TestPublishRests: a publish that took T is followed by a rest of 4T, and a store in
// the meantime is not forgotten.
func TestPublishRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, a, p := pacedArea(10 * ms)
		p.took = 20 * ms
		for range 150 {
			a.stored.Add(1)
			b.intervals.stored(a, soon)
			time.Sleep(2 * ms)
		}
		time.Sleep(time.Minute)
		at := p.starts()
		if len(at) < 3 || len(at) > 5 {
			t.Errorf("%d publishes of %v in %v", len(at), p.took, 300*ms)
		}
		for i := 1; i < len(at); i++ {
			if gap := at[i].Sub(at[i-1]); gap < (1+harvest.RestFactor)*p.took {
				t.Errorf("publish %d comes %v after the one before", i, gap)
			}
		}
		if a.stored.Load() != a.published.Load() {
			t.Errorf("%d of %d published", a.published.Load(), a.stored.Load())
		}
		b.background.close()
	})
}

// TestFailedPublishRests: where each publish fails at once an interval tries once a second, and the log says so once.
func TestFailedPublishRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, a, p := pacedArea(10 * ms)
		var log bytes.Buffer
		b.log = slog.New(slog.NewTextHandler(&log, nil))
		p.fail(errs.E(errs.Unavailable, "publish", "the home has died"))
		a.stored.Add(1)
		b.intervals.stored(a, soon)
		time.Sleep(time.Minute)
		if at := p.starts(); len(at) < 50 || len(at) > 61 {
			t.Errorf("%d publishes in a minute", len(at))
		}
		if k := strings.Count(log.String(), "has died"); k != 1 {
			t.Errorf("%d lines in the log", k)
		}
		p.fail(nil)
		time.Sleep(2 * time.Second)
		if a.stored.Load() != a.published.Load() {
			t.Error("it does not publish when it can")
		}
		b.background.close()
	})
}

// TestPublishLeavesSyncAlone: an area whose program publishes by msync has no rounds, and
// its timer fires only once in a while.
func TestPublishLeavesSyncAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, a, p := pacedArea(100 * ms)
		p.took = 300 * time.Microsecond
		r := b.begin(make(chan struct{}), headerOf(0))
		defer r.end()
		const syncs = 1000
		for range syncs {
			a.stored.Add(1)
			b.intervals.stored(a, soon)
			if err := b.sync(r, a, func(ctx context.Context) error { return a.current().Sync(ctx, true) }); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if n := len(p.starts()); n != syncs {
			t.Errorf("%d publishes for %d msyncs", n, syncs)
		}
		b.background.close()
	})
}

// TestPublishAfterTheWholeHarvest: a harvest that takes long has one round at its end,
// but one that never ends does not put it off for more than an interval.
func TestPublishAfterTheWholeHarvest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, a, p := pacedArea(100 * ms)
		start := time.Now()
		for range 60 {
			a.stored.Add(1)
			b.intervals.stored(a, soon)
			time.Sleep(ms)
		}
		time.Sleep(time.Second)
		p.wantPublishes(t, start, 65*ms)
		start = time.Now()
		for range 150 {
			a.stored.Add(1)
			b.intervals.stored(a, soon)
			time.Sleep(ms)
		}
		time.Sleep(time.Second)
		if at := p.starts(); len(at) != 2 || at[0].Sub(start) > 106*ms || a.stored.Load() != a.published.Load() {
			t.Errorf("published at %v, started at %v", at, start)
		}
		b.background.close()
	})
}

// TestPublishAtNewInterval: an interval counts from the moment that it is noted.
func TestPublishAtNewInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, a, p := pacedArea(0)
		start := time.Now()
		a.stored.Add(1)
		b.intervals.stored(a, atInterval)
		time.Sleep(time.Hour)
		p.wantPublishes(t, start)
		set := func(every time.Duration) {
			a.note(dsm.Inode{Spec: dsm.Spec{Interval: every}})
			b.intervals.changed(a)
		}
		set(10 * ms)
		time.Sleep(time.Second)
		p.wantPublishes(t, start, time.Hour+ms)
		set(time.Minute)
		start = time.Now()
		a.stored.Add(1)
		b.intervals.stored(a, atInterval)
		time.Sleep(90 * time.Second)
		a.stored.Add(1)
		b.intervals.stored(a, atInterval)
		set(0)
		time.Sleep(time.Hour)
		p.wantPublishes(t, start, 59*time.Second+ms) // a minute after the last
		b.background.close()
	})
}

func (a *publishedArea) Recounts() bool { return false }

func (a *publishedArea) Counted() (int64, bool) { return 0, false }
