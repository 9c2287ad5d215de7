package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/catalog"
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
		"rotate": func(ctx context.Context, n *node) error {
			_, err := info{n}.ChangeTokens(ctx, "rotate")
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := &node{built: make(chan struct{})}
			close(n.built)
			n.cats.start(nil) // to ask it is a panic
			n.cats.leave()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := ask(ctx, n); !errs.Is(err, errs.Timeout) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
}

// TestCallOfAnEvictedNode: the cluster refuses a command because the node is no member, before the node itself has learned of that. A call
// that may be made again is, when the node has joined again, and not before. The error of any other says that it is unknown what happened.
func TestCallOfAnEvictedNode(t *testing.T) {
	type outcome struct {
		at  *catalog.Catalog
		err error
	}
	former, next := new(catalog.Catalog), new(catalog.Catalog)
	refused := func(at *catalog.Catalog) (*catalog.Catalog, error) {
		if at == former {
			return nil, errs.E(errs.Evicted, "setattr", "node 2 is no member")
		}
		return at, nil
	}
	for what, c := range map[string]struct {
		then func(c *catalogs) // what becomes of the node
		kind errs.Kind         // of the error of ask
		at   *catalog.Catalog  // that has answered
	}{
		"joins":         {then: func(c *catalogs) { c.show(next); c.enter() }, at: next},
		"ends":          {then: func(c *catalogs) { c.stop() }, kind: errs.Evicted},
		"does not join": {then: func(*catalogs) {}, kind: errs.Timeout},
		"only begins":   {then: func(c *catalogs) { c.show(next) }, kind: errs.Timeout},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cats catalogs
				cats.start(former)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				done := make(chan outcome, 1)
				go func() {
					at, err := ask(ctx, &cats, refused)
					done <- outcome{at, err}
				}()
				synctest.Wait()
				cats.leave()
				synctest.Wait()
				if len(done) > 0 {
					t.Fatalf("before the node has joined again: %+v", <-done)
				}
				c.then(&cats)
				if o := <-done; o.at != c.at || errs.KindOf(o.err) != c.kind {
					t.Errorf("%v, of the new catalog: %v", o.err, o.at == next)
				}
			})
		})
	}
	var cats catalogs
	cats.start(former)
	if _, err := once(t.Context(), &cats, refused); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a call that may not be made again: %v", err)
	}
}
