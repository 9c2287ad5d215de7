package transport

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/trust"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// intruder is somebody who speaks TLS with a certificate of his choice.
type intruder struct {
	cert *tls.Certificate // nil: none
	max  uint16           // version of TLS
}

// forged returns a certificate for the identity, signed by the authority at the time.
func forged(t testing.TB, a *trust.Authority, id dsm.NodeID, cluster dsm.ClusterID, at time.Time) *tls.Certificate {
	t.Helper()
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.Sign(trust.Identity{Cluster: cluster, Node: id, Key: dsm.NodeKey(pub)}, at)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.DER()}, PrivateKey: priv}
}

// knock connects to the node and says the hello, and returns the refusal.
func (i intruder) knock(t testing.TB, n *node, h hello) (*tls.Conn, error) {
	t.Helper()
	conf := &tls.Config{InsecureSkipVerify: true, MaxVersion: i.max}
	if i.cert != nil {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.cert, nil }
	}
	c := tls.Client(dialRaw(t, n), conf)
	_, err := greet(c, h, patience)
	return c, err
}

func helloOf(from, to dsm.NodeID, l lane) hello {
	return hello{min: wire.Version, max: wire.Version, lane: l, cluster: testCluster, from: from, to: to}
}

// Who has no right to talk to a node is refused, counted, logged once, and changes nothing.
func TestIntruders(t *testing.T) {
	r, other := newRealm(t), newRealm(t)
	var log bytes.Buffer
	var mu sync.Mutex
	a := r.member(1, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	})
	b := r.member(2, nil)
	b.send(a, 1)
	a.frame()
	r.member(3, nil)
	r.remove(3, true)
	before := a.Stats().Rejected // those who lagged

	now := time.Now()
	mine := r.authority()
	for i, c := range []struct {
		name string
		who  intruder
		h    hello
		text string
	}{
		{"no certificate, data", intruder{}, helloOf(2, 1, laneData), "no certificate"},
		{"no certificate, control", intruder{}, helloOf(2, 1, laneControl), "no certificate"},
		{"no certificate, raft", intruder{}, helloOf(2, 1, laneRaft), "no certificate"},
		{"no certificate, gossip", intruder{}, helloOf(2, 1, laneGossip), "no certificate"},
		{"another authority", intruder{cert: forged(t, other.authority(), 7, testCluster, now)}, helloOf(7, 1, laneControl), "certificate signed by unknown authority"},
		{"another cluster", intruder{cert: forged(t, mine, 7, 99, now)}, helloOf(7, 1, laneControl), "this is cluster"},
		{"expired", intruder{cert: forged(t, mine, 7, testCluster, now.Add(-2*trust.Life))}, helloOf(7, 1, laneControl), "expired"},
		{"in the name of another", intruder{cert: forged(t, mine, 7, testCluster, now)}, helloOf(2, 1, laneData), "has the certificate of"},
		{"a member's name, with the authority's key", intruder{cert: forged(t, mine, 2, testCluster, now)}, helloOf(2, 1, laneData), "not the key of node"},
		{"given up, with the authority's key", intruder{cert: forged(t, mine, 3, testCluster, now)}, helloOf(3, 1, laneRaft), "not the key of node"},
		{"no member", intruder{cert: forged(t, mine, 7, testCluster, now)}, helloOf(7, 1, laneData), "not known as a member"},
		{"no member, gossip", intruder{cert: forged(t, mine, 7, testCluster, now)}, helloOf(7, 1, laneGossip), "not known as a member"},
		{"TLS 1.2", intruder{max: tls.VersionTLS12}, helloOf(2, 1, laneData), "protocol version"},
	} {
		_, err := c.who.knock(t, a, c.h)
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", c.name, err, c.text)
		}
		a.refused(before + uint64(i+1))
	}
	// Without TLS, as an older version or an --insecure node would come.
	if _, err := dialHello(t, a, helloOf(2, 1, laneData)); !errs.Is(err, errs.Access) || !strings.Contains(err.Error(), "this cluster encrypts") {
		t.Errorf("downgrade: %v", err)
	}
	b.send(a, 2)
	if f := a.frame(); f.id != 2 {
		t.Fatalf("frame %d after the intruders", f.id)
	}
	for len(a.resets) > 0 {
		if <-a.resets == 2 {
			t.Error("the session with a member was broken")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(log.String(), "connection refused"); n != 1 {
		t.Errorf("%d lines in the log about one host:\n%s", n, &log)
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(b)
}

// A server that is not the node which was meant gets nothing.
func TestImpostors(t *testing.T) {
	r, other := newRealm(t), newRealm(t)
	a, b := r.member(1, nil), r.member(2, nil)
	foreign := other.member(2, nil)
	for name, c := range map[string]struct {
		addr string
		text string
	}{
		"a node of another cluster":           {foreign.Addr(), "not the key of node"},
		"another node, at the address of one": {NodeAddr(3, b.Addr()), "node 0000000000000003 is not here"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := a.Call(ctx, c.addr, &wire.Probe{})
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One that does not encrypt.
	plain := newNode(t, 5, nil)
	if _, err := a.Call(t.Context(), plain.Addr(), &wire.Probe{}); err == nil {
		t.Error("a node that does not encrypt was asked")
	}
	// Who has stolen the certificate of a node of the cluster cannot sign with its key: a joiner refuses it.
	n := r.stranger(9, nil)
	if err := n.Enroll(t.Context(), foreign.Addr(), r.token()); !errs.Is(err, errs.Access) {
		t.Errorf("enroll at another cluster: %v", err)
	}
}

// Frames that are too large, from somebody without a certificate, are refused before they take memory.
func TestOversizedEnroll(t *testing.T) {
	r := newRealm(t)
	a := r.member(1, nil)
	for _, size := range []int{maxEnroll + 1, wire.MaxMessage, wire.MaxMessage + 1, 1<<31 - 1} {
		c, err := intruder{}.knock(t, a, hello{min: wire.Version, max: wire.Version, lane: laneEnroll, from: 7})
		if err != nil {
			t.Fatal(err)
		}
		frame, err := wire.Append(nil, &wire.Enroll{Secret: make([]byte, 16)}, 1, false, 0)
		if err != nil {
			t.Fatal(err)
		}
		binary.BigEndian.PutUint32(frame[12:], uint32(size))
		before := a.Stats().Rejected
		if _, err := c.Write(frame); err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("%d bytes: answered %q", size, b)
		}
		a.refused(before + 1)
	}
	// Another message than Enroll.
	c, err := intruder{}.knock(t, a, hello{min: wire.Version, max: wire.Version, lane: laneEnroll, from: 7})
	if err != nil {
		t.Fatal(err)
	}
	frame, err := wire.Append(nil, &wire.Leave{Node: 1}, 1, false, 0)
	if err != nil {
		t.Fatal(err)
	}
	before := a.Stats().Rejected
	if _, err := c.Write(frame); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(c); len(b) > 0 {
		t.Errorf("answered %q", b)
	}
	a.refused(before + 1)
}

// Connections that say nothing, or a byte now and then, end by the time for the hello, and others get
// in meanwhile.
func TestSlowLorisAndFlood(t *testing.T) {
	r := newRealm(t)
	a := r.member(1, func(c *Config) { c.HelloTimeout = time.Second })
	b := r.member(2, nil)
	b.send(a, 1)
	a.frame()
	// The session of b is there; a flood takes all places of this host.
	before := a.Stats().Rejected
	var crowd []net.Conn
	for range maxStrangersOfAHost + 20 {
		c := dialRaw(t, a)
		_, _ = c.Write([]byte{0x16, 3}) // fails if it is refused already
		crowd = append(crowd, c)
	}
	a.refused(before + 20) // at once
	b.send(a, 2)
	if f := a.frame(); f.id != 2 {
		t.Fatalf("frame %d", f.id)
	}
	var dribbling sync.WaitGroup
	for _, c := range crowd[:5] {
		dribbling.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for range tick.C {
				if _, err := c.Write([]byte{0}); err != nil {
					return
				}
			}
		})
	}
	a.refused(before + uint64(len(crowd)))
	dribbling.Wait()
	if err := call(t, b, a); err != nil {
		t.Errorf("after the flood: %v", err)
	}
	a.crowd.mu.Lock()
	defer a.crowd.mu.Unlock()
	if a.crowd.mu.all != 0 || len(a.crowd.mu.hosts) != 0 {
		t.Errorf("%d places are taken", a.crowd.mu.all)
	}
}

// Datagrams of gossip are read only with a key of the catalog; a node that lags by one turn of the
// keys is still understood.
func TestGossipIsEncrypted(t *testing.T) {
	r := newRealm(t)
	a, b := r.member(1, nil), r.member(2, nil)
	got := make(chan string, 10)
	read := func(n *node) {
		buf := make([]byte, 2000)
		for {
			k, _, err := n.Gossip().ReadFrom(buf)
			if err != nil {
				return
			}
			got <- string(buf[:k])
		}
	}
	var readers sync.WaitGroup
	readers.Go(func() { read(b) })
	t.Cleanup(func() { b.Gossip().Close(); readers.Wait() })
	say := func(text string) {
		t.Helper()
		if err := a.Gossip().WriteTo([]byte(text), b.Addr()); err != nil {
			t.Fatal(err)
		}
		if s := next(t, "datagram", got); s != text {
			t.Fatalf("%q became %q", text, s)
		}
	}
	say("hello")
	turned := r.view.Clone()
	turned.Trust = trust.Turn(r.trust.Load(), time.Now())
	a.SetTrust(turned)
	say("with the next key")
	b.SetTrust(turned)
	say("with the same keys")
	a.SetTrust(r.view.Clone())
	say("with the key before")

	udp, err := net.Dial("udp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	plain := binary.BigEndian.AppendUint64([]byte(packetMagic), uint64(testCluster))
	key, err := a.guard.view.Load().wrap(bytes.Clone(plain), []byte("changed on the way"))
	if err != nil {
		t.Fatal(err)
	}
	key[len(key)-1]++
	for i, p := range [][]byte{append(bytes.Clone(plain), "in clear text, and longer than a nonce"...), plain, key} {
		before := b.Stats().Foreign
		if _, err := udp.Write(p); err != nil {
			t.Fatal(err)
		}
		for b.Stats().Foreign == before {
			if len(got) > 0 {
				t.Fatalf("datagram %d was taken", i)
			}
		}
	}
	say("and on")
}

// The other end of a connection on loopback is known by the owner of its socket.
func TestSameUser(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !listensHere(c) {
		t.Error("this process does not listen")
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !sameUser(s) || !sameUser(c) {
		t.Error("another user's socket")
	}
	c.Close()
	if _, err := io.ReadAll(s); err != nil {
		t.Fatal(err)
	}
	if sameUser(s) {
		t.Error("a socket that is closed belongs to nobody")
	}
	for text, want := range map[string]string{
		"0100007F:1D38": "127.0.0.1:7480", "0000000000000000FFFF00000100007F:0050": "127.0.0.1:80",
		"00000000000000000000000001000000:0001": "[::1]:1", "00000000:0000": "0.0.0.0:0",
	} {
		if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
			break // these are of little-endian machines
		}
		if got, ok := parseEnd(text); !ok || got.String() != want {
			t.Errorf("%s is %v, want %s", text, got, want)
		}
	}
	for _, text := range []string{"", ":", "0100007F", "0100007:1D38", "0100007G:1D38", "0100007F:1D3G"} {
		if got, ok := parseEnd(text); ok {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// knockVariable has the address of a node, in a process of another user.
const knockVariable = "DSMFS_TEST_KNOCK"

// knockAsAnother prints what a node answers to this process, as a listener and as a dialer sees it.
func knockAsAnother(addr string) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		return
	}
	defer c.Close()
	if listensHere(c) {
		fmt.Fprintln(os.Stdout, "taken for its own")
	}
	_, err = greet(c, helloOf(2, 1, laneControl), patience)
	fmt.Fprintln(os.Stdout, err)
}

// Other users of the machine get nothing by a plain connection.
func TestOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	r := newRealm(t)
	a := r.member(1, func(c *Config) { c.apart = false })
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), knockVariable+"="+a.Addr())
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "this cluster encrypts") || strings.Contains(string(out), "its own") {
		t.Errorf("another user: %v, %s", err, out)
	}
	a.refused(1)
}

// On loopback two nodes of one user need no token; the certificate is there for when they need one.
func TestNodesOfOneUser(t *testing.T) {
	r := newRealm(t)
	near := func(c *Config) { c.apart = false }
	a, b := r.member(1, near), r.stranger(2, near)
	if err := b.Enroll(t.Context(), a.Addr(), nil); err != nil {
		t.Fatal(err)
	}
	cert, err := b.guard.certificate()
	if err != nil {
		t.Fatal(err)
	}
	if id, err := r.authority().Check(must(x509.ParseCertificate(cert.Certificate[0])), time.Now()); err != nil || id.Node != 2 {
		t.Errorf("%+v, %v", id, err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
