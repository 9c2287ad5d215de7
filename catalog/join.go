package catalog

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Bootstrap makes this node the first of a new cluster, and returns when the catalog serves. root
// has the Perm, UID and GID of the root directory.
func (c *Catalog) Bootstrap(ctx context.Context, root dsm.Inode) error {
	cluster := dsm.ClusterID(rand.Uint64() | 1) // not 0
	c.belong(cluster)
	if err := c.begin(ctx); err != nil {
		return err
	}
	self := c.self
	self.Voter, self.Leaving = true, false
	_, err := c.propose(ctx, bootstrapOp{
		Cluster: cluster, Member: self, RootPerm: root.Perm, UID: root.UID, GID: root.GID, Lease: c.begins, Trust: c.first,
	})
	return err
}

// begin makes this node the only voter, and returns when it leads.
func (c *Catalog) begin(ctx context.Context) error {
	err := c.raft.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{
		ID: serverOf(c.self).raftID(), Address: serverOf(c.self).raftAddress(),
	}}}).Error()
	if err != nil {
		return errs.E(errs.Other, "bootstrap", "%w", err)
	}
	return named("bootstrap", c.electSelf(ctx))
}

// electSelf makes this node, which is alone, the leader. A follower waits for a leader before it thinks of an election. Here there
// is none to wait for, and a shorter timeout ends the wait at once, because raft restarts the timer at zero.
// When this node leads, the timeouts become those of a leader.
func (c *Catalog) electSelf(ctx context.Context) error {
	conf := c.raft.ReloadableConfig()
	conf.HeartbeatTimeout = leaderLease
	if err := c.raft.ReloadConfig(conf); err != nil {
		return errs.E(errs.Other, "", "%w", err)
	}
	return c.news.until(ctx, c.life, func() bool { return c.leads() != 0 })
}

// Join makes this node a member of the cluster to which the node at addr belongs, and returns when
// this replica has caught up. If the leader hears nothing of this node for a lease before that, the error is errs.Evicted: a new catalog may join.
// An answer that is lost with its connection is asked for again until ctx ends, or the other node is away for two seconds: the node may be a member by then. If nobody was asked it fails at once.
func (c *Catalog) Join(ctx context.Context, addr string) error {
	if addr == c.self.Addr {
		return errs.E(errs.Invalid, "join", "%s is this node's own address: name a node of the cluster", addr)
	}
	c.joining.Store(true)
	defer c.joining.Store(false)
	reply, err := c.askToJoin(ctx, addr)
	if err != nil {
		if c.unanswered.Load() && errs.Is(err, errs.Evicted) {
			return err // it was admitted, and has given no sign of life since
		}
		switch errs.KindOf(err) {
		case errs.Invalid, errs.Exist, errs.NoSpace, errs.Unsupported:
			return err
		}
		return errs.E(errs.Unavailable, "join", "%s: no answer (%w): check that a node of the cluster is mounted there and that its port is open for TCP", addr, err)
	}
	joined, ok := reply.(*wire.Joined)
	if !ok {
		return errs.E(errs.Corrupt, "join", "%T answers Join", reply)
	}
	c.belong(joined.Cluster)
	c.admitted.Store(joined)
	c.news.ring()
	if err := c.catchUp(ctx); err != nil {
		return named("join", err)
	}
	if v := c.Current(); v.Cluster != joined.Cluster {
		return errs.E(errs.Corrupt, "join", "%s is of cluster %s, the replica of %s", addr, joined.Cluster, v.Cluster)
	}
	return nil
}

// mostAway is how long a node that has not answered may be unreachable before another one is asked: its daemon may have ended, and another follow.
const mostAway = 2 * time.Second

// askToJoin asks the node at addr to admit this one, again if the answer is lost. Who is a member already gets the same answer once more.
func (c *Catalog) askToJoin(ctx context.Context, addr string) (reply any, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(c.life, end)()
	err = UntilAnswered(ctx, func() (err error) {
		reply, err = c.caller.Call(ctx, addr, &wire.Join{Protocol: wire.JoinProtocol, Member: c.self})
		if errors.Is(err, errs.ErrUnanswered) {
			c.unanswered.Store(true)
		}
		return err
	})
	return reply, err
}

// UntilAnswered asks another node for what it may do more than once. It asks again if the answer is lost with its connection, until ctx ends, or the other node is away for
// two seconds. If nobody was asked it fails at once.
func UntilAnswered(ctx context.Context, ask func() error) error {
	lost := false
	var away time.Time // since then it cannot be reached
	for try := 0; ; try++ {
		err := ask()
		switch {
		case errors.Is(err, errs.ErrUnanswered):
			lost, away = true, time.Time{}
		case !lost || !errs.Is(err, errs.Unavailable):
			return err
		case away.IsZero():
			away = time.Now()
		case time.Since(away) > mostAway:
			return err
		}
		select {
		case <-time.After(backoff(try)):
		case <-ctx.Done():
			return err
		}
	}
}

