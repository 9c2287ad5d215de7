package coherence

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestHandleNow: it handles what takes little time, and leaves to Handle, without having done anything, what may have to wait.
func TestHandleNow(t *testing.T) {
	s, home, other := pairOf(t, dsm.Inode{Size: dsm.PageSize, Layout: dsm.Layout{DType: dsm.DTypeI32}})
	now := func(msg any, payload []byte) (handled bool) {
		done := make(chan struct{})
		go func() { // the lock may be held by this goroutine
			defer close(done)
			var err error
			if handled, err = home.node.HandleNow(other.id, msg, payload); err != nil {
				t.Errorf("%T: %v", msg, err)
			}
		}()
		<-done
		return handled
	}
	put(t, other, 6)
	publish(other)
	f := s.take(link{other.i, home.i})
	m := f.msg.(*wire.Publish)

	home.area.mu.Lock()
	if now(m, f.payload) {
		t.Error("it took the area's lock, which somebody has")
	}
	home.area.mu.Unlock()
	late := *m
	if late.Rev++; now(&late, f.payload) {
		t.Error("it handled a message of a state of the catalog that the node has not applied")
	}
	if unknown := (&wire.Acquire{Stamp: wire.Stamp{Area: 99}}); now(unknown, nil) {
		t.Error("it made an area")
	}
	if now(&wire.HandoverDone{}, nil) {
		t.Error("it handled a message about no area")
	}
	want(t, home, 0)
	if !now(m, f.payload) {
		t.Error("it would wait for something")
	}
	want(t, home, 6)

	s.resized(2 * dsm.ExtentSize)
	if now(&wire.Acquire{Stamp: m.Stamp}, nil) {
		t.Error("it took a step of a large area")
	}
	s.drain()
}
