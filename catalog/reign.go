package catalog

import (
	"context"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// reign is the time during which one node leads, as this node sees it.
type reign struct {
	// own is the term in which this node leads and has applied everything committed before, or 0.
	// It may be out of date: see leads.
	own atomic.Uint64

	mu struct {
		lockrank.Mutex
		life context.Context
		ctx  context.Context
		end  context.CancelFunc
	}
}

func (r *reign) init(life context.Context) {
	r.mu.Init("catalog.reign")
	r.mu.life = life
	r.mu.ctx, r.mu.end = context.WithCancel(life)
}

// ctx returns a context that ends when the leader changes.
func (r *reign) ctx() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ctx
}

func (r *reign) next() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.end()
	r.mu.ctx, r.mu.end = context.WithCancel(r.mu.life)
}

func (r *reign) term() uint64 { return r.own.Load() }

// leads returns the term in which this node leads and has applied everything committed before, or
// 0. Another node may already lead without this one knowing it.
func (c *Catalog) leads() uint64 {
	t := c.reign.term()
	if t == 0 || c.raft.State() != raft.Leader || c.raft.CurrentTerm() != t {
		return 0
	}
	return t
}

// watchLeader follows the leadership until the catalog is closed.
func (c *Catalog) watchLeader() {
	changes := make(chan raft.Observation, 16)
	o := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, leader := o.Data.(raft.LeaderObservation)
		return leader
	})
	c.raft.RegisterObserver(o)
	defer c.raft.DeregisterObserver(o)

	depose := func() {}
	defer func() { depose() }()
	former := make(chan struct{}) // closed when this node's last reign is over
	close(former)
	for {
		select {
		case <-changes:
		case leads := <-c.raft.LeaderCh():
			c.pace(leads)
			depose()
			if leads {
				ctx, cancel := context.WithCancel(c.life)
				before, over := former, make(chan struct{})
				depose, former = cancel, over
				c.tasks.Go(func() {
					defer close(over)
					<-before
					c.lead(ctx)
				})
			}
		case <-c.life.Done():
			return
		}
		c.reign.next()
		c.news.ring()
	}
}

// pace sets how often this node sends heartbeats if it leads, or else how long it misses them
// before it thinks of an election. raft has one number for both: a leader sends five to ten
// heartbeats in the time that a follower would wait. But followers with the same number would wait
// for ten missing heartbeats, which is twice as safe as needed: over TCP heartbeats come late, but
// are not lost. And the cluster would pay for that all the time.
//
// A leader that is deposed hears of it at once, by the shorter time, if it hears of no other leader.
// Then it asks for votes, which it gets only if the others hear of none either.
func (c *Catalog) pace(leads bool) {
	conf := c.raft.ReloadableConfig()
	conf.HeartbeatTimeout = electionTimeout
	if leads {
		conf.HeartbeatTimeout = 10 * heartbeat
	}
	conf.ElectionTimeout = conf.HeartbeatTimeout // it must not be shorter
	if err := c.raft.ReloadConfig(conf); err != nil {
		c.log.Warn("pace of the heartbeats", "err", err)
	}
}

// lead does the leader's work until ctx ends.
func (c *Catalog) lead(ctx context.Context) {
	defer c.reign.own.Store(0)
	for c.leads() == 0 {
		// The first command of the term: when it is applied, so is everything that former leaders
		// committed. raft does not report its own empty entry.
		a, err := c.commit(ctx, noopOp{})
		if err != nil {
			return
		}
		c.signs.begin(a.term)
		c.reign.own.Store(a.term)
	}
	c.log.Info("leading the catalog", "term", c.leads())
	c.news.ring()
	defer c.push.dismiss()
	term := c.reign.term()
	c.tasks.Go(func() { c.watchMembers(ctx, term) })
	c.tasks.Go(func() { c.turnKeys(ctx) })
	c.reconcile(ctx)
}

// servers returns the latest configuration of raft, which may not be committed yet; the leader must
// act on it all the same.
func (c *Catalog) servers() []server {
	conf := c.raft.GetConfiguration().Configuration()
	servers := make([]server, 0, len(conf.Servers))
	for _, s := range conf.Servers {
		if p, err := parseServer(s.Address); err == nil {
			p.voter = s.Suffrage == raft.Voter
			servers = append(servers, p)
		}
	}
	return servers
}
