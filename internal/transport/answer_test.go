package transport

import (
	"runtime"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// echoing returns a node 1 and a node 2 that calls answer, in OnFrame, for each frame of node 1.
func echoing(t *testing.T, answer func(b *node, id uint64)) (a *node) {
	var b *node
	ready := make(chan struct{})
	a = newNode(t, 1, nil)
	b = newNode(t, 2, func(c *Config) {
		c.OnFrame = func(_ dsm.NodeID, f *wire.Frame) error {
			<-ready
			answer(b, f.Msg.(*wire.PushAck).ID)
			return nil
		}
	})
	close(ready)
	know(a, b)
	return a
}

// TestAnswersLeave has answers wait for more that never comes: they leave all the same when there
// is nothing to read.
func TestAnswersLeave(t *testing.T) {
	a := echoing(t, func(b *node, id uint64) { b.Send(1, &wire.PushAck{ID: id}, nil, true) })
	for from, n := 0, 1; n <= 1000; from, n = from+n, n*10 {
		for i := range n {
			a.Send(2, &wire.PushAck{ID: uint64(from + i)}, nil, i%2 == 0 && i < n-1)
		}
		for i := range n {
			if f := a.frame(); f.id != uint64(from+i) {
				t.Fatalf("answer %d is %d", from+i, f.id)
			}
		}
	}
}

// TestAnswersLeaveWhileThereIsMore sends without a pause: the first answers come long before the last
// frame is handled.
func TestAnswersLeaveWhileThereIsMore(t *testing.T) {
	const frames, size = 64, 64 << 10
	early := make(chan struct{})
	a := echoing(t, func(b *node, id uint64) {
		b.Send(1, &wire.PushAck{ID: id}, nil, true)
		if id == frames-1 { // more than answerBytes are behind
			select {
			case <-early:
			case <-time.After(20 * time.Second):
				t.Error("no answer before all frames were handled")
			}
		}
	})
	for i := range frames {
		a.Send(2, &wire.PushAck{ID: uint64(i)}, [][]byte{make([]byte, size)}, i < frames-1)
	}
	a.frame()
	close(early)
	for range frames - 1 {
		a.frame()
	}
}

// TestFlush waits, in the handler, for what the handler sent.
func TestFlush(t *testing.T) {
	got := make(chan struct{})
	a := echoing(t, func(b *node, id uint64) {
		b.Send(1, &wire.PushAck{ID: id}, nil, true)
		b.Flush(1)
		select {
		case <-got:
		case <-time.After(20 * time.Second):
			t.Error("no answer after Flush")
		}
	})
	a.Send(2, &wire.PushAck{ID: 7}, nil, false)
	if f := a.frame(); f.id != 7 {
		t.Errorf("answer %d, want 7", f.id)
	}
	close(got)
}

// TestLargeAnswersLeave has answers wait for more, each of which takes as long to send as to make: no
// more than a few wait, or a burst of requests would fill the queue and break the session.
func TestLargeAnswersLeave(t *testing.T) {
	const requests, size = 30, 1 << 20
	left := make(chan struct{}, requests)
	a := echoing(t, func(b *node, id uint64) {
		defer func() { left <- struct{}{} }()
		b.SendShared(1, &wire.PushAck{ID: id}, wire.Share(size), true)
		b.Transport.mu.Lock()
		o := b.Transport.mu.out[1]
		b.Transport.mu.Unlock()
		for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
			if waiting, live := o.load(); live && waiting < 2*size {
				return
			}
			if time.Now().After(deadline) {
				t.Error("large answers wait for more")
				return
			}
		}
	})
	for i := range requests {
		a.Send(2, &wire.PushAck{ID: uint64(i)}, nil, i < requests-1)
	}
	for i := range requests {
		if f := a.frame(); f.id != uint64(i) {
			t.Fatalf("answer %d is %d", i, f.id)
		}
		<-left // the handler looks at the session, so the test must not end before
	}
}

// TestMore sends on a way whose writer does not run: it is woken by what does not wait for more, and by what is too much to.
func TestMore(t *testing.T) {
	o := &outbound{t: &Transport{cfg: Config{QueueBytes: 64 << 20}}, id: 2, wake: make(chan struct{}, 1)}
	o.mu.Init("transport.outbound")
	for _, x := range []struct {
		size int
		more bool
		want bool
	}{
		{0, true, false}, {100, true, false}, {copyPayload + 1, true, false}, {0, false, true},
		{0, true, false}, {inlineBytes, true, true},
	} {
		o.send(&wire.PushAck{}, [][]byte{make([]byte, x.size)}, nil, x.more)
		if woken := len(o.wake) > 0; woken != x.want {
			t.Errorf("%d bytes, more %v: woken %v", x.size, x.more, woken)
		} else if woken {
			<-o.wake
			o.mu.queue.reset() // as the writer does
		}
	}
	o.send(&wire.PushAck{}, nil, nil, true)
	o.flush()
	if len(o.wake) == 0 {
		t.Error("not woken by a flush")
	}
}
