package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TCP and UDP share one port.
func TestOnePort(t *testing.T) {
	n := newNode(t, 1, nil)
	if tcp, udp := n.tcp.Addr().String(), n.udp.LocalAddr().String(); tcp != udp || tcp != n.Addr() {
		t.Fatalf("tcp %s, udp %s, advertised %s", tcp, udp, n.Addr())
	}
	if _, err := Listen(Config{Self: 2, Listen: n.Addr()}); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Fatalf("a second transport on the port: %v", err)
	}
	for _, bad := range []Config{{Self: 0, Listen: ":0"}, {Self: 1, Listen: "nonsense"}, {Self: 1, Listen: ":0", Advertise: "a:b:c"}} {
		if _, err := Listen(bad); !errs.Is(err, errs.Invalid) {
			t.Errorf("%+v: %v, want invalid", bad, err)
		}
	}
}

func TestAdvertised(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 4711}
	for _, c := range []struct {
		advertise string
		bound     *net.TCPAddr
		want      string
	}{
		{"", at, "10.1.2.3:4711"},
		{"host", at, "host:4711"},
		{"host:12", at, "host:12"},
		{"::1", at, "[::1]:4711"},
		{"[::1]:5", at, "[::1]:5"},
		{"", &net.TCPAddr{IP: net.IPv6loopback, Port: 1}, "[::1]:1"},
	} {
		if got, err := advertised(c.advertise, c.bound); err != nil || got != c.want {
			t.Errorf("%q at %v: %q, %v, want %q", c.advertise, c.bound, got, err, c.want)
		}
	}
	got, err := advertised("", &net.TCPAddr{IP: net.IPv6unspecified, Port: 1})
	host, _, splitErr := net.SplitHostPort(got)
	if ip := net.ParseIP(host); err != nil || splitErr != nil || ip == nil || ip.IsUnspecified() {
		t.Errorf("any address: %q, %v", got, err)
	}
}

func TestRaftStreams(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, nil)
	name := b.RaftLayer().Addr().String()
	if name != NodeAddr(2, b.Addr()) {
		t.Fatalf("address %q", name)
	}
	if _, err := a.RaftLayer().Dial(name, patience); !errs.Is(err, errs.Unavailable) {
		t.Fatalf("before it is open: %v", err)
	}
	b.RaftLayer().Open()
	accepted := make(chan net.Conn)
	acceptErr := make(chan error, 1)
	go func() {
		for {
			c, err := b.RaftLayer().Accept()
			if err != nil {
				acceptErr <- err
				return
			}
			accepted <- c
		}
	}()
	out, err := a.RaftLayer().Dial(name, patience)
	if err != nil {
		t.Fatal(err)
	}
	in := next(t, "stream", accepted)
	text := bytes.Repeat([]byte("log"), 100000)
	go func() {
		out.Write(text)
		out.Close()
	}()
	if got, err := io.ReadAll(in); err != nil || !bytes.Equal(got, text) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	in.Close()

	if _, err := a.RaftLayer().Dial(b.Addr(), patience); !errs.Is(err, errs.Invalid) {
		t.Errorf("an address without a node: %v", err)
	}
	if _, err := a.RaftLayer().Dial(NodeAddr(3, b.Addr()), patience); !errs.Is(err, errs.Unavailable) {
		t.Errorf("another incarnation's address: %v", err)
	}
	// One stream stays open on either end: Close of the transport ends it.
	if _, err := a.RaftLayer().Dial(name, patience); err != nil {
		t.Fatal(err)
	}
	in = next(t, "stream", accepted)
	b.RaftLayer().Close()
	b.RaftLayer().Close()
	if err := next(t, "end of Accept", acceptErr); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	b.Close()
	if _, err := in.Read(make([]byte, 1)); err == nil {
		t.Error("a stream outlives the transport")
	}
}

func TestGossipPackets(t *testing.T) {
	a, b, foreign := newNode(t, 1, nil), newNode(t, 2, nil), newNode(t, 3, nil)
	foreign.SetCluster(testCluster + 1)
	send := func(n *node, text string) {
		t.Helper()
		if err := n.Gossip().WriteTo([]byte(text), b.Addr()); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := net.Dial("udp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	for _, s := range []string{"", "x", "DSMG", "DSMG1234567", strings.Repeat("z", 1400)} {
		if _, err := raw.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	send(foreign, "foreign")
	send(a, strings.Repeat("p", 1400))
	send(a, "")
	buf := make([]byte, 2048)
	for _, want := range []int{1400, 0} {
		n, from, err := b.Gossip().ReadFrom(buf)
		if err != nil || n != want || from.String() != a.Addr() || strings.Trim(string(buf[:n]), "p") != "" {
			t.Fatalf("%d bytes from %v, %v, want %d from %v", n, from, err, want, a.Addr())
		}
	}
	if n := b.Stats().Foreign; n != 6 {
		t.Errorf("%d foreign datagrams, want 6", n)
	}
	ended := make(chan error)
	go func() {
		_, _, err := b.Gossip().ReadFrom(buf)
		ended <- err
	}()
	b.Gossip().Close()
	if err := next(t, "end of ReadFrom", ended); !errors.Is(err, net.ErrClosed) {
		t.Errorf("ReadFrom: %v", err)
	}
	if _, err := b.Gossip().Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
}

func TestNodeAddr(t *testing.T) {
	for s, want := range map[string]dsm.NodeID{"h:1": 0, NodeAddr(7, "h:1"): 7} {
		if id, addr, err := SplitNodeAddr(s); err != nil || id != want || addr != "h:1" {
			t.Errorf("%q: %v %q %v", s, id, addr, err)
		}
	}
	if _, _, err := SplitNodeAddr("0@h:1"); err == nil {
		t.Error("node 0 is accepted")
	}
}
