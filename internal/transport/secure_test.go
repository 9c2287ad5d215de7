package transport

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/trust"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// realm is a cluster that encrypts, with the catalog that its nodes would have.
type realm struct {
	t     testing.TB
	trust atomic.Pointer[dsm.Trust] // the nodes read it when they let others in
	view  dsm.View
	nodes []*node
}

func newRealm(t testing.TB) *realm {
	t.Helper()
	made, err := trust.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &realm{t: t, view: dsm.View{Cluster: testCluster, Trust: made}}
	r.trust.Store(made)
	return r
}

// stranger starts a node that is of no cluster yet, as if on a machine of its own.
func (r *realm) stranger(id dsm.NodeID, change func(*Config)) *node {
	r.t.Helper()
	n := newNode(r.t, id, func(c *Config) {
		c.Secure, c.apart = true, true
		c.OnEnroll = r.enroll
		c.OnCall = func(context.Context, dsm.NodeID, any) (any, error) { return &wire.Probed{Term: uint64(id)}, nil }
		if change != nil {
			change(c)
		}
	})
	n.SetCluster(0)
	return n
}

func (r *realm) enroll(_ context.Context, from dsm.NodeID, req *wire.Enroll, vouched bool) (*wire.Enrolled, error) {
	if !vouched {
		if err := trust.Admits(r.trust.Load(), req.Secret, time.Now()); err != nil {
			return nil, err
		}
	}
	a := r.authority()
	der, err := a.Sign(trust.Identity{Cluster: testCluster, Node: from, Key: req.Key}, time.Now())
	return &wire.Enrolled{Cluster: testCluster, CA: a.DER(), Cert: der}, err
}

func (r *realm) authority() *trust.Authority {
	r.t.Helper()
	a, err := trust.Parse(r.trust.Load().CA, r.trust.Load().CAKey)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// member starts a node and makes it a member, with no other's help.
func (r *realm) member(id dsm.NodeID, change func(*Config)) *node {
	r.t.Helper()
	n := r.stranger(id, change)
	n.SetCluster(testCluster)
	r.nodes = append(r.nodes, n)
	r.view.Members = append(slices.Clone(r.view.Members), dsm.Member{ID: id, Addr: n.Addr(), Key: n.Key()})
	r.tell()
	return n
}

// remove makes the node no member any more.
func (r *realm) remove(id dsm.NodeID, gone bool) {
	was, _ := r.view.Member(id)
	r.view.Members = slices.DeleteFunc(slices.Clone(r.view.Members), func(m dsm.Member) bool { return m.ID == id })
	next := *r.view.Trust
	next.Left = append(slices.Clone(next.Left), dsm.Departed{ID: id, At: time.Now().Unix(), Gone: gone, Key: was.Key})
	r.view.Trust = &next
	r.trust.Store(&next)
	r.nodes = slices.DeleteFunc(r.nodes, func(n *node) bool { return n.cfg.Self == id })
	r.tell()
}

// tell tells all members what the catalog says.
func (r *realm) tell() {
	v, peers := r.view.Clone(), make(map[dsm.NodeID]string)
	for _, m := range v.Members {
		peers[m.ID] = m.Addr
	}
	for _, n := range r.nodes {
		n.SetTrust(v)
		n.SetPeers(peers)
	}
}

func (r *realm) token() *trust.Token {
	t, _ := trust.Lasting(r.trust.Load())
	return &t
}

// refused waits until the node has refused so many connections.
func (n *node) refused(count uint64) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for n.Stats().Rejected < count {
		if ctx.Err() != nil {
			n.t.Fatalf("%d connections refused, want %d", n.Stats().Rejected, count)
		}
		runtime.Gosched()
	}
}

func call(t testing.TB, from, to *node) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := from.Call(ctx, to.Addr(), &wire.ReadIndex{})
	return err
}

// refusedAs calls until a new connection is refused; the one that was there may end in the middle of a call.
func refusedAs(t testing.TB, from, to *node, text string) {
	t.Helper()
	for {
		err := call(t, from, to)
		if !errs.Is(err, errs.Unavailable) {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%v calls %v: %v, want %q", from.cfg.Self, to.cfg.Self, err, text)
			}
			return
		}
	}
}

// tap records what a connection carries.
type tap struct {
	net.Conn
	mu   *sync.Mutex
	seen *bytes.Buffer
}

