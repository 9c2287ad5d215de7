package transport

import (
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/trust"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// guard decides who is at the other end of a connection, and what it may do.
//
// Between machines a connection is TLS 1.3. A member is known by its key, which the catalog has. A
// node that this one does not know is believed what the authority has signed: it may be joining, or
// this replica may lag behind. It may do what these two cases need, see admits and mayAsk. A node
// without a certificate may ask for one. A node that was given up may join again,
// and one that has left may do nothing.
//
// Between two nodes of one user on one machine the kernel says who the other is (local_linux.go),
// and nothing is encrypted.
type guard struct {
	self dsm.NodeID
	key  ed25519.PrivateKey
	view atomic.Pointer[guardView]
	mine atomic.Pointer[certificate]
	fast atomic.Int64 // a test's: how far the clock is ahead
}

func (g *guard) now() time.Time { return time.Now().Add(time.Duration(g.fast.Load())) }

// guardView is what a guard knows at a time. It is never changed.
type guardView struct {
	cluster   dsm.ClusterID
	authority *trust.Authority           // nil before the node has enrolled
	members   map[dsm.NodeID]dsm.NodeKey // nil before it has a view
	left      map[dsm.NodeID]time.Time   // until when they may say goodbye
	// evicted were given up, with their keys. They may live, and join again by their certificates.
	evicted map[dsm.NodeID]dsm.NodeKey
	gossip  []cipher.AEAD // see gossip.go
}

// certificate is the node's own.
type certificate struct {
	tls       tls.Certificate
	by        *trust.Authority
	half, end time.Time
}

// goodbyeTime is how long a node that has left may talk to others: they may need its vote until they
// know that it leaves.
const goodbyeTime = 30 * time.Second

// newGuard returns a guard with the key of the seed; nil: with a new one.
func newGuard(self dsm.NodeID, seed []byte) (*guard, error) {
	if seed == nil {
		seed = make([]byte, ed25519.SeedSize)
		if _, err := rand.Read(seed); err != nil {
			return nil, errs.E(errs.Other, "make a key", "%w", err)
		}
	}
	key := ed25519.NewKeyFromSeed(seed)
	g := &guard{self: self, key: key}
	g.view.Store(&guardView{})
	return g, nil
}

func (g *guard) public() dsm.NodeKey { return dsm.NodeKey(g.key.Public().(ed25519.PublicKey)) }

// Key returns the key by which others know this node, zero if nothing is encrypted.
func (t *Transport) Key() dsm.NodeKey {
	if t.guard == nil {
		return dsm.NodeKey{}
	}
	return t.guard.public()
}

// SetTrust says who the members are and who has signed their certificates. Connections of nodes that
// are not members any more are closed.
func (t *Transport) SetTrust(v *dsm.View) {
	if t.guard == nil || v.Trust == nil {
		return
	}
	was := t.guard.view.Load()
	if err := t.guard.set(v); err != nil {
		t.cfg.Log.Error("the cluster's keys", "err", err)
		return
	}
	t.expel(was)
}

// expel closes the connections of nodes that may not have any. These are the nodes that have left, as soon as their time is over, and the members of was that
// have been evicted since. If the authority has changed since was, or was did not know the members, all nodes that are no members lose their connections. A view
// in which this node is no member is an old one, that it reads on its way in: those who have let it in may have joined later.
func (t *Transport) expel(was *guardView) {
	v, now := t.guard.view.Load(), t.guard.now()
	var gone []net.Conn
	var next time.Time
	_, in := v.members[t.guard.self]
	_, wasIn := was.members[t.guard.self]
	anew := in && (!wasIn || was.authority != nil && v.authority != nil && !bytes.Equal(was.authority.DER(), v.authority.DER()))
	t.mu.Lock()
	for c, id := range t.mu.conns {
		until, left := v.left[id]
		_, evicted := v.evicted[id]
		_, member := v.members[id]
		_, before := was.members[id]
		switch {
		case id != 0 && !member && anew, evicted && !member && before:
			gone = append(gone, c)
		case !left:
		case !now.Before(until):
			gone = append(gone, c)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	t.mu.Unlock()
	for _, c := range gone {
		c.Close()
	}
	if !next.IsZero() {
		t.spawn(func() {
			wait := time.NewTimer(next.Sub(now))
			defer wait.Stop()
			select {
			case <-wait.C:
				t.expel(v)
			case <-t.ctx.Done():
			}
		})
	}
}

// set takes over what the catalog says.
func (g *guard) set(v *dsm.View) error {
	before := g.view.Load()
	next := &guardView{
		cluster: v.Cluster, authority: before.authority,
		members: make(map[dsm.NodeID]dsm.NodeKey, len(v.Members)), evicted: make(map[dsm.NodeID]dsm.NodeKey), left: make(map[dsm.NodeID]time.Time, len(v.Trust.Left)),
	}
	var err error
	if a := before.authority; a == nil || !a.Signs() || string(a.DER()) != string(v.Trust.CA) {
		if next.authority, err = trust.Parse(v.Trust.CA, v.Trust.CAKey); err != nil {
			return err
		}
	}
	if next.gossip, err = gossipCiphers(v.Trust.Gossip); err != nil {
		return err
	}
	for _, m := range v.Members {
		if !m.Gone {
			next.members[m.ID] = m.Key
		}
	}
	for _, d := range v.Trust.Left {
		if d.Gone {
			next.evicted[d.ID] = d.Key
			continue
		}
		until, known := before.left[d.ID]
		if !known {
			until = g.now().Add(goodbyeTime)
		}
		next.left[d.ID] = until
	}
	g.view.Store(next)
	return nil
}

// enrolled takes over what the answer to Enroll says. What the node knows of members of the cluster stays: it may have failed to join only after it had a view.
func (g *guard) enrolled(r *wire.Enrolled) error {
	a, err := trust.Parse(r.CA, nil)
	if err != nil {
		return err
	}
	cert, err := x509.ParseCertificate(r.Cert)
	if err != nil {
		return errs.E(errs.Corrupt, "enroll", "%w", err)
	}
	id, err := a.Check(cert, g.now())
	if err != nil {
		return err
	}
	if id.Node != g.self || id.Key != g.public() || id.Cluster != r.Cluster {
		return errs.E(errs.Corrupt, "enroll", "the certificate is of node %v", id.Node)
	}
	for {
		before := g.view.Load()
		next := guardView{cluster: r.Cluster}
		if before.cluster == r.Cluster {
			next = *before
		}
		if next.authority == nil || !bytes.Equal(next.authority.DER(), a.DER()) {
			next.authority = a
		}
		if g.view.CompareAndSwap(before, &next) {
			break
		}
	}
	g.mine.Store(g.own(a, r.Cert, cert))
	return nil
}

func (g *guard) own(a *trust.Authority, der []byte, cert *x509.Certificate) *certificate {
	return &certificate{
		tls: tls.Certificate{Certificate: [][]byte{der, a.DER()}, PrivateKey: g.key, Leaf: cert},
		by:  a, half: cert.NotAfter.Add(-trust.Life / 2), end: cert.NotAfter,
	}
}

// certificate returns this node's own, and makes another when it is half over or the authority is
// another one.
func (g *guard) certificate() (*tls.Certificate, error) {
	v, c, now := g.view.Load(), g.mine.Load(), g.now()
	if v.authority == nil {
		return nil, errs.E(errs.Unavailable, "certificate", "this node has not joined a cluster yet")
	}
	if c == nil || v.authority.Signs() && (c.by != v.authority || now.After(c.half)) {
		der, err := v.authority.Sign(trust.Identity{Cluster: v.cluster, Node: g.self, Key: g.public()}, now)
		if err != nil {
			return nil, err
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, errs.E(errs.Other, "certificate", "%w", err)
		}
		c = g.own(v.authority, der, cert)
		g.mine.Store(c)
	}
	return &c.tls, nil
}

func baseConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true}
}

// accept makes the handshake with a client that has sent first.
func (g *guard) accept(c net.Conn, first []byte) (*sealed, error) {
	conf := baseConfig()
	conf.ClientAuth = tls.RequestClientCert // who has none is told so, see admits
	conf.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return g.certificate() }
	p := newPipe(c, first)
	s := &sealed{Conn: tls.Server(p, conf), pipe: p}
	if err := s.Handshake(); err != nil {
		return nil, errs.E(errs.Access, "hello", "no TLS: %w", err)
	}
	if certs := s.ConnectionState().PeerCertificates; len(certs) > 0 {
		id, err := trust.Read(certs[0])
		if err != nil {
			return nil, err
		}
		s.peer = id
	}
	return s, nil
}

