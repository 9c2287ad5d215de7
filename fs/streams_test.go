package fs

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// streamCase is a versioned file of 8 KiB that threads read by one handle.
type streamCase struct {
	*testing.T
	area   *fakeArea
	h      *fileHandle
	newest byte
}

const streamSize = 8192

// streamTest runs a test with virtual time. Version 1 is there.
func streamTest(t *testing.T, do func(c *streamCase)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		open := newOpenArea(1)
		c := &streamCase{T: t, area: newFakeAreas(nil).area(1)}
		open.mu.area = c.area
		c.h = newFileHandle(open, false)
		c.h.streams = newStreams(c.h.sweep)
		c.publish(streamSize)
		do(c)
		c.h.endStreams()
		if c.area.pins() != 0 {
			t.Errorf("%d pins of a closed file", c.area.pins())
		}
	})
}

// publish makes the next version.
func (c *streamCase) publish(size int) {
	c.newest++
	c.area.version(dsm.Version(c.newest), of(c.newest, size))
}

// pass lets time pass, and what it ends be ended.
func (c *streamCase) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want reads n bytes, all of version v.
func (c *streamCase) want(tid uint32, off int64, n int, v byte) {
	c.Helper()
	p := make([]byte, n)
	if got, err := c.h.readWhole(context.Background(), tid, p, off); got != n || err != nil || p[0] != v {
		c.Errorf("thread %d at %d: %d bytes of version %d, %v; want %d of version %d", tid, off, got, p[0], err, n, v)
	}
}

// wantEnd reads and finds the end.
func (c *streamCase) wantEnd(tid uint32, off int64) {
	c.Helper()
	if got, err := c.h.readWhole(context.Background(), tid, make([]byte, 10), off); got != 0 || err != nil {
		c.Errorf("thread %d at %d: %d bytes, %v; want the end", tid, off, got, err)
	}
}

// wantDropped reads and finds that the version is not kept.
func (c *streamCase) wantDropped(tid uint32, off int64) {
	c.Helper()
	if got, err := c.h.readWhole(context.Background(), tid, make([]byte, 10), off); !errs.Is(err, errs.Dropped) {
		c.Errorf("thread %d at %d: %d bytes, %v; want that the version is dropped", tid, off, got, err)
	}
}

// TestReadsOfAThreadDoNotGoBack has two threads read where the other one ended.
func TestReadsOfAThreadDoNotGoBack(t *testing.T) {
	streamTest(t, func(c *streamCase) {
		c.want(1, 0, 4096, 1)
		c.publish(streamSize)
		c.want(2, 100, 10, 2)
		c.want(2, 4096, 10, 2)
		c.want(1, 4096, 10, 1)
		c.wantEnd(1, streamSize+1) // of the newest; that thread has not read to the end
		c.publish(streamSize)
		c.want(3, 0, 4096, 3)
		c.want(2, 4106, streamSize-4106, 2)
		c.wantEnd(2, streamSize)
		c.publish(streamSize)
		c.want(2, 0, 4096, 4)
		c.want(3, 4096, 4096, 3)
		c.wantEnd(3, streamSize)
		c.want(2, 8000, 10, 4)
		c.want(3, 8010, 10, 4) // which has come to the end, so it may be a thread of a program in Go
	})
}

// TestThreadTakesOver moves what a program reads from thread to thread and back, as programs in Go do.
func TestThreadTakesOver(t *testing.T) {
	streamTest(t, func(c *streamCase) {
		c.want(1, 0, 10, 1)
		c.publish(streamSize)
		c.want(2, 10, 10, 1)
		c.publish(streamSize)
		c.want(1, 20, 10, 1)
		c.want(2, 30, 10, 1)
		c.wantEnd(3, streamSize)
		c.pass(takeOver * 2)
		c.want(1, 40, 10, 3) // somebody else
		c.want(2, 40, 10, 1)
	})
	streamTest(t, func(c *streamCase) { // of several, it goes on in the newest
		for tid := range uint32(64) { // so that it is hardly by chance
			if tid == 63 {
				c.publish(streamSize)
			}
			c.want(1+tid, 0, 10, c.newest)
		}
		c.want(100, 10, 10, 2)
	})
	const large = 4 * maxTransfer
	streamTest(t, func(c *streamCase) {
		c.publish(large)
		c.want(1, 0, maxTransfer, 2)
		c.publish(large + 10)
		c.want(2, maxTransfer, maxTransfer, 2)
		c.publish(large + 10)
		c.want(1, 2*maxTransfer, maxTransfer, 2)
		c.publish(large + 10)
		c.want(2, 3*maxTransfer, maxTransfer, 2)
		c.wantEnd(1, large)
		c.want(2, large, 10, 5) // the program has been told of the end
	})
}