func (c tap) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.seen.Write(b)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// A node joins by a token; then all lanes work, and nobody who listens in can read them.
func TestAllLanesAreEncrypted(t *testing.T) {
	r := newRealm(t)
	var mu sync.Mutex
	var wire1 bytes.Buffer
	a := r.member(1, func(c *Config) {
		dial := c.Dial
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return tap{conn, &mu, &wire1}, nil
		}
	})
	b := r.stranger(2, nil)
	if err := b.Enroll(t.Context(), a.Addr(), r.token()); err != nil {
		t.Fatal(err)
	}
	// It may ask to join, but nothing else.
	if _, err := b.Call(t.Context(), a.Addr(), &wire.Join{Member: dsm.Member{ID: 2}}); err != nil {
		t.Fatalf("join: %v", err)
	}
	if err := call(t, b, a); !errs.Is(err, errs.Access) {
		t.Fatalf("a node that has not joined asks for more: %v", err)
	}
	b.SetCluster(testCluster)
	r.nodes = append(r.nodes, b)
	r.view.Members = append(slices.Clone(r.view.Members), dsm.Member{ID: 2, Addr: b.Addr(), Key: b.Key()})
	r.tell()

	secret := bytes.Repeat([]byte("the same secret in every frame. "), 4096)
	for i := range 40 {
		a.send(b, uint64(i), secret[:1+i*3000])
		b.send(a, uint64(i), secret[:1+i*3000])
	}
	for i := range 40 {
		for _, n := range []*node{a, b} {
			if f := n.frame(); f.id != uint64(i) || !bytes.Equal(f.payload, secret[:1+i*3000]) {
				t.Fatalf("frame %d of %d bytes instead of frame %d", f.id, len(f.payload), i)
			}
		}
	}
	if err := call(t, a, b); err != nil {
		t.Fatalf("control: %v", err)
	}
	for _, s := range []*Streams{a.RaftLayer(), b.RaftLayer()} {
		s.Open()
	}
	out, err := a.RaftLayer().Dial(NodeAddr(2, b.Addr()), patience)
	if err != nil {
		t.Fatal(err)
	}
	in, err := b.RaftLayer().Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write(secret); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(secret))
	if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, secret) {
		t.Fatalf("raft: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if wire1.Len() < len(secret) || bytes.Contains(wire1.Bytes(), []byte("secret")) || bytes.Contains(wire1.Bytes(), []byte(helloMagic)) {
		t.Errorf("%d bytes on the wire can be read", wire1.Len())
	}
	if s := a.Stats(); s.Bad > 0 {
		t.Errorf("%+v", s)
	}
}

// A peer that takes nothing for a while gets everything later, in order: what did not fit into the
// socket is kept as it was encrypted.
func TestEncryptedBackPressure(t *testing.T) {
	r := newRealm(t)
	wait := make(chan struct{})
	a := r.member(1, nil)
	b := r.member(2, func(c *Config) {
		take := c.OnFrame
		c.OnFrame = func(from dsm.NodeID, f *wire.Frame) error {
			<-wait
			return take(from, f)
		}
	})
	block := bytes.Repeat([]byte{1, 2, 3}, 50000)
	for i := range 150 {
		a.send(b, uint64(i), block[:i*1000])
	}
	close(wait)
	for i := range 150 {
		if f := b.frame(); f.id != uint64(i) || !bytes.Equal(f.payload, block[:i*1000]) {
			t.Fatalf("frame %d of %d bytes instead of frame %d", f.id, len(f.payload), i)
		}
	}
}

// A wrong, expired or foreign token gets no certificate, and says why.
func TestTokens(t *testing.T) {
	r, other := newRealm(t), newRealm(t)
	a := r.member(1, nil)
	expired := *r.trust.Load()
	expired.Tokens = append(slices.Clone(expired.Tokens), dsm.Secret{Bytes: []byte("sixteen bytes..."), Expires: time.Now().Unix() - 1})
	r.trust.Store(&expired)
	for i, c := range []struct {
		name  string
		token *trust.Token
		kind  errs.Kind
		text  string
	}{
		{"wrong", &trust.Token{CA: r.token().CA, Secret: make([]byte, 16)}, errs.Access, "does not know the token"},
		{"expired", &trust.Token{CA: r.token().CA, Secret: expired.Tokens[1].Bytes}, errs.Access, "has expired"},
		{"of another cluster", other.token(), errs.Access, "another cluster"},
		{"none", nil, errs.Unavailable, "has not joined"},
	} {
		n := r.stranger(dsm.NodeID(10+i), nil)
		err := n.Enroll(t.Context(), a.Addr(), c.token)
		if !errs.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want kind %v with %q", c.name, err, c.kind, c.text)
		}
		if _, err := n.guard.certificate(); err == nil {
			t.Errorf("%s: the node has a certificate", c.name)
		}
		a.refused(uint64(i + 1))
	}
	ok := r.stranger(20, nil)
	if err := ok.Enroll(t.Context(), a.Addr(), r.token()); err != nil {
		t.Error(err)
	}
}