// dial makes the handshake with a server: node to, or any if that is 0. With a pin only its authority
// is known, and this node shows no certificate.
func (g *guard) dial(ctx context.Context, c net.Conn, to dsm.NodeID, pin *trust.Fingerprint) (*sealed, error) {
	conf := baseConfig()
	conf.InsecureSkipVerify = true // by VerifyConnection; names are not looked up
	p := newPipe(c, nil)
	s := &sealed{pipe: p}
	conf.VerifyConnection = func(cs tls.ConnectionState) (err error) {
		if pin != nil {
			s.peer, err = pinned(cs.PeerCertificates, *pin, g.now())
			return err
		}
		if s.peer, err = trust.Read(cs.PeerCertificates[0]); err != nil {
			return err
		}
		if to != 0 && s.peer.Node != to {
			return errs.E(errs.Unavailable, "hello", "node %v is not here, but node %v", to, s.peer.Node)
		}
		return g.believes(s.peer, cs.PeerCertificates[0])
	}
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if pin != nil {
			return new(tls.Certificate), nil
		}
		return g.certificate()
	}
	s.Conn = tls.Client(p, conf)
	if err := s.HandshakeContext(ctx); err != nil {
		var header tls.RecordHeaderError
		if errors.As(err, &header) {
			return nil, errs.E(errs.Unsupported, "hello", "the node there does not encrypt: it was mounted with --insecure (%w)", err)
		}
		return nil, err
	}
	return s, nil
}

