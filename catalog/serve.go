package catalog

import (
	"context"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

func errNotLeader() error { return errs.E(errs.NotLeader, "propose", "") }

// OnNow handles a request of another catalog, if that takes no waiting. A command that is taken has no reply.
func (c *Catalog) OnNow(req any) (reply any, handled bool) {
	switch r := req.(type) {
	case *wire.Propose:
		return nil, c.takeNow(r.Command)
	case *wire.YieldLocks:
		y, ok := c.yield(r.Ino, r.Term)
		return &wire.LocksYielded{OK: ok, Used: y.Used}, true
	}
	return nil, false
}

// OnCall answers requests of other catalogs; any other request is errs.Unsupported. It returns when
// ctx ends or the catalog is closed.
func (c *Catalog) OnCall(ctx context.Context, _ dsm.NodeID, req any) (any, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	switch r := req.(type) {
	case *wire.Join:
		return c.serveJoin(ctx, r)
	case *wire.Propose:
		if c.raft.State() != raft.Leader {
			return nil, errNotLeader()
		}
		return nil, c.take(ctx, r.Command)
	case *wire.Recall:
		if err := c.lease.giveBack(ctx); err != nil {
			return nil, err
		}
		return &wire.Recalled{}, nil
	case *wire.YieldLocks:
		reply, _ := c.OnNow(r)
		return reply, nil
	case *wire.ReadIndex:
		return c.serveIndex(ctx, r)
	case *wire.Probe:
		if c.joining.Load() && r.Cluster != 0 {
			c.belong(r.Cluster)
		}
		ctx, cancel := context.WithTimeout(ctx, shrinkLimit)
		defer cancel()
		if err := c.progress.wait(ctx, c.life, r.Until, 0); err != nil {
			return nil, err
		}
		if c.shrunk != nil && r.Shrunk != 0 {
			ctx, cancel := context.WithTimeout(ctx, kernelLimit)
			defer cancel()
			c.shrunk(ctx, r.Shrunk)
		}
		return &wire.Probed{Inc: c.self.Inc, Term: c.raft.CurrentTerm(), Applied: c.progress.index.Load(), Away: c.away.Load(), Leaving: c.leaving.Load()}, nil
	case *wire.Reach:
		return c.serveReach(ctx, r)
	case *wire.Succeed:
		return c.serveSucceed(r)
	case *wire.PutOut:
		return c.servePutOut(r)
	case *wire.Leave:
		return c.serveLeave(ctx, r.Node)
	}
	return nil, errs.E(errs.Unsupported, "call", "%T is no request to the catalog", req)
}