// TestManyThreads has more threads read than a handle remembers: none goes back.
func TestManyThreads(t *testing.T) {
	streamTest(t, func(c *streamCase) {
		c.want(1, 0, 10, 1)
		c.publish(streamSize)
		c.want(2, 100, 10, 2)
		c.pass(time.Millisecond)
		c.want(1, 10, 10, 1)
		c.pass(time.Millisecond)
		for tid := range uint32(maxStreams - 1) {
			c.want(10+tid, 200, 10, 2)
		}
		c.want(2, 20, 10, 2)
	})
}

// TestReadsOfAThreadAtTheSameTime come from io_uring: none leaves a pin, nor does one that ends after the file was closed.
func TestReadsOfAThreadAtTheSameTime(t *testing.T) {
	streamTest(t, func(c *streamCase) {
		begin := func() *stream {
			s, err := c.h.stream(context.Background(), c.area, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		first, second, late := begin(), begin(), begin()
		c.h.keep(c.area, 1, first)
		c.h.keep(c.area, 1, second)
		if c.area.pins() != 2 {
			t.Errorf("%d pins, want that of the last and that of the one under way", c.area.pins())
		}
		c.h.endStreams()
		c.h.keep(c.area, 1, late)
	})
}

// TestEachPinIsIdleInItsTime has two threads stop one after the other.
func TestEachPinIsIdleInItsTime(t *testing.T) {
	streamTest(t, func(c *streamCase) {
		c.want(1, 0, 10, 1)
		c.pass(streamIdle / 2)
		c.want(2, 0, 10, 1)
		for _, want := range []int{1, 0} {
			c.pass(streamIdle/2 + time.Millisecond)
			if got := c.area.pins(); got != want {
				t.Errorf("%d pins, want %d", got, want)
			}
		}
	})
}

// TestDroppedIsToldOnce: who reads after a pause is told that the version is dropped, then gets the newest.
func TestDroppedIsToldOnce(t *testing.T) {
	streamTest(t, func(c *streamCase) {
		c.want(1, 0, 4096, 1)
		c.pass(streamIdle * 2)
		for range fakeRetained {
			c.publish(streamSize)
		}
		c.wantDropped(1, 4096)
		c.want(1, 4096, 10, 3)

		// After a piece of the largest size the error may end a read(2) that returns what came before, so it comes twice. The piece is smaller if the buffer
		// begins within a page.
		for _, n := range []int{maxTransfer, maxTransfer - 1392, maxTransfer - dsm.PageSize + 1} {
			c.publish(2 * maxTransfer)
			c.want(1, 0, n, c.newest)
			c.pass(streamIdle * 2)
			for range fakeRetained {
				c.publish(2 * maxTransfer)
			}
			c.wantDropped(1, int64(n))
			c.wantDropped(1, int64(n))
			c.want(1, int64(n), 10, c.newest)
		}
	})
}

// TestReadGoesOnWithoutRoom: after a pause there need not be memory for older versions.
func TestReadGoesOnWithoutRoom(t *testing.T) {
	streamTest(t, func(c *streamCase) {
		c.want(1, 0, 4096, 1)
		c.pass(streamIdle * 2)
		c.publish(streamSize)
		c.area.full.Store(true)
		c.want(1, 4096, 10, 1)
	})
}

// TestEndIsNotOld: after a pause the end is that of the newest version.
func TestEndIsNotOld(t *testing.T) {
	streamTest(t, func(c *streamCase) {
		c.want(1, 0, streamSize, 1)
		c.publish(streamSize + 10)
		c.pass(streamIdle * 2)
		c.want(1, streamSize, 10, 2)

		c.want(1, 0, streamSize+10, 2)
		c.publish(streamSize + 20)
		c.want(2, 0, 10, 3)
		c.want(2, streamSize+10, 10, 3) // where another thread's version ends
		c.wantEnd(1, streamSize+10)
		c.want(1, streamSize+10, 10, 3)

		// One that is told of the end does not end what another one reads.
		c.want(3, 0, streamSize+20, 3)
		c.want(4, 0, streamSize+20, 3)
		c.publish(streamSize + 30)
		c.wantEnd(3, streamSize+20)
		c.wantEnd(4, streamSize+20)
	})
}

// TestNoVersionIsNoZeroes: a read of an area of which no version is here fails. What it is to find is not known.
func TestNoVersionIsNoZeroes(t *testing.T) {
	open := newOpenArea(1)
	open.mu.area, open.mu.size = newFakeAreas(nil).area(1), streamSize
	h := newFileHandle(open, false)
	h.streams = newStreams(h.sweep)
	defer h.endStreams()
	if n, err := h.readWhole(t.Context(), 1, make([]byte, 10), 0); n != 0 || !errs.Is(err, errs.Unavailable) {
		t.Errorf("%d bytes, %v", n, err)
	}
}
