package catalog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Leave takes this node out of the cluster. Its slots are handed over (by the data plane, which
// reports with SlotsReady on the nodes that get them), its vote and the leadership go to others,
// and its claims end. It returns when this node is not needed any more. If no node stays, nobody
// takes over: then it returns once the other nodes know.
//
// If the members that stay lack the memory for the slots, Leave waits until files are removed, a
// node joins, or all others leave too. If ctx ends first, the error is errs.NoSpace and says how
// much memory is missing, and the node stays marked as leaving.
//
// If the processes of all others have ended, nobody takes over either, and Leave does not wait. Nor does it if those that have not ended leave too, and there is
// no leader for a lease, or if this node has been evicted: then the others have gone on without it.
func (c *Catalog) Leave(ctx context.Context) error {
	c.leaving.Store(true)
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		if c.deserted(ctx) {
			cancel(errDeserted)
		}
	})
	watch.Go(func() {
		select {
		case <-c.signs.evicted:
			cancel(errEvicted(c.self.ID))
		case <-ctx.Done():
		}
	})
	err := c.leave(ctx)
	if err != nil && (errs.Is(err, errs.Evicted) || c.signs.out()) {
		c.log.Warn("leaving without handing anything over: the cluster has evicted this node")
		return nil
	}
	if err != nil && errors.Is(context.Cause(ctx), errDeserted) {
		c.log.Warn("leaving without handing anything over: all other members have ended, or leave without a leader too")
		return nil
	}
	return err
}

var errDeserted = errors.New("no other member stays")

// deserted waits until there is no leader and no other member stays, which it reports, or ctx ends: each has ended, or leaves too, and cannot without a leader either. One that
// leaves must have said so for a lease, and one whose daemon may be followed must have refused connections for as long.
func (c *Catalog) deserted(ctx context.Context) bool {
	look := time.NewTicker(lastWords / 4)
	defer look.Stop()
	away := make(absences)
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		case <-c.life.Done():
			return false
		}
		if c.Leader() != 0 {
			clear(away)
			continue
		}
		v, lives := c.Current(), false
		for _, m := range present(v) { // all of them, so that each is counted from when it was first away
			if m.ID == c.self.ID {
				continue
			}
			p, ended := c.look(ctx, m)
			if away.mayStay(m, ended, p != nil && p.Leaving, time.Now(), v.Lease) {
				lives = true
			}
		}
		if !lives {
			return true
		}
	}
}

// absences has from when on members have refused connections, or said that they leave, without another answer since.
type absences map[dsm.NodeID]time.Time

// mayStay takes note whether a member's process has ended, as far as its machine says, or leaves, and reports whether it, or the daemon that follows it, may serve.
func (a absences) mayStay(m dsm.Member, ended, leaves bool, now time.Time, lease time.Duration) bool {
	if !ended && !leaves {
		delete(a, m.ID)
		return true
	}
	if _, before := a[m.ID]; !before {
		a[m.ID] = now
	}
	return (leaves || followed(m)) && now.Sub(a[m.ID]) < lease
}

func (c *Catalog) leave(ctx context.Context) error {
	// Otherwise it would hand slots over to dead members.
	c.awaitFate(ctx, present(c.Current()))
	if _, err := c.propose(ctx, leavingOp{c.self.ID}); err != nil {
		return err
	}
	removed, told := false, false
	for try := 0; ; try++ {
		reign, ring := c.reign.ctx(), c.news.hear()
		v := c.Current()
		if _, member := v.Member(c.self.ID); !member && !removed {
			// No member any more, but raft may still count on this node's vote: to go
			// now could leave the others without a majority, in the middle of changing
			// the voters. So the leader is asked again, unless there is none to ask.
			removed = true
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, lastWords)
			defer cancel()
		}
		if removed && ctx.Err() != nil {
			return nil
		}
		if dissolves(v) {
			c.dissolve(ctx, v)
			return nil
		}
		id, addr := c.leader()
		if rowsOf(v, c.self.ID) > 0 || id == c.self.ID {
			// Until the slots are gone, and reconcile has found another leader.
			stuck := c.stuck()
			if stuck != nil && !told {
				told = true
				c.log.Warn("waiting for memory on other nodes before leaving", "err", stuck)
			}
			select {
			case <-ring:
				continue
			case <-ctx.Done():
			case <-c.life.Done():
			}
			switch {
			case removed:
				return nil
			case stuck != nil:
				return named("leave", stuck)
			}
			return named("leave", gaveUp(ctx))
		}
		if id != 0 {
			a, cancel := during(reign, ctx)
			_, err := c.caller.Call(a, nodeAddr(id, addr), &wire.Leave{Node: c.self.ID})
			cancel()
			if err == nil {
				return nil
			}
		}
		if !c.pause(ctx, reign, try) && !removed {
			return named("leave", gaveUp(ctx))
		}
		if removed && c.life.Err() != nil {
			return nil
		}
	}
}

// stuck returns why this node cannot hand over its slots, or nil.
func (c *Catalog) stuck() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.state.checkLeaving(c.self.ID)
}

// lastWords is how long a node waits for the others to learn that the whole cluster ends.
const lastWords = 2 * time.Second

// dissolves reports whether no member stays. Then raft is left as it is: there is nobody to give votes to.
func dissolves(v *dsm.View) bool {
	return !slices.ContainsFunc(v.Members, func(m dsm.Member) bool { return !m.Leaving })
}

// dissolve waits until those of the others that answer know that everybody leaves. They might need
// this node's vote or leadership to learn it; so it is with nodes that are not members any more
// and have not been told.
func (c *Catalog) dissolve(ctx context.Context, v *dsm.View) {
	ctx, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	if c.news.until(ctx, c.life, func() bool { return c.leavers.Load() == 0 }) != nil {
		return
	}
	index := c.progress.index.Load()
	for _, m := range v.Members {
		for try := 0; m.ID != c.self.ID; try++ {
			p, err := c.probe(ctx, m.ID, m.Addr)
			if err != nil || p.Applied >= index {
				break
			}
			if !c.pause(ctx, c.life, try) {
				return
			}
		}
	}
}

// serveLeave removes the node from the members, and returns when raft does not need it any more
// either.
func (c *Catalog) serveLeave(ctx context.Context, n dsm.NodeID) (any, error) {
	if c.leads() == 0 {
		return nil, errs.E(errs.NotLeader, "leave", "")
	}
	c.leavers.Add(1)
	defer func() {
		c.leavers.Add(-1)
		c.news.ring()
	}()
	if _, err := c.propose(ctx, removeMemberOp{n}); err != nil {
		return nil, err
	}
	free := func() bool { return !c.replicates(func(s server) bool { return s.id == n }) || dissolves(c.Current()) }
	if err := c.news.until(ctx, c.life, func() bool { return free() || c.leads() == 0 }); err != nil {
		return nil, named("leave", err)
	}
	if c.leads() == 0 {
		return nil, errs.E(errs.NotLeader, "leave", "")
	}
	// The configuration without the node is committed once a later entry is.
	if _, err := c.commit(ctx, noopOp{}); err != nil {
		return nil, named("leave", err)
	}
	c.log.Info("node left", "node", n)
	return &wire.Left{}, nil
}
