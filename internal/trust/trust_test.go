package trust

import (
	"crypto/ed25519"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

var noon = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

func newTrust(t *testing.T) (*dsm.Trust, *Authority) {
	t.Helper()
	made, err := New(noon)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Parse(made.CA, made.CAKey)
	if err != nil {
		t.Fatal(err)
	}
	return made, a
}

func newIdentity(t *testing.T) Identity {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return Identity{Cluster: 0xc1, Node: 7, Key: dsm.NodeKey(pub)}
}

func signed(t *testing.T, a *Authority, id Identity) *x509.Certificate {
	t.Helper()
	der, err := a.Sign(id, noon)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestCertificate(t *testing.T) {
	_, a := newTrust(t)
	_, other := newTrust(t)
	id := newIdentity(t)
	cert := signed(t, a, id)
	if got, err := a.Check(cert, noon); err != nil || got != id {
		t.Fatalf("%+v became %+v, %v", id, got, err)
	}
	for name, check := range map[string]func() error{
		"another authority": func() error { _, err := other.Check(cert, noon); return err },
		"too late":          func() error { _, err := a.Check(cert, noon.Add(Life+time.Second)); return err },
		"too early":         func() error { _, err := a.Check(cert, noon.Add(-Skew-time.Second)); return err },
		"the authority's own": func() error {
			_, err := a.Check(a.cert, noon)
			return err
		},
		"no key": func() error {
			b, err := Parse(a.DER(), nil)
			if err != nil || b.Signs() {
				t.Fatalf("an authority without its key: %v", err)
			}
			_, err = b.Sign(id, noon)
			return err
		},
	} {
		if check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestToken(t *testing.T) {
	made, _ := newTrust(t)
	token, ok := Lasting(made)
	if !ok {
		t.Fatal("a new cluster has no token")
	}
	if got, err := ParseToken(token.String() + "\n"); err != nil || got.String() != token.String() {
		t.Fatalf("%v became %v, %v", token, got, err)
	}
	for _, s := range []string{"", "dsmfs1-", "dsmfs2-" + strings.TrimPrefix(token.String(), tokenPrefix), token.String()[:20], token.String() + "AAAA", "x y"} {
		if _, err := ParseToken(s); !errs.Is(err, errs.Invalid) {
			t.Errorf("%q: %v", s, err)
		}
	}
	if err := Admits(made, token.Secret, noon.Add(1000*time.Hour)); err != nil {
		t.Error(err)
	}
	for _, wrong := range [][]byte{nil, {}, token.Secret[:8], make([]byte, secretSize)} {
		if err := Admits(made, wrong, noon); !errs.Is(err, errs.Access) {
			t.Errorf("secret %x: %v", wrong, err)
		}
	}
	short, brief, err := With(made, time.Minute, noon)
	if err != nil {
		t.Fatal(err)
	}
	if err := Admits(short, brief.Secret, noon.Add(59*time.Second)); err != nil {
		t.Error(err)
	}
	if err := Admits(short, brief.Secret, noon.Add(time.Minute)); !errs.Is(err, errs.Access) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("after its time: %v", err)
	}
	if err := Admits(made, brief.Secret, noon); !errs.Is(err, errs.Access) {
		t.Errorf("unknown: %v", err)
	}
	for len(short.Tokens) < most {
		if short, _, err = With(short, time.Minute, noon); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := With(short, time.Minute, noon); !errs.Is(err, errs.Busy) {
		t.Errorf("one too many: %v", err)
	}
	if next, _, err := With(short, time.Minute, noon.Add(time.Hour)); err != nil || len(next.Tokens) != 2 {
		t.Errorf("%d tokens when most have expired: %v", len(next.Tokens), err)
	}
}

func TestGossipKeysTakeTurns(t *testing.T) {
	made, _ := newTrust(t)
	next := Turn(made, noon.Add(time.Hour)).Gossip
	if len(next) != 3 || string(next[1]) != string(made.Gossip[0]) || string(next[2]) != string(made.Gossip[1]) || string(next[0]) == string(made.Gossip[2]) {
		t.Error("the next key is not the one in use after a turn")
	}
}

func TestPrune(t *testing.T) {
	at := func(d time.Duration) dsm.Departed { return dsm.Departed{ID: 1, At: noon.Add(d).Unix()} }
	if got := Prune([]dsm.Departed{at(-Life - 3*Skew), at(-Life)}, noon); len(got) != 1 || got[0] != at(-Life) {
		t.Errorf("%v are kept", got)
	}
	if got := Prune(make([]dsm.Departed, 0), noon); len(got) != 0 {
		t.Errorf("%v are kept", got)
	}
}
