package transport

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(knockVariable); addr != "" {
		knockAsAnother(addr)
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dsmfs/dsmfs/internal/loop.(*loop).run")) // as long as the process
}

const (
	testCluster dsm.ClusterID = 0xc1
	patience                  = 20 * time.Second // until a test that hangs fails
)

// frame is what a node got.
type frame struct {
	from    dsm.NodeID
	id      uint64 // of the PushAck that the tests send
	payload []byte
}

// node is a Transport whose events the test reads from channels.
type node struct {
	*Transport
	t      testing.TB
	frames chan frame
	resets chan dsm.NodeID

	mu    sync.Mutex
	conns []net.Conn // dialed
}

// newNode starts a node of the test's cluster.
func newNode(t testing.TB, self dsm.NodeID, change func(*Config)) *node {
	t.Helper()
	n := &node{t: t, frames: make(chan frame, 1<<17), resets: make(chan dsm.NodeID, 1000)}
	cfg := Config{
		Self: self, Listen: "127.0.0.1:0", Log: testLog(t),
		RedialMin: time.Millisecond, RedialMax: 10 * time.Millisecond,
		Dial: n.dialed,
		OnFrame: func(from dsm.NodeID, f *wire.Frame) error {
			n.frames <- frame{from, f.Msg.(*wire.PushAck).ID, bytes.Clone(f.Payload)}
			return nil
		},
		OnReset: func(peer dsm.NodeID) { n.resets <- peer },
	}
	deliver := reflect.ValueOf(cfg.OnFrame).Pointer()
	if change != nil {
		change(&cfg)
	}
	if reflect.ValueOf(cfg.OnFrame).Pointer() == deliver && cfg.OnFrameNow == nil { // it does not wait
		cfg.OnFrameNow = func(from dsm.NodeID, f *wire.Frame) (bool, error) {
			if f.Msg.(*wire.PushAck).ID%5 == 3 {
				return false, nil
			}
			return true, cfg.OnFrame(from, f)
		}
	}
	tr, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tr.SetCluster(testCluster)
	n.Transport = tr
	t.Cleanup(func() { tr.Close() })
	return n
}

// testLog writes to the log of the test while the test runs.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (n *node) dialed(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		n.mu.Lock()
		n.conns = append(n.conns, c)
		n.mu.Unlock()
	}
	return c, err
}

// breakAll closes every connection the node dialed, from under the transport.
func (n *node) breakAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		c.Close()
	}
	n.conns = nil
}

// know makes the nodes peers of each other.
func know(nodes ...*node) {
	peers := make(map[dsm.NodeID]string)
	for _, n := range nodes {
		peers[n.cfg.Self] = n.Addr()
	}
	for _, n := range nodes {
		n.SetPeers(peers)
	}
}

// send sends a numbered message.
func (n *node) send(to *node, id uint64, payload ...[]byte) {
	n.Send(to.cfg.Self, &wire.PushAck{ID: id}, payload, false)
}

// next waits for one event.
func next[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
		panic("unreachable")
	}
}

func (n *node) frame() frame {
	n.t.Helper()
	return next(n.t, "frame", n.frames)
}

func (n *node) reset() dsm.NodeID {
	n.t.Helper()
	return next(n.t, "reset", n.resets)
}

// settled waits until a frame of from's next session arrives: it sends frames
// numbered from id on, since a breaking session may take some, and drops what came
// before. It returns the last number it sent.
func (n *node) settled(from *node, id uint64) uint64 {
	n.t.Helper()
	first := id
	deadline := time.After(patience)
	for {
		from.send(n, id)
		select {
		case f := <-n.frames:
			if f.id >= first {
				return id
			}
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			n.t.Fatalf("no frame of %v within %v", from.cfg.Self, patience)
		}
		id++
	}
}
