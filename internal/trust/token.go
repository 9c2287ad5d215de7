package trust

import (
	"crypto/subtle"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Token lets a node join: by the fingerprint it knows the cluster, by the secret the cluster knows
// it.
type Token struct {
	CA     Fingerprint
	Secret []byte
}

// tokenPrefix also is the version of the format.
const tokenPrefix = "dsmfs1-"

func (t Token) String() string {
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(slices.Clone(t.CA[:]), t.Secret...))
}

// ParseToken is the inverse of String.
func ParseToken(s string) (Token, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(s), tokenPrefix)
	b, err := base64.RawURLEncoding.DecodeString(text)
	if !ok || err != nil || len(b) != len(Fingerprint{})+secretSize {
		return Token{}, errs.E(errs.Invalid, "token", "that is no token: want what dsmfs token MNT prints on a node of the cluster")
	}
	return Token{CA: Fingerprint(b), Secret: b[len(Fingerprint{}):]}, nil
}

// most is how many tokens a cluster has at a time.
const most = 16

// With returns t with another token, which expires after ttl, 0: never. Those that have expired go.
func With(t *dsm.Trust, ttl time.Duration, now time.Time) (*dsm.Trust, Token, error) {
	next := *t
	next.Tokens = slices.DeleteFunc(slices.Clone(t.Tokens), func(s dsm.Secret) bool { return over(s, now) })
	if len(next.Tokens) >= most {
		return nil, Token{}, errs.E(errs.Busy, "token", "there are %d tokens that have not expired; --rotate makes all of them invalid", most)
	}
	s := dsm.Secret{Bytes: random(secretSize)}
	if ttl > 0 {
		s.Expires = now.Add(ttl).Unix()
	}
	next.Tokens = append(next.Tokens, s)
	return &next, Token{FingerprintOf(t.CA), s.Bytes}, nil
}

// Lasting returns the token that does not expire, if there is one.
func Lasting(t *dsm.Trust) (Token, bool) {
	for _, s := range t.Tokens {
		if s.Expires == 0 {
			return Token{FingerprintOf(t.CA), s.Bytes}, true
		}
	}
	return Token{}, false
}

func over(s dsm.Secret, now time.Time) bool { return s.Expires != 0 && s.Expires <= now.Unix() }

// Admits returns why a node with the secret may not have a certificate, or nil.
func Admits(t *dsm.Trust, secret []byte, now time.Time) error {
	for _, s := range t.Tokens {
		if subtle.ConstantTimeCompare(s.Bytes, secret) != 1 {
			continue
		}
		if over(s, now) {
			return errs.E(errs.Access, "token", "the token has expired: dsmfs token MNT prints one on a node of the cluster")
		}
		return nil
	}
	return errs.E(errs.Access, "token", "the cluster does not know the token (--rotate ends earlier ones): dsmfs token MNT prints one on a node of the cluster")
}
