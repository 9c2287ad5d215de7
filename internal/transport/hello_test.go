package transport

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// dialRaw connects to the node and sends nothing.
func dialRaw(t testing.TB, n *node) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// dialHello connects and says h.
func dialHello(t testing.TB, n *node, h hello) (net.Conn, error) {
	t.Helper()
	c := dialRaw(t, n)
	_, err := greet(c, h, patience)
	return c, err
}

func TestJudge(t *testing.T) {
	const self, other dsm.NodeID = 1, 2
	ok := hello{min: wire.Version, max: wire.Version, lane: laneData, cluster: testCluster, from: other, to: self}
	for _, c := range []struct {
		name    string
		cluster dsm.ClusterID
		change  func(*hello)
		want    errs.Kind // 0: accepted
		text    string
	}{
		{"data", testCluster, func(*hello) {}, 0, ""},
		{"a range of versions", testCluster, func(h *hello) { h.min, h.max = 0, wire.Version }, 0, ""},
		{"newer only", testCluster, func(h *hello) { h.min, h.max = wire.Version+1, wire.Version+1 }, errs.Unsupported, "protocol version"},
		{"older only", testCluster, func(h *hello) { h.min, h.max = 0, 0 }, errs.Unsupported, "protocol version"},
		{"no lane", testCluster, func(h *hello) { h.lane = 0 }, errs.Unsupported, "lane"},
		{"unknown lane", testCluster, func(h *hello) { h.lane = 6 }, errs.Unsupported, "lane"},
		{"no sender", testCluster, func(h *hello) { h.from = 0 }, errs.Invalid, "sender"},
		{"itself", testCluster, func(h *hello) { h.from = self }, errs.Invalid, "sender"},
		{"another target", testCluster, func(h *hello) { h.to = 3 }, errs.Unavailable, "not here"},
		{"data to nobody", testCluster, func(h *hello) { h.to = 0 }, errs.Unavailable, "not here"},
		{"raft to nobody", testCluster, func(h *hello) { h.lane, h.to = laneRaft, 0 }, errs.Unavailable, "not here"},
		{"gossip to nobody", testCluster, func(h *hello) { h.lane, h.to = laneGossip, 0 }, 0, ""},
		{"control to nobody", testCluster, func(h *hello) { h.lane, h.to = laneControl, 0 }, 0, ""},
		{"control to itself", testCluster, func(h *hello) { h.lane, h.from = laneControl, self }, 0, ""},
		{"another cluster", testCluster, func(h *hello) { h.cluster++ }, errs.Access, "cluster"},
		{"control of another cluster", testCluster, func(h *hello) { h.lane, h.cluster = laneControl, 5 }, errs.Access, "cluster"},
		{"a joiner", testCluster, func(h *hello) { h.lane, h.cluster = laneControl, 0 }, 0, ""},
		{"a joiner's data", testCluster, func(h *hello) { h.cluster = 0 }, errs.Access, "cluster"},
		{"data to a joiner", 0, func(*hello) {}, errs.Unavailable, "not joined"},
		{"control to a joiner", 0, func(h *hello) { h.lane = laneControl }, 0, ""},
	} {
		h := ok
		c.change(&h)
		err := h.judge(self, c.cluster)
		if (err == nil) != (c.want == 0) || err != nil && (err.Kind != c.want || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: %v, want kind %q with %q", c.name, err, c.want, c.text)
		}
		got, rerr := readHello(strings.NewReader(string(h.bytes())))
		if rerr != nil || got != h {
			t.Errorf("%s: %+v became %+v, %v", c.name, h, got, rerr)
		}
	}
}

// Whoever says the magic and is refused hears why.
func TestRefusalSaysWhy(t *testing.T) {
	n := newNode(t, 1, nil)
	_, err := dialHello(t, n, hello{min: wire.Version, max: wire.Version, lane: laneData, cluster: 5, from: 2, to: 1})
	if !errs.Is(err, errs.Access) || !strings.Contains(err.Error(), "this is cluster 00000000000000c1, not 0000000000000005") {
		t.Fatalf("refused with %v", err)
	}
	for n.Stats().Rejected == 0 { // counted after the answer
		runtime.Gosched()
	}
	if n.Stats().Rejected != 1 {
		t.Fatalf("stats %+v", n.Stats())
	}
}

// Garbage on the port closes the connection and changes nothing else.
func TestGarbage(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, func(c *Config) { c.HelloTimeout = 200 * time.Millisecond })
	know(a, b)
	a.send(b, 1)
	b.frame()
	before := b.Stats().Rejected // a itself, if it was slow to say its hello

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	noise := make([]byte, 100000)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for i, c := range []struct {
		name string
		talk func(net.Conn) error
	}{
		{"noise", func(c net.Conn) error { _, err := c.Write(noise); return err }},
		{"http", func(c net.Conn) error { _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); return err }},
		{"tls", func(c net.Conn) error {
			go tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
			return nil
		}},
		{"a short hello", func(c net.Conn) error { _, err := fmt.Fprint(c, "DSMF"); return err }},
		{"silence", func(net.Conn) error { return nil }},
	} {
		conn := dialRaw(t, b)
		if err := c.talk(conn); err != nil && c.name != "noise" {
			t.Fatalf("%s: %v", c.name, err)
		}
		// What it says to tls its client may have read.
		if b, err := io.ReadAll(conn); len(b) > 0 || err != nil && !isReset(err) {
			t.Fatalf("%s: answered %q, %v", c.name, b, err)
		}
		if got := b.Stats().Rejected - before; got != uint64(i+1) { // counted before it is closed
			t.Fatalf("%s: %d rejected, want %d", c.name, got, i+1)
		}
	}
	a.send(b, 2)
	if f := b.frame(); f.id != 2 || len(a.resets)+len(b.resets) > 0 {
		t.Fatalf("frame %d and %d resets after the garbage", f.id, len(a.resets)+len(b.resets))
	}
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}

// Garbage behind a good hello ends that session and counts as a bad frame.
func TestGarbageAfterHello(t *testing.T) {
	n := newNode(t, 1, nil)
	c, err := dialHello(t, n, hello{min: wire.Version, max: wire.Version, lane: laneData, cluster: testCluster, from: 2, to: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte(strings.Repeat("garbage", 10))); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil && !isReset(err) {
		t.Fatalf("answered %q, %v", b, err)
	}
	if s := n.Stats(); s.Bad != 1 {
		t.Fatalf("%d bad frames, want 1", s.Bad)
	}
	if got := n.reset(); got != 2 {
		t.Fatalf("reset of %v", got)
	}
}

// Neither half of the handshake panics on any bytes.
func FuzzHello(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add(hello{min: wire.Version, max: wire.Version, lane: laneData, cluster: 1, from: 2, to: 1}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := readHello(strings.NewReader(string(b))); err == nil {
			_ = h.judge(1, testCluster)
		}
		_, _ = readAnswer(strings.NewReader(string(b)))
	})
}
