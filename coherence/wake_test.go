package coherence

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// waiting is a call that waits in another goroutine of the bubble.
type waiting struct {
	cancel context.CancelFunc
	done   chan error
}

// start starts f and runs the cluster until f waits for the kernel.
func start(s *sim, f func(ctx context.Context) error) *waiting {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiting{cancel, make(chan error, 1)}
	go func() { w.done <- f(ctx) }()
	for synctest.Wait(); s.deliver(); synctest.Wait() {
	}
	return w
}

// over reports whether the call has returned.
func (w *waiting) over(t *testing.T) bool {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-w.done:
		if err != nil {
			t.Error(err)
		}
		return true
	default:
		return false
	}
}

// end gives up a call that should have returned.
func (w *waiting) end() {
	w.cancel()
	synctest.Wait()
}

// TestWaitersAreWoken: whatever lets the kernel know the last that it did not
// know wakes the acquire, and the open, that waits for that.
func TestWaitersAreWoken(t *testing.T) {
	read := func(t *testing.T, n *simNode) {
		if _, err := n.area.ReadAt(context.Background(), make([]byte, dsm.PageSize), 0); err != nil {
			t.Error(err)
		}
	}
	write := func(t *testing.T, n *simNode) { put(t, n, 5) }
	look := func(t *testing.T, n *simNode) {
		if no, ok := n.area.NextNotice(); ok {
			t.Errorf("there is something to tell the kernel: %+v", no)
		}
	}
	tell := func(_ *testing.T, n *simNode) { n.kernel.finishNotices() }
	for _, c := range []struct {
		name    string
		updates []int32 // of the home, to the page that the replica's kernel has
		open    bool    // an open for writing waits; else an acquire of a writer does
		event   func(t *testing.T, n *simNode)
	}{
		{"acquire by a read", []int32{5}, false, read},
		{"acquire by a write", []int32{5}, false, write},
		{"acquire by nothing to tell", []int32{5, 0}, false, look},
		{"acquire by a notice", []int32{5}, false, tell},
		{"open by a read", []int32{5}, true, read},
		{"open by a notice", []int32{5}, true, tell},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, home, replica := pairOf(t, dsm.Inode{Size: dsm.ExtentSize, Layout: dsm.Layout{DType: dsm.DTypeI32}})
				if c.open {
					replica.leaveWriter()
				}
				replica.kernel.fault(0)
				for _, v := range c.updates {
					put(t, home, v)
					publish(home)
					s.drain()
				}
				w := start(s, func(ctx context.Context) error {
					if !c.open {
						return replica.area.Acquire(ctx, true)
					}
					_, err := replica.node.Open(ctx, simArea, true)
					return err
				})
				defer w.end()
				if w.over(t) {
					t.Fatal("it does not wait")
				}
				c.event(t, replica)
				if !w.over(t) {
					t.Errorf("it is not woken; the kernel knows all: %v", replica.area.mu.cached.Idle())
				}
			})
		})
	}
}

// TestReadLetsAnOpenIn: a READ of the last page whose bytes in the page cache are not known
// wakes an open for writing that has only that to wait for.
func TestReadLetsAnOpenIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, replica := pairOf(t, dsm.Inode{Size: dsm.ExtentSize})
		replica.leaveWriter()
		replica.kernel.fault(0)
		replica.kernel.fault(1)
		put(t, home, 5)
		publish(home)
		s.drain()
		replica.startOpen(true)
		// From now on updates leave pages that are pending, but whose bytes are known.
		if err := home.area.WriteAt(context.Background(), []byte{5}, dsm.PageSize); err != nil {
			t.Fatal(err)
		}
		publish(home)
		s.drain()
		a := replica.area
		w := start(s, func(ctx context.Context) error {
			return a.await(ctx, "open", func() bool { return a.mu.cached.Writable() })
		})
		defer w.end()
		if w.over(t) {
			t.Fatal("it does not wait")
		}
		if _, err := a.ReadAt(context.Background(), make([]byte, dsm.PageSize), 0); err != nil {
			t.Fatal(err)
		}
		if !w.over(t) {
			t.Error("it is not woken")
		}
		if a.mu.cached.Idle() {
			t.Error("the kernel knows all: the test shows nothing")
		}
	})
}