// A node that was given up loses its connections at once, and may only join again; one that leaves may
// say goodbye for a while.
func TestRemovedMembers(t *testing.T) {
	r := newRealm(t)
	a, b, c := r.member(1, nil), r.member(2, nil), r.member(3, nil)
	for _, n := range []*node{b, c} {
		n.send(a, 1)
		a.frame()
		if err := call(t, n, a); err != nil {
			t.Fatal(err)
		}
	}
	r.remove(2, true)
	for b.reset() != 1 { // its session was closed
	}
	for _, s := range []*Streams{a.RaftLayer(), a.Gossip().streams} {
		s.Open()
		if _, _, err := b.dial(t.Context(), s.lane, 1, a.Addr()); !errs.Is(err, errs.Evicted) {
			t.Errorf("a node that was given up, %v: %v", s.lane, err)
		}
	}
	if _, _, err := b.dial(t.Context(), laneData, 1, a.Addr()); !errs.Is(err, errs.Evicted) {
		t.Errorf("a node that was given up, data: %v", err)
	}
	for { // the connection that was there may end in the middle of a call
		_, err := b.Call(t.Context(), a.Addr(), &wire.Leave{Node: 2})
		if !errs.Is(err, errs.Unavailable) {
			if !errs.Is(err, errs.Access) {
				t.Errorf("a node that was given up asks for more than to join: %v", err)
			}
			break
		}
	}
	if _, err := b.Call(t.Context(), a.Addr(), &wire.Join{Member: dsm.Member{ID: 2}}); err != nil {
		t.Errorf("a node that was given up joins again: %v", err)
	}
	r.remove(3, false)
	if err := call(t, c, a); err != nil {
		t.Errorf("a node that leaves: %v", err)
	}
	a.guard.fast.Store(int64(goodbyeTime + time.Second))
	a.expel(a.guard.view.Load())
	refusedAs(t, c, a, "not a member any more")
	if s := a.Stats(); s.Bad > 0 {
		t.Errorf("%+v", s)
	}
}

// TestNodeWithoutAView: a node that is joining cannot know that another was given up, and takes it for a member until it has a view.
func TestNodeWithoutAView(t *testing.T) {
	r := newRealm(t)
	a, b := r.member(1, nil), r.member(2, nil)
	r.remove(2, true)
	c := r.stranger(3, nil)
	if err := c.Enroll(t.Context(), a.Addr(), r.token()); err != nil {
		t.Fatal(err)
	}
	c.SetCluster(testCluster)
	b.SetPeers(map[dsm.NodeID]string{3: c.Addr()})
	b.send(c, 1)
	c.frame()
	if err := call(t, b, c); err != nil {
		t.Fatal(err)
	}
	given := &sealed{peer: trust.Identity{Node: 2}} // as c has that connection, of which it may have read more already
	may := func() bool { return c.guard.mayAsk(given, &wire.Leave{Node: 2}) }
	if !may() {
		t.Error("a node without a view refuses a request")
	}
	r.nodes = append(r.nodes, c)
	r.view.Members = append(slices.Clone(r.view.Members), dsm.Member{ID: 3, Addr: c.Addr(), Key: c.Key()})
	r.tell()
	if may() {
		t.Error("a node that was given up may ask for all that it could before there was a view")
	}
	for b.reset() != 3 { // its session was closed
	}
}

