package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/catalog"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/trust"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// firstTrust returns the keys of the cluster that this node begins; nil if it joins one, or if
// nothing is encrypted.
func (n *node) firstTrust() (*dsm.Trust, error) {
	if n.cfg.insecure || len(n.cfg.join) > 0 {
		return nil, nil
	}
	return trust.New(time.Now())
}

// enroll gets this node a certificate of the cluster at the address. If the answer is lost it asks again: it gets another certificate for the same key, and the other node keeps nothing of it.
func (n *node) enroll(ctx context.Context, addr string) error {
	if n.cfg.insecure {
		return nil
	}
	var token *trust.Token
	if n.cfg.token != "" {
		t, err := trust.ParseToken(n.cfg.token)
		if err != nil {
			return err
		}
		token = &t
	}
	return catalog.UntilAnswered(ctx, func() error { return n.net.Enroll(ctx, addr, token) })
}

// onEnroll gives another node a certificate, if it has a token or is of the same user on this
// machine. Any member can: each has the key of the authority.
func (n *node) onEnroll(ctx context.Context, from dsm.NodeID, req *wire.Enroll, vouched bool) (*wire.Enrolled, error) {
	select {
	case <-n.built:
	case <-ctx.Done():
		return nil, errs.E(errs.Closed, "enroll", "")
	}
	t, err := n.cats.Trust(ctx)
	if err != nil {
		return nil, err
	}
	v, now := n.cats.Current(), time.Now()
	if t == nil {
		return &wire.Enrolled{Cluster: v.Cluster}, nil
	}
	if !vouched {
		if err := trust.Admits(t, req.Secret, now); err != nil {
			return nil, err
		}
	}
	a, err := trust.Parse(t.CA, t.CAKey)
	if err != nil {
		return nil, err
	}
	cert, err := a.Sign(trust.Identity{Cluster: v.Cluster, Node: from, Key: req.Key}, now)
	if err != nil {
		return nil, err
	}
	n.log.Info("certificate given", "node", from)
	return &wire.Enrolled{Cluster: v.Cluster, CA: t.CA, Cert: cert}, nil
}

// Tokens implements control.Info.
func (i info) Tokens(ctx context.Context) ([]string, error) {
	t, err := i.n.cats.Trust(ctx)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, errs.E(errs.Unsupported, "token", "the cluster was started with --insecure")
	}
	var all []string
	for _, s := range t.Tokens {
		if s.Expires == 0 || s.Expires > time.Now().Unix() {
			all = append(all, tokenText(t, s))
		}
	}
	return all, nil
}

func tokenText(t *dsm.Trust, s dsm.Secret) string {
	return fmt.Sprintf("%s expires=%d", trust.Token{CA: trust.FingerprintOf(t.CA), Secret: s.Bytes}, s.Expires)
}

// ChangeTokens implements control.Info.
func (i info) ChangeTokens(ctx context.Context, order string) (made string, err error) {
	word, seconds, timed := strings.Cut(order, " ")
	n, err := strconv.ParseInt(seconds, 10, 32)
	if timed && (err != nil || n <= 0) || !timed && word == "ttl" || word != "ttl" && word != "rotate" {
		return "", errs.E(errs.Invalid, "token", "%q: want rotate, rotate SECONDS or ttl SECONDS", order)
	}
	ttl := time.Duration(n) * time.Second
	after, err := i.n.cats.ChangeTrust(ctx, func(t *dsm.Trust) (*dsm.Trust, error) {
		now := time.Now()
		if word == "ttl" {
			next, _, err := trust.With(t, ttl, now)
			return next, err
		}
		next, err := trust.New(now)
		if err == nil && timed {
			next.Tokens[0].Expires = now.Add(ttl).Unix()
		}
		return next, err
	})
	if err != nil {
		return "", err
	}
	if word == "rotate" {
		i.n.log.Warn("the authority, the tokens and the keys of gossip are new ones")
	}
	return tokenText(after, after.Tokens[len(after.Tokens)-1]), nil
}
