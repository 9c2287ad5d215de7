package coherence

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestPublishNow: it ends with the ack of the home, at once where there is nothing to wait for, and at its limit.
func TestPublishNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, other := pairOf(t, dsm.Inode{Size: dsm.PageSize, Layout: dsm.Layout{DType: dsm.DTypeI32}})
		var ended []error
		now := func(n *simNode) bool {
			ended = nil
			return n.area.PublishNow(time.Second, func(err error) {
				n.area.Version() // the lock is free
				ended = append(ended, err)
			})
		}
		is := func(what string, want ...errs.Kind) {
			t.Helper()
			endedWith(t, what, ended, want)
		}
		if !now(other) {
			t.Fatal("nothing to publish, and it would wait")
		}
		is("nothing to publish", errs.Other)
		put(t, home, 5)
		if !now(home) {
			t.Fatal("the home itself would wait")
		}
		is("the home itself", errs.Other)
		s.drain()
		put(t, other, 6)
		if !now(other) {
			t.Fatal("it would wait for something else than the home")
		}
		is("before the ack")
		s.drain()
		is("after the ack", errs.Other)
		want(t, home, 6)

		put(t, other, 7)
		now(other)
		time.Sleep(2 * time.Second) // of the bubble
		synctest.Wait()
		is("no ack", errs.Timeout)
		s.drain()
		is("an ack that is late", errs.Timeout)
	})
}

// endedWith checks how calls have ended; errs.Other is success.
func endedWith(t *testing.T, what string, ended []error, want []errs.Kind) {
	t.Helper()
	ok := len(ended) == len(want)
	for i := 0; ok && i < len(want); i++ {
		ok = want[i] == errs.Other && ended[i] == nil || want[i] != errs.Other && errs.Is(ended[i], want[i])
	}
	if !ok {
		t.Fatalf("%s: ended with %v, want %v", what, ended, want)
	}
}

// TestPublishNowDoesNotWait: it leaves to Publish what may take long, and does nothing then.
func TestPublishNowDoesNotWait(t *testing.T) {
	no := func(error) { t.Error("done was called") }
	s, _, other := pairOf(t, dsm.Inode{Size: dsm.PageSize, Layout: dsm.Layout{DType: dsm.DTypeI32}})
	a := other.area
	put(t, other, 6)
	elsewhere := func() (taken bool) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			taken = a.PublishNow(time.Minute, no)
		}()
		<-done
		return taken
	}
	a.mu.Lock()
	if elsewhere() {
		t.Error("it took the area's lock, which somebody has")
	}
	a.mu.Unlock()
	a.attached.mu.Lock()
	if elsewhere() {
		t.Error("it took the lock of the mappings, which somebody has")
	}
	m := a.attached.mu.tracking.Add(nil, 0, dsm.ExtentSize)
	a.attached.mu.Unlock()
	if a.PublishNow(time.Minute, no) {
		t.Error("it compared a large mapping")
	}
	a.attached.mu.tracking.Remove(m)
	s.resized(2 * dsm.ExtentSize)
	if a.PublishNow(time.Minute, no) {
		t.Error("it published a large area")
	}
	publish(other) // the locks are free
	s.drain()
}

// TestVersionNow: a version of the owner, which is the home, is over at once; where a backup is to have it first, it is over when that has.
func TestVersionNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 3, dsm.Spec{})
		owner := c.nodes[0]
		if err := c.opens(owner); err != nil {
			t.Fatal(err)
		}
		c.resize(dsm.PageSize)
		c.calm()
		c.publishes(owner, 9, 2) // it looks for a header
		var ended []error
		now := func(b byte) {
			t.Helper()
			c.stores(owner, 9, b)
			ended = nil
			if !owner.area.PublishNow(time.Second, func(err error) { ended = append(ended, err) }) {
				t.Fatal("it would wait")
			}
			synctest.Wait()
		}
		is := func(what string, want ...errs.Kind) {
			t.Helper()
			endedWith(t, what, ended, want)
		}
		now(3)
		is("one copy", errs.Other)
		c.calm()
		for _, n := range c.nodes {
			if got := n.byteOf(owner.area.Version(), 9); got != "3" {
				t.Errorf("node %d has %s", n.i, got)
			}
		}

		c.copies = 2
		c.changeView(c.assign)
		c.calm()
		if row := owner.Current().Row(owner.Current().Placed(simArea)); len(slices.Collect(row.InSync())) == 0 {
			t.Fatal("no backup is in sync")
		}
		before := owner.area.Version()
		now(4)
		is("before the backup has it")
		for _, n := range []*simNode{owner, c.nodes[2]} {
			if n.area.Version() != before {
				t.Errorf("node %d: a reader has what the backup lacks", n.i)
			}
		}
		c.calm()
		is("when the backup has it", errs.Other)
		if got := c.nodes[2].byteOf(owner.area.Version(), 9); got != "4" {
			t.Errorf("a reader has %s", got)
		}
		now(5)
		time.Sleep(2 * time.Second) // of the bubble
		synctest.Wait()
		is("the backup is silent", errs.Timeout)
		if err := c.does(owner, owner.area.Publish); err != nil {
			t.Fatal(err)
		}
		if got := c.nodes[2].byteOf(owner.area.Version(), 9); got != "5" {
			t.Errorf("after the next call a reader has %s", got)
		}
	})
}

// onceSource is a Source of which a test counts the scans.
type onceSource struct{ scans int }

func (s *onceSource) Scan(_, _ func(off, n int64)) error {
	s.scans++
	return nil
}
func (s *onceSource) Disarm() error { return nil }
func (s *onceSource) Arm() error    { return nil }

// TestVersionLooksOnce: a version looks once for what programs have stored. A second look finds nothing, so an area of which all changes each time did not count as dense.
func TestVersionLooksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 2, dsm.Spec{})
		owner := c.nodes[0]
		if err := c.opens(owner); err != nil {
			t.Fatal(err)
		}
		c.resize(64 * dsm.PageSize)
		c.calm()
		c.publishes(owner, 9, 2)
		s := new(onceSource)
		at := &owner.area.attached
		at.mu.Lock()
		at.mu.tracking.Add(s, 0, 64*dsm.PageSize)
		at.mu.Unlock()
		c.publishes(owner, 9, 3)
		if s.scans != 1 {
			t.Errorf("%d scans", s.scans)
		}
	})
}
