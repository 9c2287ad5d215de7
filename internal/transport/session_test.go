package transport

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Frames of a session arrive once and in order, whole, whatever their sizes.
func TestOrder(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, nil)
	know(a, b)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	sizes := func() func() int {
		r := rand.New(rand.NewPCG(seed, 0))
		return func() int { return r.IntN(3) * r.IntN(1<<r.IntN(18)) }
	}
	const count = 5000
	size := sizes()
	for i := range uint64(count) {
		p := bytes.Repeat([]byte{byte(i)}, size())
		third := len(p) / 3
		a.send(b, i, p[:third], nil, p[third:])
	}
	size = sizes()
	for i := range uint64(count) {
		f := b.frame()
		if f.from != 1 || f.id != i {
			t.Fatalf("frame %d from %v, want %d", f.id, f.from, i)
		}
		if want := bytes.Repeat([]byte{byte(i)}, size()); !bytes.Equal(f.payload, want) {
			t.Fatalf("frame %d has %d other bytes than the %d sent", i, len(f.payload), len(want))
		}
	}
	if len(a.resets)+len(b.resets) > 0 {
		t.Fatal("the first session counts as a reset")
	}
	st, want := b.Stats().Peers[1], uint64(count)
	if st.FramesIn != want || st.BytesIn == 0 {
		t.Errorf("stats %+v, want %d frames in", st, want)
	}
}

// Frames that Send writes itself, the rest of one that the socket did not take
// whole, and those that the writer takes over, stay in order.
func TestOrderOfSingleFrames(t *testing.T) {
	const count = 2500 // of 8 KiB: more than the kernel buffers
	start := make(chan struct{})
	b := newNode(t, 2, func(c *Config) {
		deliver := c.OnFrame
		c.OnFrame = func(from dsm.NodeID, f *wire.Frame) error {
			<-start
			return deliver(from, f)
		}
	})
	a := newNode(t, 1, nil)
	know(a, b)
	for !a.Stats().Peers[2].Connected {
		runtime.Gosched()
	}
	for i := range uint64(count) {
		a.send(b, i, bytes.Repeat([]byte{byte(i)}, 8000))
		for began := time.Now(); time.Since(began) < 2*inlinePause; {
			runtime.Gosched()
		}
		if i == count/2 {
			close(start)
		}
	}
	for i := range uint64(count) {
		f := b.frame()
		if f.id != i || !bytes.Equal(f.payload, bytes.Repeat([]byte{byte(i)}, 8000)) {
			t.Fatalf("frame %d with %d bytes, want %d", f.id, len(f.payload), i)
		}
	}
}

// Frames that are sent before the peer's address is known are kept.
func TestSendBeforeSetPeers(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, nil)
	for i := range uint64(10) {
		a.send(b, i)
	}
	know(a, b)
	for i := range uint64(10) {
		if f := b.frame(); f.id != i {
			t.Fatalf("frame %d, want %d", f.id, i)
		}
	}
}

// Frames that are sent while the peer cannot be reached yet are kept.
func TestSendBeforePeerListens(t *testing.T) {
	b := newNode(t, 2, nil)
	addr := b.Addr()
	b.Close()
	a := newNode(t, 1, nil)
	a.SetPeers(map[dsm.NodeID]string{3: addr})
	a.Send(3, &wire.PushAck{ID: 77}, nil, false)
	c := newNode(t, 3, func(c *Config) { c.Listen = addr })
	if f := c.frame(); f.id != 77 {
		t.Fatalf("frame %d, want 77", f.id)
	}
	if len(a.resets) > 0 {
		t.Fatal("a reset without a session")
	}
}

// A node that is never named is given up, with a reset for what was sent.
func TestStranger(t *testing.T) {
	a := newNode(t, 1, func(c *Config) { c.StrangerWait = time.Millisecond })
	a.Send(9, &wire.PushAck{}, nil, false)
	if got := a.reset(); got != 9 {
		t.Fatalf("reset of %v, want 9", got)
	}
}

// A broken connection resets both ends, and the next session works. Numbers
// only grow: frames are dropped, but none comes twice or late.
func TestBrokenConnection(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, nil)
	know(a, b)
	stop, sent := make(chan struct{}), make(chan uint64)
	go func() {
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				sent <- n
				return
			default:
				a.send(b, n, make([]byte, 20000))
			}
			for a.Stats().Peers[2].Queued > 1<<20 {
				runtime.Gosched()
			}
		}
	}()
	var last uint64
	check := func(f frame) {
		if f.id <= last {
			t.Fatalf("frame %d after %d", f.id, last)
		}
		last = f.id
	}
	for range 20 {
		for !a.Stats().Peers[2].Connected {
			runtime.Gosched()
		}
		a.breakAll()
		if got := a.reset(); got != 2 {
			t.Fatalf("a got a reset of %v", got)
		}
		if got := b.reset(); got != 1 {
			t.Fatalf("b got a reset of %v", got)
		}
		check(b.frame())
	}
	close(stop)
	final := <-sent
	a.send(b, final)
	for last < final { // nothing is broken any more, so the last session is whole
		check(b.frame())
	}
}

// What was sent just before a connection broke, with nothing after it, is
// missed: the sender is told though it never writes again.
func TestIdleSenderHearsOfBreak(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, nil)
	know(a, b)
	a.send(b, 1)
	b.frame()
	b.Close()
	if got := a.reset(); got != 2 {
		t.Fatalf("reset of %v, want 2", got)
	}
}

