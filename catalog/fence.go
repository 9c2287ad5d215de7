package catalog

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

const (
	// DefaultLease is the lease of the members unless Config.Lease says otherwise.
	DefaultLease = 2500 * time.Millisecond
	// leaseParts is how many signs of life a member sends in the time of its lease, at least.
	leaseParts = 5
	// mostBetween is the longest time between two of them: it bounds how long it takes to see that a process has ended.
	mostBetween = 500 * time.Millisecond
	// signsBefore is how often a node sends them that has been admitted and does not know yet of which lease.
	signsBefore = 100 * time.Millisecond
)

// between returns the time between two signs of life.
func between(lease time.Duration) time.Duration { return min(lease/leaseParts, mostBetween) }

// Fenced reports whether this node's lease has run out by its own clock, so that it may have been evicted, and others may have taken over
// what it is the home of. Who acts for the cluster asks when the work is done, and before anybody is told. What was true then may arrive
// later without harm.
func (c *Catalog) Fenced() bool { return c.signs.fenced(c.Current().Lease) }

// Evicted is closed when this node has learned that it was evicted. It can do nothing any more but be closed.
func (c *Catalog) Evicted() <-chan struct{} { return c.signs.evicted }

// MayGrant reports whether this node may grant locks.
func (c *Catalog) MayGrant() bool { return !c.Fenced() }

// ShowLife asks the leader, and returns when this node has applied everything committed before.
func (c *Catalog) ShowLife(ctx context.Context) error { return c.ask(ctx) }

// renew renews this node's lease until it leaves or is evicted, or the catalog is closed.
func (c *Catalog) renew() {
	member, silent := false, false
	var next successor
	for try := 0; ; {
		reign, ring := c.reign.ctx(), c.news.hear()
		v := c.Current()
		m, ok := v.Member(c.self.ID)
		ok = ok && m.Inc == c.self.Inc
		switch {
		case ok && m.Gone || member && !ok && !c.leaving.Load():
			c.evict()
			return
		case !ok && member:
			return // it has left
		case !ok && c.admitted.Load() == nil:
			select {
			case <-ring:
				continue
			case <-c.life.Done():
				return
			}
		}
		member = ok
		every := between(v.Lease)
		if !ok { // the log has not come yet
			every = signsBefore
		}
		sent := c.signs.clock()
		err := c.sign(reign, v, try)
		next.note(c, err)
		var wait time.Duration
		switch {
		case errs.Is(err, errs.Evicted):
			c.evict()
			return
		case err == nil:
			if silent {
				c.log.Info("the leader answers again")
			}
			try, silent = 0, false
			wait = every - (c.signs.clock() - sent)
		default:
			if !silent && c.Fenced() {
				silent = true
				c.log.Warn("no answer from the leader for a lease: this node grants no locks until there is one", "lease", v.Lease, "err", err)
			}
			wait = min(backoff(try), every)
			try++
		}
		again, doubt := time.NewTimer(wait), c.doubt
		if err != nil {
			doubt = nil // it is asked again soon
		}
		select {
		case <-again.C:
		case <-doubt:
		case <-changedAfter(err, reign):
		case <-c.life.Done():
			again.Stop()
			return
		}
		again.Stop()
	}
}

// changedAfter returns a channel that is closed when it is worth asking again at once.
func changedAfter(err error, reign context.Context) <-chan struct{} {
	if err == nil {
		return nil
	}
	return reign.Done()
}

// sign sends one sign of life. After a lease without an answer, it goes to any member in turn: this node may have been evicted, and not
// know who leads now.
func (c *Catalog) sign(reign context.Context, v *dsm.View, try int) error {
	ctx, cancel := context.WithTimeout(reign, max(v.Lease, DefaultLease)/2)
	defer cancel()
	by := c.admitted.Load()
	switch id, _ := c.leader(); {
	case id == 0 && len(v.Members) == 0 && by != nil && by.Leader != "":
		return c.signToLeader(ctx, by)
	case id == 0 && len(v.Members) == 0 && by != nil:
		return c.signToFormer(ctx, try)
	case !c.Fenced() || try%2 == 0 || len(v.Members) == 0:
		_, err := c.question(ctx, true)
		return err
	}
	m := v.Members[try/2%len(v.Members)]
	if m.ID == c.self.ID {
		return errs.E(errs.Unavailable, "", "no node answers")
	}
	_, err := c.caller.Call(ctx, nodeAddr(m.ID, m.Addr), &wire.ReadIndex{From: c.self.ID, Inc: c.self.Inc, Epoch: v.Epoch, Sign: true})
	if err == nil { // it leads: the next question finds it
		err = errs.E(errs.NotLeader, "", "")
	}
	return err
}

// signToLeader sends a sign of life to the leader that has admitted this node, to which the log has told nothing yet.
func (c *Catalog) signToLeader(ctx context.Context, by *wire.Joined) error {
	sent := c.signs.clock()
	_, err := c.caller.Call(ctx, by.Leader, &wire.ReadIndex{From: c.self.ID, Inc: c.self.Inc, Epoch: by.Epoch, Sign: true})
	if err == nil {
		c.signs.confirm(sent)
	}
	return err
}

// evict says that this node is no member any more.
func (c *Catalog) evict() {
	c.signs.leave.Do(func() {
		c.log.Warn("this node was evicted from the cluster")
		close(c.signs.evicted)
	})
}

// doubtLeader says that the leader could not be reached: the next sign of life is sent now.
func (c *Catalog) doubtLeader(err error) {
	if !errs.Is(err, errs.Unavailable) {
		return
	}
	select {
	case c.doubt <- struct{}{}:
	default:
	}
}

// knownOut reports whether it is certain that the node that asks, which was a member in the view of that epoch, is none any more. To be
// gone is final for an incarnation.
func (c *Catalog) knownOut(q *wire.ReadIndex) bool {
	v := c.Current()
	m, ok := v.Member(q.From)
	switch {
	case !ok:
		return v.Epoch >= q.Epoch && q.Epoch != 0
	case m.Inc == q.Inc:
		return m.Gone
	}
	return m.Inc > q.Inc
}

func errEvicted(n dsm.NodeID) error { return errs.E(errs.Evicted, "", "node %s", n) }
