package attach

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"golang.org/x/sys/unix"
)

// laterMount has an area whose publishes end when the test says so.
type laterMount struct {
	openMount
	area *laterArea
}

type laterArea struct {
	idleArea
	mu   sync.Mutex
	done []func(error)
}

func (m *laterMount) Open(context.Context, dsm.Ino, bool) (Area, error) { return m.area, nil }

func (a *laterArea) PublishNow(_ time.Duration, done func(error)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done = append(a.done, done)
	return true
}

// take waits for n publishes.
func (a *laterArea) take(t *testing.T, n int) []func(error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
		a.mu.Lock()
		if len(a.done) >= n {
			defer a.mu.Unlock()
			return a.done
		}
		a.mu.Unlock()
	}
	t.Fatalf("%d publishes have not come", n)
	return nil
}

// TestPublishesAreAnsweredWhenTheyEnd: in whatever order that is, also of a program that is gone.
func TestPublishesAreAnsweredWhenTheyEnd(t *testing.T) {
	m := &laterMount{area: &laterArea{}}
	h := listenHostileWith(t, defaultLimits, m, &m.openMount)
	p := h.dial()
	id, e, text := p.attach()
	if e != 0 {
		t.Fatal(text)
	}
	for tag := range uint64(3) {
		if err := p.post(header{op: opPublish, tag: tag, attachment: id}, ""); err != nil {
			t.Fatal(err)
		}
	}
	done := m.area.take(t, 3)
	done[1](nil)
	if a, text := p.answer(); a.tag != 1 || a.errno != 0 || a.arg[0] != 1 {
		t.Errorf("answer %d, %v, version %d, %s", a.tag, a.errno, a.arg[0], text)
	}
	done[0](unix.EIO)
	if a, _ := p.answer(); a.tag != 0 || a.errno != unix.EIO {
		t.Errorf("answer %d, %v, want EIO of the first", a.tag, a.errno)
	}
	p.Close()
	done[2](nil)
}

// TestPublishesAreBounded: of a program that reads no answers no more requests are read.
func TestPublishesAreBounded(t *testing.T) {
	h := listenHostile(t, defaultLimits)
	before := runtime.NumGoroutine()
	p := h.dial()
	id, e, text := p.attach()
	if e != 0 {
		t.Fatal(text)
	}
	sent := p.flood(header{op: opPublish, attachment: id})
	if n := runtime.NumGoroutine() - before; sent == floods || n > defaultLimits.connRequests+50 {
		t.Errorf("%d goroutines for %d publishes", n, sent)
	}
	for range sent { // each has an answer
		if a, text := p.answer(); a.errno != 0 {
			t.Fatalf("publish %d: %s", a.tag, text)
		}
	}
}
