package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestKeysWaitForTheCluster: while a node that was evicted joins again, what needs the keys of the cluster waits for that, and asks no
// catalog that was given up.
func TestKeysWaitForTheCluster(t *testing.T) {
	for what, ask := range map[string]func(context.Context, *node) error{
		"enroll": func(ctx context.Context, n *node) error {
			_, err := n.onEnroll(ctx, 7, new(wire.Enroll), true)
			return err
		},
		"tokens": func(ctx context.Context, n *node) error {
			_, err := info{n}.Tokens(ctx)
			return err
		},
		"rotate": func(ctx context.Context, n *node) error { return info{n}.ChangeTokens(ctx, "rotate") },
	} {
		synctest.Test(t, func(t *testing.T) {
			n := &node{built: already}
			n.cats.at.Store(&seat{joined: already}) // without a catalog: to ask it is a panic
			n.cats.leave()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := ask(ctx, n); !errs.Is(err, errs.Timeout) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
}