// pinned checks a server whose authority has the fingerprint.
func pinned(certs []*x509.Certificate, pin trust.Fingerprint, now time.Time) (trust.Identity, error) {
	if len(certs) != 2 || trust.FingerprintOf(certs[1].Raw) != pin {
		return trust.Identity{}, errs.E(errs.Access, "hello", "the token is of another cluster, or of before a --rotate")
	}
	a, err := trust.Parse(certs[1].Raw, nil)
	if err != nil {
		return trust.Identity{}, err
	}
	return a.Check(certs[0], now)
}

// believes returns why the node at the other end is not the one that its certificate says, or nil.
func (g *guard) believes(id trust.Identity, cert *x509.Certificate) error {
	v := g.view.Load()
	if key, ok := v.members[id.Node]; ok {
		if key != id.Key {
			return errs.E(errs.Access, "hello", "that is not the key of node %v", id.Node)
		}
		return nil // the catalog knows better than a certificate, which may be of an authority before
	}
	if until, ok := v.left[id.Node]; ok && !g.now().Before(until) {
		return errs.E(errs.Evicted, "hello", "node %v is not a member any more", id.Node)
	}
	if key, ok := v.evicted[id.Node]; ok && key != id.Key {
		return errs.E(errs.Access, "hello", "that is not the key of node %v", id.Node)
	}
	if v.authority == nil {
		return errs.E(errs.Unavailable, "hello", "this node has not joined a cluster yet")
	}
	if _, err := v.authority.Check(cert, g.now()); err != nil {
		return errs.E(errs.Access, "hello", "node %v: %w", id.Node, err)
	}
	if id.Cluster != v.cluster {
		return errs.E(errs.Access, "hello", "this is cluster %v, not %v", v.cluster, id.Cluster)
	}
	return nil
}

// admits returns why the client may not say the hello, or nil.
func (g *guard) admits(s *sealed, h hello) *errs.Error {
	certs := s.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		if h.lane != laneEnroll {
			return errs.E(errs.Access, "hello", "node %v has no certificate", h.from)
		}
		return nil
	}
	if s.peer.Node != h.from {
		return errs.E(errs.Access, "hello", "node %v has the certificate of %v", h.from, s.peer.Node)
	}
	if err, ok := g.believes(s.peer, certs[0]).(*errs.Error); ok {
		return err
	}
	v := g.view.Load()
	_, member := v.members[h.from]
	if _, evicted := v.evicted[h.from]; evicted && !member && h.lane != laneControl {
		return errs.E(errs.Evicted, "hello", "node %v was given up", h.from)
	}
	if !member && v.members != nil && (h.lane == laneData || h.lane == laneGossip) {
		return errs.E(errs.Unavailable, "hello", "node %v is not known as a member here yet", h.from)
	}
	return nil
}

// mayAsk reports whether the node at the other end may make the request of the control lane. One that
// is not a member may only join, and look whether this node is there; one that was given up learns that from ReadIndex.
func (g *guard) mayAsk(s *sealed, req any) bool {
	v := g.view.Load()
	if !s.known {
		_, member := v.members[s.peer.Node]
		_, left := v.left[s.peer.Node] // its connection is closed when it has said goodbye
		s.known = member || left
	}
	switch req.(type) {
	case *wire.Join, *wire.Probe, *wire.Cancel:
		return true
	case *wire.ReadIndex:
		if _, evicted := v.evicted[s.peer.Node]; evicted {
			return true
		}
	}
	return s.known || v.members == nil // nobody can tell yet: look again at the next request
}
