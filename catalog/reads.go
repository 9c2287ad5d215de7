package catalog

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// A read is linearizable if the replica that serves it has applied everything that was committed
// when the read began. Only the leader knows how far that is, and only while it leads. So a read
//
//	asks the leader for the end of its log,
//	which asks the voters whether one of them knows of a later leader,
//	waits until this node has applied the log up to there,
//	reads the state of this node.
//
// If a majority did not know a later leader when asked, none had been elected before, so nothing
// had been committed that this leader does not know. Clocks play no part in that. raft's
// VerifyLeader is not used: it counts the answers of followers without a vote, which prove nothing.
//
// With the index may come a lease, under which later reads ask nobody (lease.go).
//
// Reads that begin while a round of questions is under way share the next one. A leader that is the
// only voter, as in a cluster of one, asks nobody.

// rounds lets concurrent reads share questions.
type rounds struct {
	mu struct {
		lockrank.Mutex
		running bool
		next    *round // not begun yet
	}
}

// round is one question for the read index. Its fields are set before done is closed.
type round struct {
	done  chan struct{}
	index uint64
	err   error
}

func (rs *rounds) init() { rs.mu.Init("catalog.rounds") }

// join returns a round that begins after now.
func (rs *rounds) join(ask func() (uint64, error)) *round {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.mu.next == nil {
		rs.mu.next = &round{done: make(chan struct{})}
	}
	r := rs.mu.next
	if !rs.mu.running {
		rs.mu.running = true
		go rs.run(ask)
	}
	return r
}

func (rs *rounds) run(ask func() (uint64, error)) {
	for {
		rs.mu.Lock()
		r := rs.mu.next
		rs.mu.next = nil
		rs.mu.running = r != nil
		rs.mu.Unlock()
		if r == nil {
			return
		}
		r.index, r.err = ask()
		close(r.done)
	}
}

// sync returns when this node has applied everything that was committed anywhere before the call.
func (c *Catalog) sync(ctx context.Context) error {
	if c.leased(ctx) {
		return nil
	}
	return c.ask(ctx)
}

// ask is sync without a lease.
func (c *Catalog) ask(ctx context.Context) error {
	for {
		reign := c.reign.ctx()
		index, ok := c.soleIndex()
		if !ok {
			var err error
			if index, err = c.sharedIndex(ctx); err != nil {
				return err
			}
		}
		err := c.progress.wait(ctx, reign, index, 0)
		if err == nil || reign.Err() == nil || ctx.Err() != nil || c.life.Err() != nil {
			return err
		}
		// Entries of a former leader's log that were not committed may never be.
	}
}

// readIndex returns the index up to which a read must have applied the log, if this node leads. It
// is the end of the log, because followers may have applied all they have got (early.go).
func (c *Catalog) readIndex() uint64 { return c.raft.LastIndex() }

// soleIndex returns the read index if this node leads and is the only voter.
func (c *Catalog) soleIndex() (uint64, bool) {
	term := c.leads()
	if term == 0 {
		return 0, false
	}
	for _, s := range c.servers() {
		if s.voter && s.id != c.self.ID {
			return 0, false
		}
	}
	return c.granted(c.lease.request(), term, c.readIndex()), true
}

// granted lets this node, which leads in the term, take a lease from itself if it can. It returns
// the read index, which is index if there is no lease.
func (c *Catalog) granted(r leaseRequest, term, index uint64) uint64 {
	later, ok := c.grant(c.self.ID, term)
	if ok {
		c.lease.accept(r, later)
	}
	return max(index, later)
}

// sharedIndex returns the read index from a round that begins after the call.
func (c *Catalog) sharedIndex(ctx context.Context) (uint64, error) {
	r := c.rounds.join(c.askIndex)
	select {
	case <-r.done:
		return r.index, r.err
	case <-ctx.Done():
	case <-c.life.Done():
	}
	return 0, gaveUp(ctx)
}

// askIndex asks the leader, whoever that is, until it has the read index.
func (c *Catalog) askIndex() (uint64, error) {
	for try := 0; ; try++ {
		reign := c.reign.ctx()
		index, err := c.tryIndex(reign)
		if err == nil {
			return index, nil
		}
		c.doubtLeader(err)
		if !c.pause(c.life, reign, try) {
			return 0, errs.E(errs.Closed, "", "")
		}
	}
}

func (c *Catalog) tryIndex(reign context.Context) (uint64, error) {
	ctx, cancel := during(reign, c.life)
	defer cancel()
	return c.question(ctx, false)
}