// TestOldViewsOfANodeThatJoins: a node that joins reads old views first. One has no member but the first, and the node joins through another.
func TestOldViewsOfANodeThatJoins(t *testing.T) {
	r := newRealm(t)
	r.member(1, nil)
	old := r.view.Clone()
	b := r.member(2, nil)
	c := r.stranger(3, nil)
	if err := c.Enroll(t.Context(), b.Addr(), r.token()); err != nil {
		t.Fatal(err)
	}
	c.SetCluster(testCluster)
	if _, err := c.Call(t.Context(), b.Addr(), &wire.Join{Member: dsm.Member{ID: 3}}); err != nil {
		t.Fatal(err)
	}
	connected := func() bool {
		t := c.Transport
		t.mu.Lock()
		defer t.mu.Unlock()
		return slices.Contains(slices.Collect(maps.Values(t.mu.conns)), 2)
	}
	c.SetTrust(old)
	if !connected() {
		t.Error("it has hung up on the node that lets it in")
	}
	now := r.view.Clone()
	now.Members = []dsm.Member{now.Members[0], {ID: 3, Addr: c.Addr(), Key: c.Key()}}
	c.SetTrust(now)
	if err := call(t, c, b); err == nil {
		t.Error("it talks to a node that is no member")
	}
}

// TestEnrollAgain: a node that has a view, and has not joined in time all the same, enrolls at the next address. It still knows who is a member.
func TestEnrollAgain(t *testing.T) {
	r := newRealm(t)
	a, b := r.member(1, nil), r.stranger(2, nil)
	enroll := func() {
		t.Helper()
		if err := b.Enroll(t.Context(), a.Addr(), r.token()); err != nil {
			t.Fatal(err)
		}
	}
	enroll()
	b.SetTrust(r.view.Clone())
	enroll()
	v := b.guard.view.Load()
	if v.members[1] != a.Key() || len(v.gossip) == 0 || !v.authority.Signs() {
		t.Errorf("it knows %d members, and %d keys of gossip; it signs: %v", len(v.members), len(v.gossip), v.authority.Signs())
	}
	next, err := trust.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.trust.Store(next)
	r.view.Trust = next
	r.tell()
	enroll()
	if v := b.guard.view.Load(); !bytes.Equal(v.authority.DER(), next.CA) || v.members[1] != a.Key() {
		t.Error("it does not know a new authority, or the members")
	}
}

// Certificates are renewed when half of their life is over, and when the authority is another one.
func TestRenewal(t *testing.T) {
	r := newRealm(t)
	a, b := r.member(1, nil), r.member(2, nil)
	first, err := a.guard.certificate()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := a.guard.certificate(); err != nil || again != first {
		t.Errorf("another certificate at once: %v", err)
	}
	for _, n := range []*node{a, b} {
		n.guard.fast.Store(int64(3 * trust.Life))
	}
	late, err := a.guard.certificate()
	if err != nil || late == first || !late.Leaf.NotAfter.After(first.Leaf.NotAfter.Add(trust.Life)) {
		t.Fatalf("after three times its life: %v", err)
	}
	if err := call(t, a, b); err != nil {
		t.Errorf("with renewed certificates: %v", err)
	}
	next, err := trust.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	old := r.token()
	r.view.Trust = next
	r.trust.Store(next)
	r.tell()
	if c, err := a.guard.certificate(); err != nil || !bytes.Equal(c.Certificate[1], next.CA) {
		t.Errorf("the certificate is still of the authority before: %v", err)
	}
	if err := call(t, b, a); err != nil {
		t.Errorf("after a new authority: %v", err)
	}
	if err := r.stranger(9, nil).Enroll(t.Context(), a.Addr(), old); !errs.Is(err, errs.Access) {
		t.Errorf("a token of before: %v", err)
	}
}

// A member that lags behind a new authority is known by its key, and the others by theirs.
func TestNewAuthorityReachesThoseThatLag(t *testing.T) {
	r := newRealm(t)
	a, b := r.member(1, nil), r.member(2, nil)
	next, err := trust.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	v := r.view.Clone()
	v.Trust = next
	a.SetTrust(v)
	for _, way := range [][2]*node{{a, b}, {b, a}} {
		if err := call(t, way[0], way[1]); err != nil {
			t.Errorf("from %v to %v: %v", way[0].cfg.Self, way[1].cfg.Self, err)
		}
	}
}

// TestNewAuthorityEndsWhatOthersHave: a node that has left may say goodbye, but not after the authority has changed.
func TestNewAuthorityEndsWhatOthersHave(t *testing.T) {
	r := newRealm(t)
	a, c := r.member(1, nil), r.member(3, nil)
	r.remove(3, false)
	if err := call(t, c, a); err != nil {
		t.Fatal(err)
	}
	next, err := trust.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.view.Trust = next
	r.trust.Store(next)
	r.tell()
	for err == nil { // what was on its way is answered
		err = call(t, c, a)
	}
	if stays := call(t, c, a); stays == nil {
		t.Error("a node that has left talks to others by another connection")
	}
}
