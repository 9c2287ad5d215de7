package trust

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

const (
	// Life is how long a node certificate is valid. A node that runs renews its own.
	Life = 24 * time.Hour
	// Skew is how far the clocks of two nodes may differ.
	Skew = time.Hour
	// authorityLife is longer than any cluster in memory lives; --rotate makes a new authority.
	authorityLife = 20 * 365 * 24 * time.Hour

	secretSize = 16
	keySize    = 32 // AES-256, of gossip
)

// New makes an authority, a token that does not expire, and keys of gossip.
func New(now time.Time) (*dsm.Trust, error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, errs.E(errs.Other, "make the authority", "%w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "dsmfs"},
		NotBefore: now.Add(-Skew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}, &x509.Certificate{Subject: pkix.Name{CommonName: "dsmfs"}}, pub, priv)
	if err != nil {
		return nil, errs.E(errs.Other, "make the authority", "%w", err)
	}
	return &dsm.Trust{
		CA: der, CAKey: priv.Seed(), Tokens: []dsm.Secret{{Bytes: random(secretSize)}},
		Gossip: [][]byte{random(keySize), random(keySize), random(keySize)}, Turned: now.Unix(),
	}, nil
}

// random returns so many bytes that nobody can guess. crypto/rand does not fail.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// Turn returns t with the keys of gossip one turn on.
func Turn(t *dsm.Trust, now time.Time) *dsm.Trust {
	next := *t
	next.Gossip = append([][]byte{random(keySize)}, t.Gossip[:len(t.Gossip)-1]...)
	next.Turned = now.Unix()
	return &next
}

// Authority checks certificates, and signs them if this node has the key.
type Authority struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey // nil until this node has the catalog
	pool *x509.CertPool
}

// Parse returns the authority with the certificate, and its seed if it is known.
func Parse(der, seed []byte) (*Authority, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil || !cert.IsCA {
		return nil, errs.E(errs.Corrupt, "authority", "no certificate of an authority (%v)", err)
	}
	a := &Authority{cert: cert, pool: x509.NewCertPool()}
	a.pool.AddCert(cert)
	if len(seed) == ed25519.SeedSize {
		a.key = ed25519.NewKeyFromSeed(seed)
	}
	return a, nil
}

// DER returns the certificate of the authority.
func (a *Authority) DER() []byte { return a.cert.Raw }

// Signs reports whether a can sign.
func (a *Authority) Signs() bool { return a.key != nil }

// Sign makes the certificate of a node.
func (a *Authority) Sign(id Identity, now time.Time) ([]byte, error) {
	if a.key == nil {
		return nil, errs.E(errs.Unavailable, "sign", "this node does not have the key of the authority yet")
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, errs.E(errs.Other, "sign", "%w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: id.Node.String()}, DNSNames: []string{id.san()},
		NotBefore: now.Add(-Skew), NotAfter: now.Add(Life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, ed25519.PublicKey(id.Key[:]), a.key)
	if err != nil {
		return nil, errs.E(errs.Other, "sign", "%w", err)
	}
	return der, nil
}

// Identity is what a certificate says.
type Identity struct {
	Cluster dsm.ClusterID
	Node    dsm.NodeID
	Key     dsm.NodeKey
}

// suffix ends the names in certificates, which nobody looks up.
const suffix = ".dsmfs"

func (i Identity) san() string { return i.Node.String() + "." + i.Cluster.String() + suffix }

// Check returns what the certificate of another node says, if the authority has signed it and it
// is valid now.
func (a *Authority) Check(cert *x509.Certificate, now time.Time) (Identity, error) {
	_, err := cert.Verify(x509.VerifyOptions{Roots: a.pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return Identity{}, errs.E(errs.Access, "certificate", "%w", err)
	}
	return Read(cert)
}

// Read returns what a certificate says without asking who signed it.
func Read(cert *x509.Certificate) (Identity, error) {
	pub, ok := cert.PublicKey.(ed25519.PublicKey)
	if !ok || len(cert.DNSNames) != 1 || cert.IsCA {
		return Identity{}, errs.E(errs.Access, "certificate", "it is not of a dsmfs node")
	}
	name, ok := strings.CutSuffix(cert.DNSNames[0], suffix)
	node, cluster, parted := strings.Cut(name, ".")
	id, err := dsm.ParseNodeID(node)
	c, cerr := dsm.ParseNodeID(cluster)
	if !ok || !parted || err != nil || cerr != nil || id == 0 {
		return Identity{}, errs.E(errs.Access, "certificate", "%q names no dsmfs node", cert.DNSNames[0])
	}
	return Identity{Cluster: dsm.ClusterID(c), Node: id, Key: dsm.NodeKey(pub)}, nil
}

// Fingerprint identifies an authority.
type Fingerprint [sha256.Size]byte

// FingerprintOf returns the fingerprint of an authority's certificate.
func FingerprintOf(der []byte) Fingerprint { return sha256.Sum256(der) }

// Prune returns the departed nodes whose certificates may still be valid, at most so many.
func Prune(left []dsm.Departed, now time.Time) []dsm.Departed {
	const most = 4096
	old := now.Add(-Life - 2*Skew).Unix()
	kept := slices.DeleteFunc(slices.Clone(left), func(d dsm.Departed) bool { return d.At < old })
	return kept[max(0, len(kept)-most):]
}