// question asks the leader once. With sign it is only a sign of life, and brings no lease for reads.
func (c *Catalog) question(ctx context.Context, sign bool) (uint64, error) {
	request, sent := c.lease.request(), c.signs.clock()
	if term := c.leads(); term != 0 {
		index := c.readIndex()
		if !c.confirm(ctx, term) {
			return 0, errs.E(errs.NotLeader, "", "")
		}
		c.signs.confirm(sent)
		if sign {
			return index, nil
		}
		return c.granted(request, term, index), nil
	}
	// The term is read before the question is asked, so if this node has a vote it declares that it
	// had voted for no later leader.
	term := c.raft.CurrentTerm()
	id, addr := c.leader()
	if id == 0 || id == c.self.ID {
		return 0, errs.E(errs.Unavailable, "", "the catalog has no leader")
	}
	v := c.Current()
	var unreached, apart []dsm.NodeID
	if sign {
		unreached, apart = c.unreached(v)
	}
	reply, err := c.caller.Call(ctx, nodeAddr(id, addr), &wire.ReadIndex{From: c.self.ID, Inc: c.self.Inc, Term: term, Epoch: v.Epoch, Sign: sign, Unreached: unreached, Apart: apart})
	if err != nil {
		return 0, err
	}
	r, ok := reply.(*wire.ReadIndexed)
	if !ok {
		return 0, errs.E(errs.Corrupt, "", "%T answers ReadIndex", reply)
	}
	c.signs.confirm(sent)
	if r.Lease {
		c.lease.accept(request, r.Index)
	}
	return r.Index, nil
}

// serveIndex answers the question of another node.
func (c *Catalog) serveIndex(ctx context.Context, req *wire.ReadIndex) (any, error) {
	term := c.leads()
	switch {
	case c.knownOut(req):
		return nil, errEvicted(req.From)
	case term == 0:
		return nil, errs.E(errs.NotLeader, "read", "")
	case !c.signs.hear(req.From, req.Inc, term):
		return nil, errs.E(errs.Unavailable, "read", "node %s is being evicted", req.From)
	}
	if req.Sign {
		c.signs.blame(req.From, req.Inc, req.Unreached, req.Apart)
	}
	index := c.readIndex()
	if !c.majority(term, req) {
		var err error
		if index, err = c.sharedIndex(ctx); err != nil {
			return nil, err
		}
		if c.leads() != term { // a later leader has confirmed the index, and does not know that this node has heard of the asker
			return nil, errs.E(errs.NotLeader, "read", "")
		}
	}
	if req.Sign {
		return &wire.ReadIndexed{Index: index}, nil
	}
	later, lease := c.grant(req.From, term)
	c.push.kickOne(req.From, max(index, later))
	return &wire.ReadIndexed{Index: max(index, later), Lease: lease}, nil
}

// majority reports whether this node and the one that asks, at its term, are more than half of the
// voters: among three, a voter that asks has confirmed the leader.
func (c *Catalog) majority(term uint64, asker *wire.ReadIndex) bool {
	voters, yes := 0, 0
	for _, s := range c.servers() {
		if !s.voter {
			continue
		}
		voters++
		if s.id == c.self.ID || s.id == asker.From && s.inc == asker.Inc && asker.Term == term {
			yes++
		}
	}
	return yes > voters/2
}

// confirm asks the voters whether term is the latest they know, until more than half of them have
// confirmed it.
func (c *Catalog) confirm(ctx context.Context, term uint64) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	voters, yes := 0, 0
	servers := c.servers()
	answers := make(chan bool, len(servers))
	asked := 0
	for _, s := range servers {
		if !s.voter {
			continue
		}
		voters++
		if s.id == c.self.ID {
			yes++
			continue
		}
		asked++
		go func() {
			p, err := c.probe(ctx, s.id, s.addr)
			answers <- err == nil && p.Inc == s.inc && p.Term == term
		}()
	}
	for ; asked > 0 && yes <= voters/2; asked-- {
		if <-answers {
			yes++
		}
	}
	return yes > voters/2
}

// probe asks a node for its state.
func (c *Catalog) probe(ctx context.Context, id dsm.NodeID, addr string) (*wire.Probed, error) {
	return c.probeAt(ctx, id, addr, wire.Probe{})
}

// probeAt is probe when what q says has come about.
func (c *Catalog) probeAt(ctx context.Context, id dsm.NodeID, addr string, q wire.Probe) (*wire.Probed, error) {
	q.Cluster = c.Current().Cluster
	reply, err := c.caller.Call(ctx, nodeAddr(id, addr), &q)
	if err != nil {
		return nil, err
	}
	p, ok := reply.(*wire.Probed)
	if !ok {
		return nil, errs.E(errs.Corrupt, "", "%T answers Probe", reply)
	}
	return p, nil
}