// untilEvicted returns a context that also ends when this node is evicted.
func (c *Catalog) untilEvicted(ctx context.Context) (context.Context, func()) {
	ctx, end := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-c.signs.evicted:
			end()
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		end()
		watch.Wait()
	}
}

// catchUp returns when this replica has all that was committed before, and this node as a member. It fails when the node is evicted.
func (c *Catalog) catchUp(ctx context.Context) error {
	ctx, cancel := c.untilEvicted(ctx)
	defer cancel()
	err := c.news.until(ctx, c.life, func() bool {
		m, member := c.Current().Member(c.self.ID)
		return member && m.Inc == c.self.Inc
	})
	if err == nil {
		err = c.sync(ctx)
	}
	if err != nil && c.signs.out() {
		return errs.E(errs.Evicted, "", "the cluster has put this node out again, as it gave no sign of life for a lease: is the machine overloaded?")
	}
	return err
}

// serveJoin admits a node, or passes the request on to the leader.
func (c *Catalog) serveJoin(ctx context.Context, req *wire.Join) (any, error) {
	for try := 0; ; try++ {
		reign := c.reign.ctx()
		reply, err := c.tryJoin(ctx, req)
		if err == nil {
			return reply, nil
		}
		switch errs.KindOf(err) {
		case errs.NotLeader, errs.Unavailable, errs.Timeout, errs.Other:
		default:
			return nil, err
		}
		if req.Forwarded || !c.pause(ctx, reign, try) {
			return nil, err
		}
	}
}

func (c *Catalog) tryJoin(ctx context.Context, req *wire.Join) (any, error) {
	if c.leads() != 0 {
		return c.admit(ctx, req)
	}
	id, addr := c.leader()
	if req.Forwarded || id == 0 || id == c.self.ID {
		return nil, errs.E(errs.NotLeader, "join", "the catalog has no leader at the moment")
	}
	forward := *req
	forward.Forwarded = true
	return c.caller.Call(ctx, nodeAddr(id, addr), &forward)
}

// admit makes the node a member and returns when raft replicates to it.
func (c *Catalog) admit(ctx context.Context, req *wire.Join) (any, error) {
	m := req.Member
	if req.Protocol != wire.JoinProtocol {
		return nil, errs.E(errs.Invalid, "join", "the node speaks version %d of the catalog, the cluster version %d: upgrade the older", req.Protocol, wire.JoinProtocol)
	}
	if err := c.sync(ctx); err != nil {
		return nil, err
	}
	check := func() error {
		c.mu.RLock()
		defer c.mu.RUnlock()
		return c.mu.state.admissible(m)
	}
	refused := check()
	if refused != nil && !errs.Is(refused, errs.Exist) {
		return nil, named("join", refused)
	}
	// Who is refused gives this incarnation up, which must not happen to a member: it may have a vote.
	if x, ok := c.Current().Member(m.ID); !ok || x.Gone || x.Inc != m.Inc {
		if _, err := c.probe(ctx, m.ID, m.Addr); err != nil {
			if refused != nil {
				return nil, named("join", refused)
			}
			return nil, errs.E(errs.Invalid, "join", "the cluster cannot reach the node at %s, which it says is its address (%w)", m.Addr, err)
		}
		if err := c.meets(ctx, m); err != nil {
			return nil, err
		}
	}
	if refused != nil {
		c.replace(ctx, m)
		if err := check(); err != nil {
			return nil, named("join", err)
		}
	}
	if _, err := c.propose(ctx, addMemberOp{m}); err != nil {
		return nil, err
	}
	if err := c.news.until(ctx, c.life, func() bool { return c.replicates(func(s server) bool { return s.is(m) }) || c.leads() == 0 }); err != nil {
		return nil, named("join", err)
	}
	if c.leads() == 0 {
		return nil, errs.E(errs.NotLeader, "join", "")
	}
	c.log.Info("node joined", "node", m.ID, "name", m.Name, "addr", m.Addr)
	v := c.Current()
	return &wire.Joined{Cluster: v.Cluster, Epoch: v.Epoch, Leader: nodeAddr(c.self.ID, c.self.Addr)}, nil
}

// replace marks as gone the members whose name or address m takes, if their processes have ended.
func (c *Catalog) replace(ctx context.Context, m dsm.Member) {
	for _, x := range present(c.Current()) {
		switch {
		case x.ID == m.ID && x.Inc >= m.Inc:
		case x.Addr == m.Addr || x.ID == m.ID: // m answers at this address, or says itself that its former incarnation is over
			if _, err := c.propose(ctx, goneOp{Node: x.ID, Inc: x.Inc}); err == nil && x.ID != m.ID {
				c.log.Warn("another process has the address of a member, which has died: what it was the home of, and nobody had a copy of, is lost", "node", x.ID, "name", x.Name, "addr", x.Addr)
			}
		case x.Name == m.Name:
			c.awaitFate(ctx, []dsm.Member{x})
		}
	}
}

// replicates reports whether raft sends the log to such a server.
func (c *Catalog) replicates(is func(server) bool) bool { return slices.ContainsFunc(c.servers(), is) }