// OnReset of the receiver comes before the frames of the new session.
func TestResetBeforeFrames(t *testing.T) {
	events := make(chan string, 100)
	b := newNode(t, 2, func(c *Config) {
		c.OnFrame = func(_ dsm.NodeID, f *wire.Frame) error { events <- "frame"; return nil }
		c.OnReset = func(dsm.NodeID) { events <- "reset" }
	})
	// Two sessions by hand, so that the second replaces the first.
	for i := range 2 {
		c, _ := dialHello(t, b, hello{min: wire.Version, max: wire.Version, lane: laneData, cluster: testCluster, from: 1, to: 2})
		m, err := wire.Append(nil, &wire.PushAck{}, 0, false, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(m); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			if e := next(t, "event", events); e != "reset" {
				t.Fatalf("%s before the reset", e)
			}
		}
		if e := next(t, "event", events); e != "frame" {
			t.Fatalf("%s, want the frame", e)
		}
	}
}

// A process that follows another one is told of a break before the first frame of a peer, which may have had a session with the process
// before.
func TestHeirIsReset(t *testing.T) {
	events := make(chan string, 100)
	b := newNode(t, 2, func(c *Config) {
		c.Heir = true
		c.OnFrame = func(dsm.NodeID, *wire.Frame) error { events <- "frame"; return nil }
		c.OnReset = func(dsm.NodeID) { events <- "reset" }
	})
	a := newNode(t, 1, nil)
	know(a, b)
	a.send(b, 1, nil)
	if e := next(t, "event", events); e != "reset" {
		t.Fatalf("%s before the reset", e)
	}
	if e := next(t, "event", events); e != "frame" {
		t.Fatalf("%s, want the frame", e)
	}
}

// A peer that takes nothing costs bounded memory, and Send never blocks.
func TestSlowPeer(t *testing.T) {
	const bound = 4 << 20
	release := make(chan struct{})
	b := newNode(t, 2, func(c *Config) {
		c.OnFrame = func(dsm.NodeID, *wire.Frame) error { <-release; return nil }
	})
	t.Cleanup(func() { close(release) }) // before b closes, which waits for the handler
	a := newNode(t, 1, func(c *Config) { c.QueueBytes = bound })
	know(a, b)
	payload := make([]byte, 1<<20)
	most := 0
	for {
		a.send(b, 1, payload)
		most = max(most, a.Stats().Peers[2].Queued)
		select {
		case <-a.resets:
			if most > bound+len(payload)+1000 {
				t.Fatalf("%d bytes were queued, the bound is %d", most, bound)
			}
			return
		default:
		}
	}
}

// A peer that takes nothing for the timeout loses its session though the queue
// is small.
func TestStoppedPeer(t *testing.T) {
	release := make(chan struct{})
	b := newNode(t, 2, func(c *Config) {
		c.OnFrame = func(dsm.NodeID, *wire.Frame) error { <-release; return nil }
	})
	t.Cleanup(func() { close(release) })
	a := newNode(t, 1, func(c *Config) { c.WriteTimeout = 100 * time.Millisecond; c.QueueBytes = 1 << 30 })
	know(a, b)
	for range 64 { // more than the kernel buffers
		a.send(b, 1, make([]byte, 1<<20))
	}
	a.reset()
}

// A node that leaves the set of peers loses its session; Close does not wait
// for it.
func TestRemovedPeer(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, nil)
	know(a, b)
	a.send(b, 1)
	b.frame()
	a.SetPeers(nil)
	if got := a.reset(); got != 2 {
		t.Fatalf("reset of %v, want 2", got)
	}
	if got := b.reset(); got != 1 {
		t.Fatalf("reset of %v, want 1", got)
	}
	know(a, b)
	b.settled(a, 2)
}

// A new incarnation at the address of an old one gets none of its frames.
func TestRestartAtTheSameAddress(t *testing.T) {
	b := newNode(t, 2, nil)
	addr := b.Addr()
	a := newNode(t, 1, nil)
	know(a, b)
	a.send(b, 1)
	b.frame()
	b.Close()
	a.reset()
	c := newNode(t, 3, func(c *Config) { c.Listen = addr })
	a.Send(2, &wire.PushAck{ID: 5}, nil, false)
	for c.Stats().Rejected == 0 { // a goes on trying
		runtime.Gosched()
	}
	a.SetPeers(map[dsm.NodeID]string{3: addr})
	a.Send(3, &wire.PushAck{ID: 6}, nil, false)
	if f := c.frame(); f.id != 6 {
		t.Fatalf("the new incarnation got frame %d of the old one", f.id)
	}
}

// A handler that finds a frame to break the protocol ends the session.
func TestHandlerRefusesFrame(t *testing.T) {
	bad := true
	b := newNode(t, 2, func(c *Config) {
		deliver := c.OnFrame
		c.OnFrame = func(from dsm.NodeID, f *wire.Frame) error {
			if bad {
				bad = false
				return errs.E(errs.Corrupt, "test", "")
			}
			return deliver(from, f)
		}
	})
	a := newNode(t, 1, nil)
	know(a, b)
	a.send(b, 1)
	a.reset()
	b.reset()
	b.settled(a, 2)
	if n := b.Stats().Bad; n != 1 {
		t.Fatalf("%d bad frames, want 1", n)
	}
}

// The remembered hosts of refused connections are bounded, and one is logged
// again after a minute.
func TestRefusalsAreLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		r.init()
		if !r.due("h", time.Now()) || r.due("h", time.Now()) || !r.due("other", time.Now()) {
			t.Fatal("want one line per host")
		}
		time.Sleep(refusalPause)
		if !r.due("h", time.Now()) {
			t.Fatal("want another line after a minute")
		}
		for i := range 10 * refusalHosts {
			r.due(string(rune(i)), time.Now())
		}
		if len(r.mu.last) > refusalHosts {
			t.Fatalf("%d hosts are remembered", len(r.mu.last))
		}
	})
}
