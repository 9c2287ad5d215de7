package fs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

func headerOf(tid uint32) *fuse.InHeader {
	return &fuse.InHeader{Caller: fuse.Caller{Pid: tid}}
}

// slowCache is a kernel whose notifications take their time.
type slowCache struct{ wait func() }

func (s slowCache) InodeNotify(uint64, int64, int64) fuse.Status {
	s.wait()
	return fuse.OK
}

func (s slowCache) EntryNotify(uint64, string) fuse.Status { return fuse.OK }

func (s slowCache) InodeNotifyStoreCache(uint64, int64, []byte) fuse.Status {
	s.wait()
	return fuse.OK
}

func TestRequestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBridge(Config{FaultTimeout: time.Second})
		r := b.begin(make(chan struct{}), headerOf(0))
		if r.Err() != nil {
			t.Error(r.Err())
		}
		<-r.Done()
		if !errors.Is(r.Err(), context.DeadlineExceeded) {
			t.Error(r.Err())
		}
		r.end()

		// A signal that is not fatal does not end it.
		cancel := make(chan struct{})
		close(cancel)
		start := time.Now()
		r = b.begin(cancel, headerOf(0))
		<-r.Done()
		if !errors.Is(r.Err(), context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", r.Err(), time.Since(start))
		}
		r.end()

		// A process that is gone ends it, and so does a filesystem that is.
		r = b.begin(cancel, headerOf(1<<30))
		<-r.Done()
		if !errors.Is(r.Err(), context.Canceled) {
			t.Error(r.Err())
		}
		r.end()
		r = b.begin(cancel, headerOf(0))
		done := r.Done()
		b.end()
		<-done
		r.end()

		// Without Done there is no goroutine, and Err tells the time all the same.
		b = newBridge(Config{FaultTimeout: time.Second})
		r = b.begin(make(chan struct{}), headerOf(0))
		time.Sleep(2 * time.Second)
		if !errors.Is(r.Err(), context.DeadlineExceeded) {
			t.Error(r.Err())
		}
		r.end()
	})
}

func TestTasks(t *testing.T) {
	var s tasks
	s.init()
	if s.settle(t.Context()) {
		t.Error("settled with nothing running")
	}
	release := make(chan struct{})
	ran := make(chan struct{}, 3)
	s.run(func() {
		<-release
		s.run(func() { ran <- struct{}{} })
		ran <- struct{}{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s.settle(ctx) {
		t.Error("settled while one was running")
	}
	close(release)
	s.close()
	if len(ran) != 2 {
		t.Errorf("close returned after %d of 2", len(ran))
	}
	s.run(func() { t.Error("ran after close") })
}