// TestAcquireEndsUnderASteadyStream: an update of the other of two pages arrives
// whenever the kernel is told of one, and the program reads on. The stream has an end, so that
// the test has one: the acquire must not wait for it.
func TestAcquireEndsUnderASteadyStream(t *testing.T) {
	const stream = 1000
	synctest.Test(t, func(t *testing.T) {
		s, home, replica := pair(t, dsm.ApplyArrival)
		updates := 0
		update := func(p dsm.PageIndex) {
			updates++
			if err := home.area.WriteAt(context.Background(), []byte{byte(updates), byte(updates >> 8), 0, 0}, int64(p)*dsm.PageSize); err != nil {
				t.Fatal(err)
			}
			publish(home)
			s.drain()
		}
		replica.kernel.fault(0)
		replica.kernel.fault(1)
		update(0)
		w := start(s, func(ctx context.Context) error { return replica.area.Acquire(ctx, true) })
		defer w.end()
		for !w.over(t) {
			if updates == stream {
				t.Fatalf("the acquire still waits after %d updates", updates)
			}
			no, ok := replica.area.NextNotice()
			if !ok {
				t.Fatal("the acquire waits, but there is nothing to tell the kernel")
			}
			told := dsm.PageIndex(no.Off / dsm.PageSize)
			update(1 - told)
			replica.area.NoticeDone(no)
			synctest.Wait()
			delete(replica.kernel.cache, told)
			replica.kernel.fault(told)
		}
		s.drain() // what the homes were made to wait with
		want(t, replica, get(home))
	})
}

type bell struct{ rung, attr int }

func (b *bell) Changed(dsm.AreaID)     { b.rung++ }
func (b *bell) AttrChanged(dsm.AreaID) { b.attr++ }
func (b *bell) Miscounted(dsm.AreaID)  {}
func (b *bell) Removed(dsm.AreaID)     {}

// TestNotifierIsKicked: when there is a notice, and not for pages that no page cache has.
func TestNotifierIsKicked(t *testing.T) {
	s, home, replica := pairOf(t, dsm.Inode{Size: dsm.ExtentSize, Layout: dsm.Layout{DType: dsm.DTypeI32}})
	b := &bell{}
	s.drain()
	replica.kernel.finishNotices()
	replica.node.SetPageCache(b)
	if b.rung == 0 || b.attr == 0 {
		t.Errorf("of an area that was open before, and may have changed, it is told %d times, of its attributes %d times", b.rung, b.attr)
	}
	b.rung = 0
	put(t, home, 5)
	publish(home)
	s.drain()
	if b.rung > 0 {
		t.Errorf("kicked %d times for pages that the page cache does not have", b.rung)
	}
	replica.kernel.fault(0)
	put(t, home, 6)
	publish(home)
	s.drain()
	if b.rung == 0 {
		t.Error("not kicked")
	}
}

// TestAwaitEnds: a call that gave up is not looked at any more, one that is over at the last moment is not a
// timeout.
func TestAwaitEnds(t *testing.T) {
	s := newSim(t, 1, 1, dsm.Inode{Size: dsm.ExtentSize})
	n := s.nodes[0]
	n.open(false)
	s.drain()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := n.area.await(ctx, "test", func() bool { return true }); err != nil {
		t.Error(err)
	}
	if err := n.area.await(ctx, "test", func() bool { return false }); err == nil {
		t.Error("no error")
	}
	if k := len(n.area.mu.waiters); k > 0 {
		t.Errorf("%d waiters are left", k)
	}
}

// TestWaitForHomeThatIsCutOff: a subscription, or an acquire, is dropped on its way to a home that the area has nothing left at
// when that is seen.
func TestWaitForHomeThatIsCutOff(t *testing.T) {
	for _, acquire := range []bool{false, true} {
		t.Run(fmt.Sprintf("acquire=%v", acquire), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 2, dsm.Inode{Size: dsm.ExtentSize})
				n := s.nodes[1]
				wait := func(ctx context.Context) error {
					_, err := n.node.Open(ctx, simArea, false)
					return err
				}
				if acquire {
					n.open(false)
					s.drain()
					wait = func(ctx context.Context) error { return n.area.Acquire(ctx, true) }
				}
				ctx, cancel := context.WithCancel(context.Background())
				w := &waiting{cancel, make(chan error, 1)}
				go func() { w.done <- wait(ctx) }()
				synctest.Wait()
				clear(s.net)
				s.resized(0)
				synctest.Wait()
				n.node.SessionReset(s.nodes[0].id)
				for synctest.Wait(); s.deliver(); synctest.Wait() {
				}
				if !w.over(t) {
					t.Error("it waits for what nobody will send")
				}
				w.end()
			})
		})
	}
}
